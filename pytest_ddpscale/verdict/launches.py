"""A requirement judged over several launches of all processes, each of which measured it from the beginning.

What a launch settles once (where memory lies, which cores and channels were chosen, what else ran) is the same in all
of its rounds: their spread says nothing about it, however many there are. So the value is the mean of the launches'
values, and its interval Student's t over them (Student 1908), of the logarithms where values err by factors. Each has a
number of rounds that was fixed before: nothing was looked at on the way, and nothing has to be allowed for that.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from pytest_ddpscale.plan.metric import Scale
from pytest_ddpscale.plan.metric_catalogue import METRICS
from pytest_ddpscale.plan.per_round import PerRound
from pytest_ddpscale.results.verdicts import Culprit, Verdict, VerdictOutcome
from pytest_ddpscale.stats.intervals import Estimate, geometric_mean_estimate, mean_estimate
from pytest_ddpscale.thresholds.model import Requirement
from pytest_ddpscale.verdict.estimating import Clear, Estimates, Found

P = TypeVar("P", bound=Hashable)
# The first of these that any launch comes to stands for all. They share value and interval, and so differ by what
# forbids a verdict in some.
_WORST_FIRST: tuple[VerdictOutcome, ...] = ("error", "not_measured", "inconclusive", "failed", "passed")


class LaunchEstimates(Estimates[P]):
    """What all launches say together of each place; the samples are those of one of them.

    Args:
        own: samples of the launch that is looked at.
        of_launches: samples of each launch, at least three.
        scale: how they err.
    """

    def __init__(self, own: Mapping[P, PerRound], of_launches: Sequence[Mapping[P, PerRound]], scale: Scale) -> None:
        super().__init__(own, scale)
        self._launches = [Estimates(samples, scale) for samples in of_launches]

    def at(self, place: P, confidence: float) -> Found:
        """The launches' mean, with its interval; none if any launch has too few rounds to have a value."""
        found = [self._of_launch(launch, place, confidence) for launch in self._launches]
        return over_launches(found, self._scale, confidence)

    def of_this_launch(self, place: P, confidence: float) -> Found:
        """What the launch that is looked at says by itself."""
        return super().at(place, confidence)

    def clear_passes(
        self, requirement: Requirement, credible: tuple[float, float], fewest_rounds: int, confidence: float
    ) -> dict[P, Clear]:
        """None: each place is judged in full."""
        return {}

    def _of_launch(self, launch: Estimates[P], place: P, confidence: float) -> Found:
        samples = launch.samples.get(place)
        if not samples:
            return Found(math.nan, None, too_few="no complete round")
        values = samples.values.tolist()
        if not all(math.isfinite(value) and (self._scale != "factors" or value > 0) for value in values):
            return Found(math.nan, None, too_few=f"an impossible value was measured: {values}")
        return launch.at(place, confidence)


def over_launches(found: Sequence[Found], scale: Scale, confidence: float) -> Found:
    """What launches come to together.

    A launch that was not steady counts with its whole interval, which reaches where its trend would lead: if all went
    the same way, their means would agree on a value that none of them stays at.

    Args:
        found: what the rounds of each launch say.
        scale: how values err.
        confidence: of the interval, 0 … 1.
    """
    values = [one.value for one in found]
    mean = _geometric_mean if scale == "factors" else statistics.fmean
    for number, one in enumerate(found, start=1):
        if one.estimate is None:
            known = [value for value in values if math.isfinite(value)]
            value = mean(known) if known else math.nan
            return Found(value, None, too_few=f"launch {number} of {len(found)}: {one.too_few}")
    estimate = (geometric_mean_estimate if scale == "factors" else mean_estimate)(values, confidence)
    low, high = (mean([_end(one, side) for one in found]) for side in (0, 1))
    interval = min(estimate.interval[0], low), max(estimate.interval[1], high)
    note = "; ".join(f"launch {number}: {one.note}" for number, one in enumerate(found, start=1) if one.note)
    return Found(
        estimate.value,
        Estimate(estimate.value, interval),
        note,
        launch_sd=_relative_sd(values, scale),
        launch_values=tuple(values),
    )


def combined_launches(verdicts: Sequence[Verdict]) -> Verdict:
    """One verdict of those on the launches.

    Args:
        verdicts: of each launch on the value and interval of all, with what is to be said of that launch alone.

    Returns:
        The worst; with the rounds, notes, flags and culprits of all.
    """
    is_enough = METRICS[verdicts[0].metric].compares_results  # to differ in one launch

    def rank(one: Verdict) -> int:
        return -1 if is_enough and one.outcome == "failed" else _WORST_FIRST.index(one.outcome)

    worst = min(verdicts, key=rank)
    count = len(verdicts)
    alone = [number for number, one in enumerate(verdicts, start=1) if one.reason == worst.reason]
    reason = worst.reason if len(alone) == count else f"launch {alone[0]} of {count}: {worst.reason}"
    return replace(
        worst,
        reason=reason,
        rounds=sum(one.rounds for one in verdicts),
        notes=tuple(_notes(verdicts)),
        flags=tuple(dict.fromkeys(flag for one in verdicts for flag in one.flags)),
        culprits=tuple(_culprits(verdicts)),
    )


def _end(found: Found, side: int) -> float:
    """Of a launch that was steady, its value; else that end of its interval."""
    return found.estimate.interval[side] if found.note and found.estimate is not None else found.value


def _geometric_mean(values: Sequence[float]) -> float:
    return math.exp(statistics.fmean(math.log(value) if value > 0 else -math.inf for value in values))


def _relative_sd(values: Sequence[float], scale: Scale) -> float | None:
    """Sample standard deviation of launches relative to their mean; None where that is nothing."""
    if scale == "factors":
        return statistics.stdev([math.log(value) for value in values])
    mean = statistics.fmean(values)
    return statistics.stdev(values) / abs(mean) if mean else None


def _notes(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """What is to be known of all launches as it is, of others with their numbers."""
    for note in dict.fromkeys(note for one in verdicts for note in one.notes):
        there = [str(number) for number, one in enumerate(verdicts, start=1) if note in one.notes]
        yield note if len(there) == len(verdicts) else f"launch {', '.join(there)}: {note}"


def _culprits(verdicts: Sequence[Verdict]) -> Iterator[Culprit]:
    """Everybody who is named for any launch, and for how many; certain if that is so in most of them."""
    named = [culprit for one in verdicts for culprit in one.culprits]
    times, certain = Counter(map(_who, named)), Counter(_who(one) for one in named if one.is_certain)
    first = {_who(one): one for one in reversed(named)}
    for who in dict.fromkeys(map(_who, named)):
        evidence = f"{first[who].evidence}; in {times[who]} of {len(verdicts)} launches"
        yield replace(first[who], evidence=evidence, is_certain=2 * certain[who] > len(verdicts))


def _who(culprit: Culprit) -> Culprit:
    return replace(culprit, evidence="", is_certain=False, slowdown=None, peers=None, slow_rounds=None, rounds=None)
