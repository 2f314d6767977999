"""Per-round values, and arithmetic that pairs them round by round.

Drift between rounds affects all arms of a round equally, so ratios of arms are taken within each round.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class Sample(NamedTuple):
    """A metric's value in one round.

    Attributes:
        value: in the metric's unit.
        relative_error: standard error relative to the value, if there is only one long imported sample; None for our
            own rounds.
    """

    value: float
    relative_error: float | None = None


class PerRound:
    """One value per round in which it could be read.

    ``a / b`` and ``a - b`` keep the rounds that both have. Relative errors survive scaling and division, but not sums.

    Args:
        numbers: round numbers, ascending, (rounds,).
        values: one per round, (rounds,).
        errors: relative errors, NaN for samples without one, (rounds,); None if no sample has one.
    """

    def __init__(self, numbers: npt.ArrayLike = (), values: npt.ArrayLike = (), errors: npt.ArrayLike | None = None):
        self.numbers = np.asarray(numbers, np.int64)
        self.values = np.asarray(values, np.float64)
        self.errors = None if errors is None else np.asarray(errors, np.float64)

    def __iter__(self) -> Iterator[Sample]:
        """Samples in the order of the rounds."""
        if self.errors is None:
            return map(Sample, self.values.tolist())
        return map(Sample, self.values.tolist(), [None if math.isnan(one) else one for one in self.errors.tolist()])

    def __len__(self) -> int:
        """Number of rounds."""
        return len(self.values)

    def __mul__(self, factor: float) -> PerRound:
        """Multiply each value by a number."""
        return PerRound(self.numbers, self.values * factor, self.errors)

    __rmul__ = __mul__

    def __truediv__(self, other: PerRound | float) -> PerRound:
        """Divide each value by that of the same round, or by a number."""
        if not isinstance(other, PerRound):
            return PerRound(self.numbers, self.values / other, self.errors)
        if not np.array_equal(self.numbers, other.numbers):
            shared = np.intersect1d(self.numbers, other.numbers, assume_unique=True)
            return self.of(np.isin(self.numbers, shared)) / other.of(np.isin(other.numbers, shared))
        errors = None
        if self.errors is not None and other.errors is not None:
            errors = np.hypot(self.errors, other.errors)  # of two independent samples
        return PerRound(self.numbers, self.values / other.values, errors)

    def __sub__(self, term: PerRound | float) -> PerRound:
        """Subtract from each value that of the same round, or a number."""
        if not isinstance(term, PerRound):
            return PerRound(self.numbers, self.values - term)
        shared = np.intersect1d(self.numbers, term.numbers, assume_unique=True)
        one, other = self.of(np.isin(self.numbers, shared)), term.of(np.isin(term.numbers, shared))
        return PerRound(shared, one.values - other.values)

    def __rsub__(self, term: float) -> PerRound:
        """Subtract each value from a number."""
        return PerRound(self.numbers, term - self.values)

    def of(self, rounds: npt.NDArray[np.bool_]) -> PerRound:
        """The rounds selected by a mask."""
        return PerRound(self.numbers[rounds], self.values[rounds], None if self.errors is None else self.errors[rounds])
