"""Widens the interval of a single launch by the deviation between launches in a site's history.

Every earlier run of the same places was a launch. Their values vary by noise of rounds, which is small with many
rounds, and by differences between launches. The history has throughput only, so ratios cannot be widened. Where
earlier runs differ by more than `OF_LAUNCH`, which intervals on GPUs have anyway, their deviation takes its place.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from pytest_ddpscale.history.baseline import Baseline
from pytest_ddpscale.history.key_values import KeyValueSeries, key_values_of
from pytest_ddpscale.history.prediction import LEAST_SPREAD, Reference
from pytest_ddpscale.judge.stats import OF_LAUNCH, t_quantile
from pytest_ddpscale.plan.metric_catalogue import THROUGHPUT_PER_GPU
from pytest_ddpscale.plan.planner import Question
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.verdicts import THIS_LAUNCH_ONLY, WRONG_DATA, Verdict
from pytest_ddpscale.thresholds.cases import AnyCase, Case
from pytest_ddpscale.util.digits import percent


class LaunchDeviation(NamedTuple):
    """Relative standard deviation between the values of earlier runs, and their number."""

    sd: float
    runs: int

    def reach(self, confidence: float) -> float:
        """Half the interval of the logarithm of a single launch: t · s, with the history's degrees of freedom."""
        return t_quantile(0.5 + confidence / 2, self.runs - 1) * self.sd


def may_be_widened(verdict: Verdict, case: AnyCase) -> bool:
    """Whether a verdict has an interval, of a metric that the history stores."""
    is_throughput = isinstance(case, Case) and case.requirement.definition is THROUGHPUT_PER_GPU
    return is_throughput and verdict.interval is not None


def with_launch_deviation(verdict: Verdict, case: Case, evidence: Evidence, baseline: Baseline) -> Verdict:
    """The verdict with both deviations in its interval, added as independent errors of the logarithm.

    If the bound is then inside the interval, the verdict becomes inconclusive; further rounds do not change that.

    Args:
        verdict: one that `may_be_widened`.
        case: the requirement.
        evidence: of the run.
        baseline: earlier values of the same places.
    """
    deviation = launch_deviation_of(case.question, evidence, dict(baseline.past))
    if deviation is None or verdict.value is None or verdict.interval is None:
        return verdict
    has_part = evidence.plan.device_type == "cuda" and verdict.rounds > 1  # the interval; not of an imported sample
    reach = math.sqrt(max(0.0, deviation.reach(verdict.confidence) ** 2 - (OF_LAUNCH * has_part) ** 2))
    low, high = verdict.interval
    interval = (
        verdict.value * _farther(low / verdict.value, -reach),
        verdict.value * _farther(high / verdict.value, reach),
    )
    note = f"with the deviation between {deviation.runs} earlier launches ({percent(deviation.sd, 1)})"
    widened = replace(
        verdict, interval=interval, launch_sd=deviation.sd, notes=(*verdict.notes, f"interval {note}"),
        flags=tuple(flag for flag in verdict.flags if flag != THIS_LAUNCH_ONLY),
    )  # fmt: skip
    is_decided = verdict.outcome in ("passed", "failed") and WRONG_DATA not in verdict.flags
    if not is_decided or not interval[0] < verdict.bound_value <= interval[1]:
        return widened
    reason = f"the bound lies inside the interval {note}; measure again on another day"
    return replace(widened, outcome="inconclusive", reason=reason, because=None)


def _farther(ratio: float, reach: float) -> float:
    """An end of an interval relative to its value, moved outwards to the side of `reach`, by the sum of squares."""
    return math.exp(math.copysign(math.hypot(math.log(ratio), reach), reach))


def launch_deviation_of(
    question: Question, evidence: Evidence, past: Mapping[KeyValueSeries, Reference]
) -> LaunchDeviation | None:
    """Deviation of the throughput that a question asks for, on the host with the largest deviation.

    Args:
        question: the arm and the workload.
        evidence: of the run.
        past: earlier values of the same places.

    Returns:
        None unless every host has enough earlier runs.
    """
    arm = question.measured.kind
    by_host: dict[str, list[Reference | None]] = {}
    for value in key_values_of(evidence):
        is_meant = value.metric == THROUGHPUT_PER_GPU.name and value.subject == question.workload.name
        if is_meant and value.arm == arm and value.world_size == question.world_size:
            by_host.setdefault(value.host, []).append(past.get(value.series))
    of_hosts = []
    for references in by_host.values():
        known = [one for one in references if one is not None and one.is_enough]
        if not known:
            return None
        sd = math.sqrt(statistics.fmean(max(one.log_sd, LEAST_SPREAD) ** 2 for one in known))
        of_hosts.append(LaunchDeviation(sd, min(one.number for one in known)))
    return max(of_hosts, default=None)
