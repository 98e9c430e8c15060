"""What a case must reach, and whether it does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from statistics import median

#: One contender's numbers in one case: measure -> value.
Measures = Mapping[str, float]

#: What can be measured, with its unit in words.
MEASURES = {
    "samples_per_second": "samples/s",
    "ms_per_batch": "ms/batch",
    "first_batch_s": "first batch (s)",
    "reopen_s": "first batch of a new epoch (s)",
    "cpu_us_per_batch": "CPU (us/batch)",
    "peak_pss_mb": "peak PSS (MB)",
    "epoch_gap_s": "epoch gap (s)",
    "rss_growth_mb": "RSS growth (MB)",
    "eager_ratio": "step / step of eager PyTorch",
    "geometry_ratio": "worker time / without pixel operations",
    "pixels_ratio": "worker time / with them",
    "reallocated": "arrays allocated again",
}


@dataclass(frozen=True)
class Requirement:
    """A bound on one measure of one contender, absolute or relative to others.

    Attributes
    ----------
    measure : str
        A key of `MEASURES`.
    bound : float
        What must be reached: a factor if `relative_to` names contenders, else a value in the
        measure's own unit.
    relative_to : tuple of str
        Contenders to compare with; the best of them counts.
    at_most : bool
        True where less is better.
    contender : str
        Who must reach it.
    """

    measure: str
    bound: float
    relative_to: tuple[str, ...] = ()
    at_most: bool = False
    contender: str = "ours"

    @property
    def text(self) -> str:
        """The requirement in words, such as ``samples/s >= 8 x torch``."""
        sign = "<=" if self.at_most else ">="
        who = "" if self.contender == "ours" else f"{self.contender}: "
        if not self.relative_to:
            return f"{who}{MEASURES[self.measure]} {sign} {self.bound:g}"
        fraction = Fraction(self.bound).limit_denominator(9)
        exact = self.at_most and abs(float(fraction) - self.bound) < 1e-9
        factor = str(fraction) if exact else f"{self.bound:g}"
        return f"{who}{MEASURES[self.measure]} {sign} {factor} x {'/'.join(self.relative_to)}"

    def check(self, rounds: Iterable[Mapping[str, Measures]]) -> Check:
        """Compare with the measured values.

        Parameters
        ----------
        rounds : iterable of mapping of str to mapping of str to float
            What each contender that ran has measured, round by round. The median over the rounds
            counts, of the factor where others are compared with: what ran one after the other
            found the machine in the same state.

        Returns
        -------
        Check
            Without a value if no round has one of each contender that it needs.
        """
        values = [value for results in rounds if (value := self._value(results)) is not None]
        if not values:
            return Check(self.text, None, None)
        value = median(values)
        reached = value <= self.bound if self.at_most else value >= self.bound
        return Check(self.text, value, reached)

    def _value(self, results: Mapping[str, Measures]) -> float | None:
        """What one round has measured, or None."""
        value = results.get(self.contender, {}).get(self.measure)
        if value is None or not self.relative_to:
            return value
        others = [
            results[name][self.measure]
            for name in self.relative_to
            if self.measure in results.get(name, {})
        ]
        if not others:
            return None
        return value / (min(others) if self.at_most else max(others))


@dataclass(frozen=True)
class Check:
    """Outcome of one requirement.

    Attributes
    ----------
    text : str
        The requirement in words.
    value : float or None
        The measured factor or value; None if it could not be measured.
    reached : bool or None
        Whether `value` is within the bound; None if it could not be measured.
    """

    text: str
    value: float | None
    reached: bool | None
