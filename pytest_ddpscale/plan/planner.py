"""From requirements to the fewest studies that answer them all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pytest_ddpscale.plan.metric import Metric, required_arms
from pytest_ddpscale.plan.study import Arm, DeviceType, Plan, Scaling, Study
from pytest_ddpscale.plan.workload import Workload

# Fewer rounds never decide: their spread says too little about the spread.
FEWEST_ROUNDS = 5


@dataclass(frozen=True)
class Pace:
    """How long and how often arms are timed.

    Attributes:
        rounds: times every arm is timed at most; a study ends sooner once all its requirements are decided.
        block_s: seconds a timed block aims at.
        warmup_s: untimed seconds before the first round of a study.
    """

    rounds: int
    block_s: float
    warmup_s: float


# GPU: a block holds at least two NVML utilization samples (1/6 s to 1 s apart), and ten seconds heat the
# GPU up. CPU: blocks long enough to average over a scheduler's whims. At most 16 rounds, as many as a fixed design
# would always take that decides when the truth is one standard deviation of a round away from the bound.
PACES: dict[DeviceType, Pace] = {"cuda": Pace(16, 2.0, 10.0), "cpu": Pace(16, 1.2, 2.0)}


@dataclass(frozen=True)
class Question:
    """What one requirement wants to know.

    Attributes:
        metric: what.
        workload: of which training.
        world_size: among how many ranks.
    """

    metric: Metric
    workload: Workload
    world_size: int


def build_plan(sku: str, device_type: DeviceType, questions: Iterable[Question], pace: Pace, seed: int = 0) -> Plan:
    """One study per kind of scaling and workload, with every arm that any question needs.

    The first weak-scaling study, by name, on the most ranks also times them all at once without communication (the arm
    ``each``), so that it can be said which rank is slow: under DDP all of them wait for the slowest.

    Raises:
        ValueError: as `pytest_ddpscale.plan.metric.required_arms`; a loaded thresholds file never does.
    """
    arms: dict[tuple[Scaling, Workload], set[Arm]] = {}
    for question in questions:
        key = (question.metric.scaling, question.workload)
        arms.setdefault(key, set()).update(required_arms(question.metric, question.workload, question.world_size))
    _add_each(arms)
    studies = tuple(
        Study(scaling, workload, tuple(sorted(wanted, key=_by_size)), pace.rounds, pace.block_s, pace.warmup_s)
        for (scaling, workload), wanted in arms.items()
    )
    return Plan(sku, device_type, studies, seed)


def _add_each(arms: dict[tuple[Scaling, Workload], set[Arm]]) -> None:
    """One study is enough: a rank that computes slowly does so whatever it trains."""
    largest = max((arm.world_size for wanted in arms.values() for arm in wanted), default=1)
    candidates = [
        (workload.name, workload, wanted)
        for (scaling, workload), wanted in arms.items()
        if scaling == "weak" and any(arm.world_size == largest for arm in wanted)
    ]
    has_it = any(arm.kind == "each" and arm.world_size == largest for wanted in arms.values() for arm in wanted)
    if largest > 1 and candidates and not has_it:
        # By name, so that the order of the questions changes no study.
        _, workload, wanted = min(candidates, key=lambda candidate: candidate[0])
        wanted.add(Arm("each", largest, workload.batch_size))


def _by_size(arm: Arm) -> tuple[int, str]:
    return (arm.world_size, arm.kind)
