"""How long measuring will take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_ddpscale.plan.pairing import first_rounds, most_rounds
from pytest_ddpscale.plan.probe import ProbeStudy
from pytest_ddpscale.plan.study import FEWEST_STEPS_PER_BLOCK, STEPS_BEFORE_TIMING, Arm, Plan, Study

# Measured on two CPU cores (benchmarks/gang_reuse.py) and rounded up.
STARTUP_S = 15.0
OVERHEAD_PER_BLOCK_S = 0.4
# After which most studies are decided: the mean of benchmarks/wrong_verdicts.py over margins from 2 to 10 %.
TYPICAL_ROUNDS = 11
# Of one probe: buffers made, the result verified, a communicator where it needs one.
PROBE_SETUP_S = 2.0
# One round of node pairs: a communicator of two ranks each, and twenty all-reduces.
PAIRS_ROUND_S = 2.0
# The survey of all nodes at once: NVML, and torch imported to be asked what it was built for.
SURVEY_S = 5.0
UNKNOWN: Mapping[str, float] = {}


@dataclass(frozen=True)
class TimeEstimate:
    """Wall time if studies are decided after typically many rounds, or need all; devices times hours in the former."""

    seconds: float
    most_seconds: float
    device_hours: float


def study_seconds(study: Study, img_per_s: Mapping[str, float] = UNKNOWN, rounds: int | None = TYPICAL_ROUNDS) -> float:
    """Wall time of one study, without the start-up of its gang.

    Long steps, by the throughput per GPU that is expected of its workload, make long blocks. None stands for as many
    rounds as its limit, which it never exceeds.
    """
    per_round = round_seconds(study, study.arms, img_per_s)
    return warm_up_seconds(study, img_per_s) + min(study.rounds, rounds or study.rounds) * per_round


def warm_up_seconds(study: Study, img_per_s: Mapping[str, float] = UNKNOWN) -> float:
    """Wall time before the first round: each arm has at least one block of the fewest steps."""
    steps_s = [_step_s(study, arm, img_per_s) for arm in study.arms]
    return max(study.warmup_s, sum((STEPS_BEFORE_TIMING + FEWEST_STEPS_PER_BLOCK) * s for s in steps_s))


def round_seconds(study: Study, arms: Sequence[Arm], img_per_s: Mapping[str, float] = UNKNOWN) -> float:
    """Wall time of one round that times these arms."""
    steps_s = [_step_s(study, arm, img_per_s) for arm in arms]
    blocks_s = sum(max(study.block_s, FEWEST_STEPS_PER_BLOCK * s) + STEPS_BEFORE_TIMING * s for s in steps_s)
    return blocks_s + OVERHEAD_PER_BLOCK_S * len(arms)


def probes_seconds(study: ProbeStudy, rounds: int | None = TYPICAL_ROUNDS) -> float:
    """Wall time of all probes, without the start-up of their gang; `rounds` as in `study_seconds`."""
    times = min(study.rounds, rounds or study.rounds)
    return len(study.probes) * (PROBE_SETUP_S + times * (study.block_s + OVERHEAD_PER_BLOCK_S))


def estimate(plan: Plan, *, isolate: bool = False, img_per_s: Mapping[str, float] = UNKNOWN) -> TimeEstimate:
    """Wall time of the whole plan with one gang a launch, or with one for each study."""
    ids = plan.study_ids
    gangs = len(ids) if isolate else len({plan.launch_of(study) for study in ids})
    typical, most = (
        gangs * STARTUP_S
        + SURVEY_S * plan.survey
        + (probes_seconds(plan.probes, rounds) if plan.probes else 0.0)
        + (PAIRS_ROUND_S * pair_rounds(plan.nodes) if plan.pairs else 0.0)
        + sum(study_seconds(study, img_per_s, None if plan.launches > 1 else rounds) for study in plan.studies)
        for rounds, pair_rounds in ((TYPICAL_ROUNDS, lambda nodes: len(first_rounds(nodes))), (None, most_rounds))
    )
    return TimeEstimate(typical, most, typical * plan.world_size / 3600)


def _step_s(study: Study, arm: Arm, img_per_s: Mapping[str, float]) -> float:
    speed = img_per_s.get(study.workload.name)
    return arm.batch_size / speed if speed else 0.0
