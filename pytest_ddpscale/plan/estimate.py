"""How long measuring will take."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_ddpscale.plan.study import Plan, Study

# Rough on purpose; measured on two CPU cores (benchmarks/gang_reuse.py) and rounded up.
STARTUP_S = 15.0
OVERHEAD_PER_BLOCK_S = 0.5


@dataclass(frozen=True)
class Estimate:
    """Wall time and what it occupies.

    Attributes:
        seconds: wall time.
        device_hours: devices held, times hours.
    """

    seconds: float
    device_hours: float


def study_seconds(study: Study) -> float:
    """Wall time of one study, without the start-up of its gang."""
    per_round = len(study.arms) * (study.block_s + OVERHEAD_PER_BLOCK_S)
    return study.warmup_s + study.rounds * per_round


def estimate(plan: Plan, *, isolate: bool = False) -> Estimate:
    """Wall time of the whole plan with one gang, or with one for each study."""
    gangs = len(plan.studies) if isolate else min(1, len(plan.studies))
    seconds = gangs * STARTUP_S + sum(map(study_seconds, plan.studies))
    return Estimate(seconds, seconds * plan.world_size / 3600)
