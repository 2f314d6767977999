"""Estimates the wall time of measuring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.pairing import PairStudy, first_rounds, most_rounds
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.plan.study import FEWEST_STEPS_PER_BLOCK, STEPS_BEFORE_TIMING, Plan, ProbeStudy, Study

# Measured on two CPU cores and rounded up.
STARTUP_S = 15.0
OVERHEAD_PER_BLOCK_S = 0.4
# Rounds after which most studies are decided: mean of benchmarks/sequences.py over margins from 2 to 10 %.
TYPICAL_ROUNDS = 11
# Setup of one probe: allocate buffers, verify the result, create a communicator if needed.
PROBE_SETUP_S = 2.0
# One round of node pairs: a communicator of two ranks each, and twenty all-reduces.
PAIRS_ROUND_S = 2.0
# Survey of all nodes at once: NVML, and importing torch for its build facts.
SURVEY_S = 5.0
UNKNOWN: Mapping[str, float] = {}


class TimeEstimate(NamedTuple):
    """Estimated wall time.

    Attributes:
        seconds: if studies are decided after the typical number of rounds.
        most_seconds: if studies need all rounds.
        device_hours: devices times hours for `seconds`.
    """

    seconds: float
    most_seconds: float
    device_hours: float


class StudyTime(NamedTuple):
    """Expected wall time of one study, of the probes or of the pairs, without the start-up of their gang.

    Attributes:
        once_s: before the first round.
        round_s: of one round.
        fewest: rounds before the earliest decision.
        usual: rounds after which most are decided.
        most: limit of rounds.
    """

    once_s: float
    round_s: float
    fewest: int
    usual: int
    most: int

    def seconds(self, rounds: float) -> float:
        """Until that many rounds have ended."""
        return self.once_s + rounds * self.round_s


def study_times(plan: Plan, samples_per_s: Mapping[str, float] = UNKNOWN) -> dict[str, StudyTime]:
    """Expected time, by id, of all that the plan times in rounds; whole training runs are left out.

    `samples_per_s` is the expected throughput per GPU by workload: slow steps make blocks longer.
    """
    times: dict[str, StudyTime] = {}
    for study in plan.timed:
        if isinstance(study, PairStudy):
            first = len(first_rounds(plan.nodes))
            times[study.id] = StudyTime(0.0, PAIRS_ROUND_S, first, first, most_rounds(plan.nodes))
            continue
        fewest, most, number = FEWEST_ROUNDS, study.rounds, len(study.arms)
        if isinstance(study, ProbeStudy):
            once_s, round_s = number * PROBE_SETUP_S, number * (study.block_s + OVERHEAD_PER_BLOCK_S)
            fewest = max(fewest, study.swept_rounds)
        else:
            once_s = warm_up_seconds(study, samples_per_s)
            round_s = round_seconds(study, study.arms, samples_per_s)
        times[study.id] = StudyTime(once_s, round_s, min(fewest, most), min(TYPICAL_ROUNDS, most), most)
    return times


def warm_up_seconds(study: Study, samples_per_s: Mapping[str, float] = UNKNOWN) -> float:
    """Wall time before the first round: each arm runs at least one block of minimum length."""
    steps_s = [_step_s(study, arm, samples_per_s) for arm in study.arms]
    first_s = sum((STEPS_BEFORE_TIMING + FEWEST_STEPS_PER_BLOCK) * s for s in steps_s)
    return max(study.warmup_s, first_s) + study.sustained_s


def round_seconds(study: Study, arms: Sequence[Arm], samples_per_s: Mapping[str, float] = UNKNOWN) -> float:
    """Wall time of one round that times these arms."""
    steps_s = [_step_s(study, arm, samples_per_s) for arm in arms]
    blocks_s = sum(max(study.block_s, FEWEST_STEPS_PER_BLOCK * s) + STEPS_BEFORE_TIMING * s for s in steps_s)
    return blocks_s + OVERHEAD_PER_BLOCK_S * len(arms)


def estimate(plan: Plan, *, isolate: bool = False, samples_per_s: Mapping[str, float] = UNKNOWN) -> TimeEstimate:
    """Wall time of the whole plan with one gang per launch, or with `isolate` one per study."""
    ids, times = plan.study_ids, study_times(plan, samples_per_s).values()
    gangs = len(ids) if isolate else len({plan.launch_of(study) for study in ids})
    started_s = gangs * STARTUP_S + SURVEY_S * plan.survey
    typical = started_s + sum(time.seconds(time.usual) for time in times)
    most = started_s + sum(time.seconds(time.most) for time in times)
    return TimeEstimate(typical, most, typical * plan.world_size / 3600)


def _step_s(study: Study, arm: Arm, samples_per_s: Mapping[str, float]) -> float:
    speed = samples_per_s.get(study.workload.name)
    return arm.batch_size / speed if speed else 0.0
