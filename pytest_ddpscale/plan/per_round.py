"""Values of rounds, and arithmetic that pairs them round by round.

What changed between two rounds hits all arms of a round alike, so that a ratio of arms is taken within each round.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Sample:
    """A metric's value in one round.

    Attributes:
        value: in the metric's unit.
        relative_error: standard error relative to the value, where one long imported sample is all
            there is; None for a round of our own.
    """

    value: float
    relative_error: float | None = None


class PerRound:
    """One value of each round in which it could be read.

    ``a / b`` is of the rounds that both have. A relative error survives what scales a value, and no sum.

    Args:
        samples: with the number of their round, in the order of the rounds.
    """

    def __init__(self, samples: Iterable[tuple[int, Sample]] = ()) -> None:
        self._samples = dict(samples)

    def __iter__(self) -> Iterator[Sample]:
        """Samples in the order of the rounds."""
        return iter(self._samples.values())

    def __len__(self) -> int:
        """How many rounds there are."""
        return len(self._samples)

    def __mul__(self, factor: float) -> PerRound:
        """Each value so many times."""
        return PerRound((n, Sample(s.value * factor, s.relative_error)) for n, s in self._samples.items())

    __rmul__ = __mul__

    def __truediv__(self, other: PerRound | float) -> PerRound:
        """Each value over that of the same round, or over a number."""
        if not isinstance(other, PerRound):
            return PerRound((n, Sample(s.value / other, s.relative_error)) for n, s in self._samples.items())
        theirs = other._samples
        return PerRound((n, _ratio(s, theirs[n])) for n, s in self._samples.items() if n in theirs)

    def __sub__(self, term: float) -> PerRound:
        """Each value less a number."""
        return PerRound((n, Sample(s.value - term)) for n, s in self._samples.items())

    def __rsub__(self, term: float) -> PerRound:
        """A number less each value."""
        return PerRound((n, Sample(term - s.value)) for n, s in self._samples.items())


def _ratio(one: Sample, other: Sample) -> Sample:
    """Of two independent samples."""
    mine, theirs = one.relative_error, other.relative_error
    error = None if mine is None or theirs is None else math.hypot(mine, theirs)
    return Sample(one.value / other.value, error)
