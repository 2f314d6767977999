"""What can be measured on the nodes there are, and what is measured besides what is asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pytest_ddpscale.launch.launcher import Cluster
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.session.evidence import EvidenceSource
from pytest_ddpscale.session.open import THIS_MACHINE
from pytest_ddpscale.thresholds.cases import AnyCase, Case
from tests.approved import assert_approved
from tests.builders.judged import WORKLOAD, check_case, make_case
from tests.builders.probes import ALL_REDUCE, MATMUL, probe_case
from tests.builders.sessions import planning
from tests.rows import rows

GPUS, UNDER_LOAD, TRANSPORT = check_case("gpus"), check_case("ecc_under_load"), check_case("transport")


def training(world_size: int, **keys: Any) -> Case:
    return make_case("throughput_per_gpu", 50.0, world_size, **keys)


def strong(world_size: int) -> Case:
    """What times no arm besides that of all its ranks, and one rank alone."""
    return make_case("strong_scaling_speedup", 1.0, world_size, replace(WORKLOAD, global_batch_size=48))


def probes_of(plan: Plan) -> list[str]:
    return [probe.name for probe in plan.probes.arms] if plan.probes else []


def planned(cases: Sequence[AnyCase], devices: int | None = 8, cluster: Cluster = THIS_MACHINE) -> Plan:
    return planning(devices, cluster).plan_for(cases)


TWO, ABSENT = Cluster(2, ("n1", "n2")), "needs 8 GPUs on one node; a node has 4 here"
SPREAD = training(2, placement="spread")


@rows(
    ("source", "case", "why"),
    [
        (planning(4), training(8), "needs 8 GPUs; 4 can be used here"),
        (planning(4, sku="cpu"), training(8), "needs 8 ranks; 4 can be used here"),
        (planning(4), probe_case(ALL_REDUCE, 10.0), "needs 8 GPUs; 4 can be used here"),
        (planning(1), GPUS, None),
        (planning(None, plans_only=True), training(1024), None),
        (planning(), SPREAD, "needs several nodes to spread ranks over; there is 1"),
        (planning(plans_only=True), SPREAD, None),
        (planning(16, TWO), SPREAD, None),
        (planning(8, TWO), replace(training(8), missing=ABSENT), ABSENT),
    ],
)
def test_what_is_lacking_is_said_and_leaves_the_others_to_be_measured(
    source: EvidenceSource, case: AnyCase, why: str | None
) -> None:
    assert source.why_not(case) == why
    plans = source.plan_for([case, training(1)]), source.plan_for([training(1)])
    assert (plans[0] == plans[1]) == (why is not None)


def test_a_plan_has_a_survey_if_any_check_is_asked_and_probes_each_once() -> None:
    plan = planned([GPUS])
    assert (plan.survey, plan.study_ids) == (True, ())
    plan = planned([training(8), probe_case(ALL_REDUCE, 10.0), probe_case(MATMUL, 10.0), probe_case(ALL_REDUCE, 20.0)])
    assert (plan.survey, probes_of(plan)) == (False, [ALL_REDUCE.name, MATMUL.name])


def test_a_plan_looks_at_all_gpus_of_all_nodes_once_anything_is_checked_or_probed() -> None:
    three = Cluster(3, ("n1", "n2", "n3"))
    assert planned([training(4)], 24, three).layout.ranks_per_node == 4
    for more in (GPUS, probe_case(MATMUL, 10.0)):
        plan = planned([training(4), more], 24, three)
        assert (plan.nodes, plan.ranks_per_node) == (3, 8)
    nobody_knows = planning(None, Cluster(4, is_elsewhere=True), plans_only=True)
    assert nobody_knows.plan_for([training(8), GPUS]).nodes == 1


def test_a_plan_goes_at_the_pace_that_the_user_sets() -> None:
    """A stretch ends long before ranks that record nothing are ended."""
    for limit, stretch_s in (("10m", 120.0), ("2m", 60.0)):
        source = planning(ddp_rounds="9", ddp_block="7s", ddp_inactivity_limit=limit)
        [study] = source.plan_for([training(8)]).studies
        assert (study.rounds, study.block_s, study.sustained_s) == (9, 7.0, stretch_s)


BESIDE: dict[str, tuple[Sequence[AnyCase], int]] = {
    "nothing": ([], 8), "nothing, of one GPU": ([], 1), "one GPU": ([training(1)], 8), "four GPUs": ([training(4)], 8),
    "all GPUs": ([training(8)], 8), "a probe of two GPUs": ([probe_case(Arm("all-reduce-1gib", 2), 10.0)], 8),
    "a probe of all GPUs": ([probe_case(ALL_REDUCE, 10.0)], 8),
    "a probe of single GPUs": ([probe_case(MATMUL, 10.0)], 8),
    "one of three nodes": ([training(8)], 24), "all of three nodes": ([strong(24)], 24),
    "two of three nodes": ([strong(16)], 24),
}  # fmt: skip


def test_load_is_added_where_gpus_would_be_idle() -> None:
    """Checks under load need every GPU to work, and that of transports every rank of all nodes to communicate."""
    three, said = Cluster(3, ("n0", "n1", "n2")), list[str]()
    for name, (cases, devices) in BESIDE.items():
        for check in (GPUS, UNDER_LOAD, TRANSPORT):
            probes = probes_of(planned([check, *cases], devices, three if devices > 8 else THIS_MACHINE))
            said.append(f"{check.id} beside {name}: {', '.join(probes) or 'no probe'}")
    assert_approved("load.txt", "\n".join(said) + "\n")
