"""Results as Markdown tables that also read well in a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .harness import CaseResult, Result

#: Column title, measure, factor, number format.
COLUMNS = (
    ("samples/s", "samples_per_second", 1.0, ",.0f"),
    ("ms/batch", "ms_per_batch", 1.0, ".2f"),
    ("first batch s", "first_batch_s", 1.0, ".3f"),
    ("CPU us/batch", "cpu_us_per_batch", 1.0, ",.0f"),
    ("peak PSS MB", "peak_pss_mb", 1.0, ",.0f"),
    ("epoch gap ms", "epoch_gap_s", 1e3, ".1f"),
)


def layout(rows: Sequence[Sequence[str]]) -> str:
    """Align the cells of a Markdown table; the first row is the header.

    Parameters
    ----------
    rows : sequence of sequence of str
        All of the same length.

    Returns
    -------
    str
        Lines without a final newline.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def measures_table(results: Iterable[CaseResult]) -> str:
    """Return what was measured: one row per case and contender."""
    rows = [["case", "contender", *(title for title, *_ in COLUMNS), "notes"]]
    for result in results:
        for name, contender in result.contenders.items():
            rows.append([result.case.name, name, *_cells(contender), _note(contender)])
    return layout(rows)


def checks_table(results: Iterable[CaseResult]) -> str:
    """Return what was required: one row per requirement, with whether it was reached."""
    words = {True: "yes", False: "NO", None: "not measured"}
    rows = [["case", "per sample", "required", "measured", "reached"]]
    for result in results:
        for check in result.checks():
            value = "-" if check.value is None else f"{check.value:.3g}"
            rows.append(
                [
                    result.case.name,
                    result.case.summary,
                    check.text,
                    value,
                    words[check.reached],
                ]
            )
    return layout(rows)


def _cells(contender: Result) -> list[str]:
    return [
        format(contender.median[measure] * factor, spec) if measure in contender.median else "-"
        for _, measure, factor, spec in COLUMNS
    ]


def _note(contender: Result) -> str:
    # Measures without a column of their own are told here: few cases have them.
    extra = {
        "reopen_s": "new epoch {:.4f} s",
        "rss_growth_mb": "RSS +{:.1f} MB",
        "geometry_ratio": "{:.2f} x without any",
        "pixels_ratio": "{:.2f} x with them",
        "eager_ratio": "{:.3f} x eager PyTorch",
    }
    told = [text.format(contender.median[m]) for m, text in extra.items() if m in contender.median]
    return "; ".join(filter(None, [contender.error, contender.note, *told])) or "-"
