"""Whether a place is still what it was, and what its peers are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pytest_ddpscale.history.key_values import KeyValue
from pytest_ddpscale.history.prediction import (
    MOST_VALUES,
    Reference,
    is_lower_better,
    reference_of,
    shared_confidence,
)

Standing = Literal["usual", "worse", "better", "unknown"]
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Observed:
    """A value with what it is to be compared with.

    Attributes:
        value: the latest of its series.
        at: when its run began, ISO 8601 in UTC.
        past: earlier values of the same series, oldest first; the latest twenty are looked at.
        peers: latest values of the same place on other hosts, one for each host.
    """

    value: KeyValue
    at: str
    past: tuple[float, ...] = ()
    peers: tuple[float, ...] = ()


@dataclass(frozen=True)
class ValueComparison:
    """A value beside others.

    Attributes:
        reference: the others.
        ratio: the value over their median.
        interval: within which it should lie, in the unit of the value; None where too few others are there.
        standing: ``worse`` and ``better`` lie outside of the interval, ``unknown`` has none.
    """

    reference: Reference
    ratio: float
    interval: tuple[float, float] | None
    standing: Standing


@dataclass(frozen=True)
class Drift:
    """What became of a value.

    Attributes:
        value: the latest of its series.
        at: when its run began, ISO 8601 in UTC.
        past: beside the place's own past; None if it has none.
        peers: beside the same place on other hosts; None if there are none.
    """

    value: KeyValue
    at: str
    past: ValueComparison | None
    peers: ValueComparison | None

    @property
    def is_worse(self) -> bool:
        """Whether it is worse than it was, or than its peers."""
        return any(one is not None and one.standing == "worse" for one in (self.past, self.peers))

    @property
    def loss(self) -> float:
        """By what share it is worse than its own past, or than its peers if it has none; negative if it is better."""
        one = self.past or self.peers
        if one is None:
            return 0.0
        return (1 - 1 / one.ratio) if is_lower_better(self.value.metric) else 1 - one.ratio


def drifts_of(observed: Sequence[Observed], confidence: float = CONFIDENCE) -> list[Drift]:
    """Compare all values with their past and their peers.

    A value is worse, or better, if it lies outside of the interval that the others predict for one more of them. The
    intervals hold all together: if nothing changed, any value at all is flagged with a probability of at most
    1 - `confidence`, and as worse with half of that.

    Args:
        observed: everything that is looked at together.
        confidence: that none is flagged that did not change, 0 … 1.
    """
    references = [(reference_of(one.past[-MOST_VALUES:]), reference_of(one.peers)) for one in observed]
    number = sum(one is not None and one.is_enough for pair in references for one in pair)
    each = shared_confidence(confidence, number)
    return [
        Drift(one.value, one.at, _compared(one.value, past, each), _compared(one.value, peers, each))
        for one, (past, peers) in zip(observed, references, strict=True)
    ]


def _compared(value: KeyValue, reference: Reference | None, confidence: float) -> ValueComparison | None:
    if reference is None:
        return None
    ratio = value.value / reference.median
    if not reference.is_enough:
        return ValueComparison(reference, ratio, None, "unknown")
    interval = reference.interval(confidence)
    return ValueComparison(reference, ratio, interval, _standing(value, interval))


def _standing(value: KeyValue, interval: tuple[float, float]) -> Standing:
    low, high = interval
    if low <= value.value <= high:
        return "usual"
    return "worse" if (value.value > high) == is_lower_better(value.metric) else "better"
