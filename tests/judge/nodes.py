"""Several nodes whose speed is known beforehand."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS, Pace, build_plan
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.records import SeededStep
from pytest_ddpscale.thresholds.cases import Case
from tests.builders.judged import ALONE_SAMPLES_PER_S, CHECKSUM, FLOPS_PER_IMAGE, make_measurement
from tests.builders.measurements import Measurement
from tests.builders.rounds import columns_of

ROUNDS = FEWEST_ROUNDS + 1
# How many times slower a rank computes; of its node and local rank.
Slowness = Callable[[int, int], float]


def equal(node: int, local_rank: int) -> float:
    return 1.0


def slow_rank(which: int, local: int, ratio: float = 1.3) -> Slowness:
    return lambda node, local_rank: ratio if (node, local_rank) == (which, local) else 1.0


def plan_of_nodes(cases: Sequence[Case], nodes: int, ranks_per_node: int) -> Plan:
    """What a session plans for these cases."""
    questions = [case.question for case in cases]
    return build_plan(
        Plan("a100", "cuda", (), nodes=nodes, ranks_per_node=ranks_per_node), questions, Pace(16, 1.0, 1.0)
    )


def measure_nodes(
    plan: Plan, slowness: Slowness = equal, rounds: int = ROUNDS, without: Collection[int] = ()
) -> list[Measurement]:
    """Every arm of every study in every round; under DDP the slowest rank of a group sets its pace.

    Args:
        plan: what to measure.
        slowness: of ranks that compute by themselves.
        rounds: how many.
        without: indices of nodes that measured nothing.
    """
    layout = plan.layout
    return [
        _block(study, arm, number, rank, group, layout, slowness)
        for study in plan.studies
        for number in range(rounds)
        for arm in study.arms
        for group in layout.groups(arm, study.turn(plan.seed, number))
        for rank in group
        if rank // layout.ranks_per_node not in without
    ]


def _block(
    study: Study, arm: Arm, number: int, rank: int, group: Sequence[int], layout: Layout, slowness: Slowness
) -> Measurement:
    def slower(rank: int) -> float:
        return slowness(*divmod(rank, layout.ranks_per_node))

    ratio = max(map(slower, group)) if arm.kind == "ddp" else slower(rank)
    node, local_rank = divmod(rank, layout.ranks_per_node)
    # Blocks of a round differ a little, or an interval would have no width.
    pace = ALONE_SAMPLES_PER_S / ratio * (1 + 0.001 * ((number + (arm.kind == "alone")) % 3))
    return make_measurement(study.id, arm, number, rank, pace, host=f"n{node}", local_rank=local_rank)


def nodes_evidence(plan: Plan, measurements: Sequence[Measurement]) -> Evidence:
    """A whole run."""
    seeded = {
        study.id: {
            Place(f"n{node}", local, f"GPU-{rank}"): SeededStep(rank=rank, checksum=CHECKSUM)
            for rank in plan.layout.ranks(study.arms)
            for node, local in [divmod(rank, plan.layout.ranks_per_node)]
        }
        for study in plan.studies
    }
    flops = {study.id: FLOPS_PER_IMAGE for study in plan.studies}
    return Evidence(plan, columns_of(measurements), {}, flops, seeded)
