"""Rows of tokens: padded, packed, truncated."""

from __future__ import annotations

import array
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crumpets_like import TurboDataLoader
from crumpets_like.workers import PackedDocuments, TokenWorker, pack
from tests.support.markers import read

DOCUMENT = st.lists(st.integers(0, 1000), max_size=12)
LENGTHS = st.lists(st.integers(0, 30), max_size=60)


def make_worker(seq_len: int = 8, dtype: Any = np.int32, **options: Any) -> TokenWorker:
    return TokenWorker(((seq_len,), dtype, 99), **options)


def test_one_document_is_padded() -> None:
    mini_batch = read(make_worker(), [5, 6, 7], np.arange(8), [])
    np.testing.assert_array_equal(
        mini_batch["tokens"],
        [[5, 6, 7, 99, 99, 99, 99, 99], [0, 1, 2, 3, 4, 5, 6, 7], [99] * 8],
    )
    np.testing.assert_array_equal(
        mini_batch["document_ids"], [[1, 1, 1, 0, 0, 0, 0, 0], [1] * 8, [0] * 8]
    )
    np.testing.assert_array_equal(
        mini_batch["positions"], [[0, 1, 2, 0, 0, 0, 0, 0], [0, 1, 2, 3, 4, 5, 6, 7], [0] * 8]
    )
    np.testing.assert_array_equal(mini_batch["truncated"], [0, 0, 0])
    dtypes = {key: mini_batch[key].dtype for key in mini_batch}
    assert dtypes == {
        "tokens": np.int32,
        "document_ids": np.int32,
        "positions": np.int32,
        "truncated": np.int64,
    }


def test_documents_share_a_row_and_empty_ones_keep_their_number() -> None:
    mini_batch = read(make_worker(), [[5, 6], [], [7, 8, 9]])
    np.testing.assert_array_equal(mini_batch["tokens"], [[5, 6, 7, 8, 9, 99, 99, 99]])
    np.testing.assert_array_equal(mini_batch["document_ids"], [[1, 1, 3, 3, 3, 0, 0, 0]])
    np.testing.assert_array_equal(mini_batch["positions"], [[0, 1, 0, 1, 2, 0, 0, 0]])


@pytest.mark.parametrize(
    "sample",
    [
        [1, 2, 3],
        (1, 2, 3),
        np.array([1, 2, 3], np.uint16),
        np.array([1, 2, 3]),
        array.array("H", [1, 2, 3]),
        range(1, 4),
        list(np.array([1, 2, 3])),
        {"tokens": [1, 2, 3], "source": "a book"},
        {"tokens": [[1, 2, 3]]},
        [np.array([1, 2, 3], np.int8)],
        ((1, 2, 3),),
    ],
)
def test_every_form_of_a_sample(sample: Any) -> None:
    mini_batch = read(make_worker(4), sample)
    np.testing.assert_array_equal(mini_batch["tokens"], [[1, 2, 3, 99]])
    np.testing.assert_array_equal(mini_batch["document_ids"], [[1, 1, 1, 0]])


def test_too_long_is_an_error_unless_told_otherwise() -> None:
    with pytest.raises(ValueError, match=r"9 tokens in 2 document.* a row has 8.*truncate"):
        read(make_worker(), [[1, 2, 3, 4], [5, 6, 7, 8, 9]])


def test_truncation_is_at_the_side_that_was_told_and_counted() -> None:
    sample = [[1, 2, 3], [4, 5, 6, 7], [8, 9]]
    end = read(make_worker(6, truncate="end"), sample)
    np.testing.assert_array_equal(end["tokens"], [[1, 2, 3, 4, 5, 6]])
    np.testing.assert_array_equal(end["document_ids"], [[1, 1, 1, 2, 2, 2]])
    np.testing.assert_array_equal(end["positions"], [[0, 1, 2, 0, 1, 2]])
    start = read(make_worker(4, truncate="start"), sample)
    np.testing.assert_array_equal(start["tokens"], [[6, 7, 8, 9]])
    np.testing.assert_array_equal(start["document_ids"], [[2, 2, 3, 3]])
    np.testing.assert_array_equal(start["positions"], [[0, 1, 0, 1]])
    assert (end["truncated"].tolist(), start["truncated"].tolist()) == ([3], [5])


@given(st.lists(DOCUMENT, max_size=5), st.integers(1, 30), st.sampled_from(["start", "end"]))
def test_a_row_has_each_document_that_it_should(
    documents: list[list[int]], seq_len: int, side: str
) -> None:
    worker = make_worker(seq_len, truncate=side)
    buffers = {key: np.full(spec.shape, -7) for key, spec in worker.buffer_specs.items()}
    worker.prepare(documents, {}, buffers)
    together = [(token, n) for n, document in enumerate(documents, 1) for token in document]
    kept = together[:seq_len] if side == "end" else together[-seq_len:]
    used = len(kept)
    assert list(zip(buffers["tokens"][:used], buffers["document_ids"][:used], strict=True)) == kept
    assert (buffers["tokens"][used:] == 99).all()
    assert not buffers["document_ids"][used:].any()
    assert not buffers["positions"][used:].any()
    for number in range(1, len(documents) + 1):
        positions = buffers["positions"][buffers["document_ids"] == number]
        np.testing.assert_array_equal(positions, np.arange(len(positions)))
    assert buffers["truncated"] == len(together) - used


def test_tokens_that_the_dtype_cannot_hold_are_refused() -> None:
    with pytest.raises(OverflowError, match="70000"):
        read(make_worker(dtype=np.uint16), [1, 70000])
    with pytest.raises(OverflowError, match="-1"):
        read(make_worker(dtype=np.uint16), [1, -1])


@pytest.mark.parametrize(
    ("sample", "error", "reason"),
    [
        ([1.0, 2.0], TypeError, "list .*float64"),
        (["a", "b"], TypeError, "one-dimensional sequence of integers"),
        ("text", TypeError, "not str"),
        (b"text", TypeError, "not bytes"),
        ([True, False], TypeError, "bool"),
        (7, TypeError, r"not int .*shape \(\)"),
        (np.zeros((2, 3), np.int32), TypeError, r"shape \(2, 3\)"),
        ([[1, 2], 3], TypeError, r"not int .*shape \(\)"),
        ([[[1, 2]]], TypeError, r"shape \(1, 2\)"),
        ({"text": "no"}, ValueError, r"no 'tokens'; its keys are 'text'"),
    ],
)
def test_what_is_no_document_is_refused(sample: Any, error: type[Exception], reason: str) -> None:
    with pytest.raises(error, match=reason):
        read(make_worker(), sample)


@pytest.mark.parametrize(
    ("tokens", "options", "reason"),
    [
        (((8, 2), np.int32), {}, r"shape \(seq_len,\).*\(8, 2\)"),
        (((0,), np.int32), {}, r"seq_len >= 1, not \(0,\)"),
        (((8,), np.float32), {}, "integer dtype, not float32"),
        (((8,), np.int32, np.arange(8)), {}, "the one token of the padding"),
        (((8,), np.int32), {"truncate": "left"}, r"truncate must be one of .*'left'"),
    ],
)
def test_wrong_arguments_are_named(tokens: Any, options: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        TokenWorker(tokens, **options)


def test_without_a_fill_value_the_padding_is_zero() -> None:
    mini_batch = read(TokenWorker(((4,), np.int64)), [1, 2])
    np.testing.assert_array_equal(mini_batch["tokens"], [[1, 2, 0, 0]])


def rows_of(lengths: list[int], seq_len: int) -> list[list[int]]:
    indices, starts = pack(lengths, seq_len)
    assert (indices.dtype, starts.dtype) == (np.int64, np.int64)
    assert (starts[0], starts[-1]) == (0, len(lengths))
    return [part.tolist() for part in np.split(indices, starts[1:-1])] if lengths else []


def test_the_longest_first_each_where_it_leaves_the_least_room() -> None:
    assert rows_of([700, 300, 200, 500, 320], 1024) == [[0, 4], [1, 2, 3]]
    assert rows_of([6, 5, 5], 10) == [[0], [1, 2]]
    assert rows_of([6, 5, 4, 4], 10) == [[0, 2], [1, 3]]
    assert rows_of([1, 1, 10, 1], 10) == [[0, 1, 3], [2]]


@given(LENGTHS, st.integers(1, 40))
def test_every_document_is_in_one_row_and_rows_are_not_overfull(
    lengths: list[int], seq_len: int
) -> None:
    rows = rows_of(lengths, seq_len)
    assert sorted(index for row in rows for index in row) == list(range(len(lengths)))
    filled = [sum(lengths[index] for index in row) for row in rows]
    for row, tokens in zip(rows, filled, strict=True):
        assert row == sorted(row)
        # One that is too long is alone, but for empty ones.
        assert tokens <= seq_len or sum(lengths[index] > 0 for index in row) == 1
    assert sum(2 * tokens <= seq_len for tokens in filled) <= 1  # else two would be one
    assert rows == sorted(rows)


def test_many_short_documents_fill_the_rows() -> None:
    lengths = np.random.default_rng(0).integers(1, 300, 2000)
    _, starts = pack(lengths, 1024)
    assert lengths.sum() > 0.995 * 1024 * (len(starts) - 1)


@pytest.mark.parametrize(
    ("lengths", "seq_len", "error", "reason"),
    [
        ([1, -2], 8, ValueError, r"lengths\[1\] is -2"),
        ([1.5], 8, TypeError, "float64"),
        ([[1]], 8, TypeError, r"shape \(1, 1\)"),
        ([1], 0, ValueError, "seq_len must be at least 1"),
        ([1], 8.0, TypeError, "seq_len must be an integer"),
    ],
)
def test_wrong_lengths_are_named(
    lengths: Any, seq_len: Any, error: type[Exception], reason: str
) -> None:
    with pytest.raises(error, match=reason):
        pack(lengths, seq_len)


def test_packed_documents_are_a_dataset_of_rows() -> None:
    documents = [np.arange(n) for n in (700, 300, 200, 500, 320)]
    rows = PackedDocuments(documents, 1024)
    assert [[len(document) for document in row] for row in rows] == [[700, 320], [300, 200, 500]]
    assert rows[-1][0] is documents[1]
    with pytest.raises(IndexError):
        rows[2]
    assert len(PackedDocuments([], 8)) == 0
    given_lengths = PackedDocuments(range(3), 10, lengths=[6, 5, 4])
    assert list(given_lengths) == [[0, 2], [1]]
    with pytest.raises(ValueError, match="3 documents, but 2 lengths"):
        PackedDocuments(range(3), 10, lengths=[6, 5])


def test_all_tokens_come_through_a_loader_with_workers() -> None:
    generator = np.random.default_rng(0)
    documents = [generator.integers(1, 9, n, np.uint16) for n in generator.integers(1, 50, 200)]
    rows = PackedDocuments(documents, 64)
    with TurboDataLoader(rows, 8, make_worker(64), 2, shuffle=True, seed=1) as loader:
        mini_batches = [mini_batch for _, parts in loader for mini_batch in parts]
    found = [
        tuple(tokens[ids == number])
        for mini_batch in mini_batches
        for tokens, ids in zip(mini_batch["tokens"], mini_batch["document_ids"], strict=True)
        for number in range(1, ids.max() + 1)
    ]
    assert sorted(found) == sorted(map(tuple, documents))


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint64])
@pytest.mark.parametrize("seq_len", [50, 1024, 10**5])
def test_lengths_of_small_dtypes(dtype: type, seq_len: int) -> None:
    lengths = [3, 4, 100]
    for found, expected in zip(
        pack(np.array(lengths, dtype), seq_len), pack(lengths, seq_len), strict=True
    ):
        np.testing.assert_array_equal(found, expected)
