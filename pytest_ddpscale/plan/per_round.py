"""Values of rounds, and arithmetic that pairs them round by round.

What changed between two rounds hits all arms of a round alike, so that a ratio of arms is taken within each round.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Sample(NamedTuple):
    """A metric's value in one round, in its unit; of one long imported sample, its standard error relative to that."""

    value: float
    relative_error: float | None = None


class PerRound:
    """One value of each round in which it could be read.

    ``a / b`` is of the rounds that both have. A relative error survives what scales a value, and no sum. Numbers of
    rounds ascend; `errors` is None if no sample has one.
    """

    def __init__(
        self,
        numbers: Sequence[int] = (),
        values: Sequence[float] = (),
        errors: Sequence[float | None] | None = None,
    ) -> None:
        self.numbers = numbers
        self.values = values
        self._errors = errors

    def __iter__(self) -> Iterator[Sample]:
        """Samples in the order of the rounds."""
        return map(Sample, self.values, self._errors or [None] * len(self))

    def __len__(self) -> int:
        """How many rounds there are."""
        return len(self.values)

    def __mul__(self, factor: float) -> PerRound:
        """Each value so many times."""
        return PerRound(self.numbers, [value * factor for value in self.values], self._errors)

    __rmul__ = __mul__

    def __truediv__(self, other: PerRound | float) -> PerRound:
        """Each value over that of the same round, or over a number."""
        if not isinstance(other, PerRound):
            return PerRound(self.numbers, [value / other for value in self.values], self._errors)
        if self.numbers != other.numbers:
            shared = set(self.numbers).intersection(other.numbers)
            return self._of(shared) / other._of(shared)
        ratios = [one / another for one, another in zip(self.values, other.values, strict=True)]
        if self._errors is None or other._errors is None:
            return PerRound(self.numbers, ratios)
        return PerRound(self.numbers, ratios, list(map(_error_of_ratio, self._errors, other._errors)))

    def __sub__(self, term: float) -> PerRound:
        """Each value less a number."""
        return PerRound(self.numbers, [value - term for value in self.values])

    def __rsub__(self, term: float) -> PerRound:
        """A number less each value."""
        return PerRound(self.numbers, [term - value for value in self.values])

    def _of(self, rounds: set[int]) -> PerRound:
        at = [i for i, number in enumerate(self.numbers) if number in rounds]
        errors = None if self._errors is None else [self._errors[i] for i in at]
        return PerRound([self.numbers[i] for i in at], [self.values[i] for i in at], errors)


def _error_of_ratio(one: float | None, other: float | None) -> float | None:
    """Of two independent samples."""
    return None if one is None or other is None else math.hypot(one, other)
