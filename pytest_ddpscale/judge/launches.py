"""A requirement judged over several launches, each with new processes.

Some conditions are settled once per launch (memory placement, cores, channels, other jobs), so the spread of its rounds
does not show them, however many there are. The value is therefore the mean of the launches' values, with a Student-t
interval over them (Student 1908), in logarithms if values err by factors. The number of rounds of each launch was fixed
before, so no correction for repeated looks is needed.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from pytest_ddpscale.judge.estimating import Estimates, Found
from pytest_ddpscale.judge.intervals import Estimate, geometric_mean_estimate, mean_estimate
from pytest_ddpscale.plan.metric import Scale
from pytest_ddpscale.plan.metric_catalogue import METRICS
from pytest_ddpscale.run.verdicts import Culprit, Verdict, VerdictOutcome

P = TypeVar("P", bound=Hashable)
# The first of these that any launch has stands for all. Launches share value and interval, so only caveats differ.
_WORST_FIRST: tuple[VerdictOutcome, ...] = ("error", "not_measured", "inconclusive", "failed", "passed")


def at_place(launches: Sequence[Estimates[P]], place: P, confidence: float) -> Found:
    """Mean of the launches at a place with its interval; without one if any launch has too few rounds.

    Args:
        launches: at least three.
        place: which may be missing in a launch.
        confidence: of the interval, 0 … 1.
    """
    found = [_of_launch(launch, place, confidence) for launch in launches]
    return over_launches(found, launches[0].scale, confidence)


def _of_launch(launch: Estimates[P], place: P, confidence: float) -> Found:
    if not launch.samples.get(place):
        return Found(math.nan, None, too_few="no complete round")
    return launch.at(place, confidence)


def over_launches(found: Sequence[Found], scale: Scale, confidence: float) -> Found:
    """Value and interval over launches.

    A launch that drifts counts with its whole interval, which reaches to where its trend would lead: if all launches
    drift the same way, their means agree on a value at which none of them stays.

    Args:
        found: value and interval of each launch.
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
    """Combine the verdicts on launches to one.

    Args:
        verdicts: one per launch, on the value and interval of all launches, with caveats of that launch alone.

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
    """The value of a steady launch; of one that drifts, an end of its interval."""
    return found.estimate.interval[side] if found.note and found.estimate is not None else found.value


def _geometric_mean(values: Sequence[float]) -> float:
    return math.exp(statistics.fmean(math.log(value) if value > 0 else -math.inf for value in values))


def _relative_sd(values: Sequence[float], scale: Scale) -> float | None:
    """Sample standard deviation of launches relative to their mean; None if the mean is 0."""
    if scale == "factors":
        return statistics.stdev([math.log(value) for value in values])
    mean = statistics.fmean(values)
    return statistics.stdev(values) / abs(mean) if mean else None


def _notes(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """Notes of the launches; with launch numbers, unless all share the note."""
    for note in dict.fromkeys(note for one in verdicts for note in one.notes):
        there = [str(number) for number, one in enumerate(verdicts, start=1) if note in one.notes]
        yield note if len(there) == len(verdicts) else f"launch {', '.join(there)}: {note}"


def _culprits(verdicts: Sequence[Verdict]) -> Iterator[Culprit]:
    """Culprits of any launch with the number of launches that name them; certain if they are in most launches."""
    named = [culprit for one in verdicts for culprit in one.culprits]
    times, certain = Counter(map(_who, named)), Counter(_who(one) for one in named if one.is_certain)
    first = {_who(one): one for one in reversed(named)}
    for who in dict.fromkeys(map(_who, named)):
        evidence = f"{first[who].evidence}; in {times[who]} of {len(verdicts)} launches"
        yield replace(first[who], evidence=evidence, is_certain=2 * certain[who] > len(verdicts))


def _who(culprit: Culprit) -> Culprit:
    return replace(culprit, evidence="", is_certain=False, slowdown=None, peers=None, slow_rounds=None, rounds=None)
