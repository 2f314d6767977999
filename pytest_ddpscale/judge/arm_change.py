"""Throughput of one arm of a study over that of another, with an interval."""

from __future__ import annotations

from pytest_ddpscale.judge.estimating import Found, estimate_of
from pytest_ddpscale.judge.rounds import all_groups
from pytest_ddpscale.judge.samples import ArmSamples
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.per_round import PerRound
from pytest_ddpscale.plan.study import Study
from pytest_ddpscale.run.evidence import Evidence


def throughput_ratio(evidence: Evidence, study: Study, arm: Arm, baseline: Arm, confidence: float) -> Found | None:
    """Ratio of images per second and GPU of two arms, taken within each round that both have.

    Args:
        confidence: of the interval, valid for all rounds together, 0 … 1.

    Returns:
        With an interval from eight rounds on; None if no round has both.
    """
    ratios = list(samples_per_s(evidence, study, arm) / samples_per_s(evidence, study, baseline))
    return estimate_of(ratios, "factors", confidence) if ratios else None


def throughput(evidence: Evidence, study: Study, arm: Arm, confidence: float) -> Found | None:
    """Images per second and GPU of an arm, at the slowest rank's pace; an interval as in `throughput_ratio`."""
    samples = list(samples_per_s(evidence, study, arm))
    return estimate_of(samples, "factors", confidence) if samples else None


def samples_per_s(evidence: Evidence, study: Study, arm: Arm) -> PerRound:
    """Images per second and GPU in each round of an arm."""
    return ArmSamples(all_groups(evidence.columns, study.id, arm, evidence.plan.layout)).samples_per_s_per_gpu
