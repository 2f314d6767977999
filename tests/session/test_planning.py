"""What can be measured on the nodes there are, and what is measured besides what is asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytest_ddpscale.launch.launcher import Cluster
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.session.evidence import EvidenceSource
from pytest_ddpscale.session.open import THIS_MACHINE
from pytest_ddpscale.thresholds.cases import AnyCase, Case
from tests.approved import assert_approved
from tests.builders.judged import WORKLOAD, check_case, make_case
from tests.builders.probes import ALL_REDUCE, MATMUL, probe_case
from tests.builders.sessions import planning

GPUS, UNDER_LOAD, TRANSPORT = check_case("gpus"), check_case("ecc_under_load"), check_case("transport")
ALL_REDUCES, PRODUCTS = probe_case(ALL_REDUCE, 10.0), probe_case(MATMUL, 10.0)
TWO, THREE = Cluster(2, ("n1", "n2")), Cluster(3, ("n1", "n2", "n3"))


def training(world_size: int, placement: str = "packed") -> Case:
    return make_case("throughput_per_gpu", 50.0, world_size, placement=placement)


def strong(world_size: int) -> Case:
    """What times no arm besides that of all its ranks, and one rank alone."""
    return make_case("strong_scaling_speedup", 1.0, world_size, replace(WORKLOAD, global_batch_size=48))


EIGHT, SPREAD, ABSENT = training(8), training(2, "spread"), "needs 8 GPUs on one node; a node has 4 here"
# What is lacking is said, and leaves the others to be measured. A plan looks at all GPUs of all nodes once anything is
# checked or probed, each probe once, at the pace that the user sets; a stretch ends long before ranks that record
# nothing are ended.
PLANNED: dict[str, tuple[EvidenceSource, Sequence[AnyCase]]] = {
    "8 of 4 GPUs": (planning(4), [EIGHT, training(1)]), "8 of 4 cores": (planning(4, sku="cpu"), [EIGHT]),
    "a probe of 8 of 4 GPUs": (planning(4), [ALL_REDUCES, training(1)]), "a check": (planning(1), [GPUS]),
    "a laptop": (planning(None, plans_only=True), [training(1024)]),
    "spread over one node": (planning(), [SPREAD, training(1)]),
    "spread, on a laptop": (planning(plans_only=True), [SPREAD]),
    "spread over two nodes": (planning(16, TWO), [SPREAD]),
    "what thresholds lack": (planning(8, TWO), [replace(EIGHT, missing=ABSENT), training(1)]),
    "probes beside training": (planning(), [EIGHT, ALL_REDUCES, PRODUCTS, probe_case(ALL_REDUCE, 20.0)]),
    "and a check": (planning(24, THREE), [training(4), GPUS]),
    "and a probe": (planning(24, THREE), [training(4), PRODUCTS]),
    "a pace": (planning(ddp_rounds="9", ddp_block="7s", ddp_inactivity_limit="10m"), [EIGHT]),
    "a shorter limit": (planning(ddp_rounds="9", ddp_inactivity_limit="2m"), [EIGHT]),
}  # fmt: skip
# Load is added where GPUs would be idle: checks under load need every GPU to work, and that of transports every rank of
# all nodes to communicate.
BESIDE: dict[str, tuple[Sequence[AnyCase], int]] = {
    "nothing": ([], 8), "nothing, of one GPU": ([], 1), "one GPU": ([training(1)], 8), "four GPUs": ([training(4)], 8),
    "all GPUs": ([EIGHT], 8), "a probe of two GPUs": ([probe_case(Arm("all-reduce-1gib", 2), 10.0)], 8),
    "a probe of all GPUs": ([ALL_REDUCES], 8), "a probe of single GPUs": ([PRODUCTS], 8),
    "one of three nodes": ([EIGHT], 24), "all of three nodes": ([strong(24)], 24),
    "two of three nodes": ([strong(16)], 24),
}  # fmt: skip


def test_what_is_asked_is_planned_as_approved() -> None:
    said = list[str]()
    for name, (source, cases) in PLANNED.items():
        plan = source.plan_for(cases)
        said.append(f"{name}: {plan.nodes} nodes of {plan.ranks_per_node}, survey: {plan.survey}")
        said += [f"  {case.id}: {source.why_not(case) or 'can be measured'}" for case in cases]
        for study in plan.studies:
            arms = ", ".join(arm.name for arm in study.arms)
            said.append(
                f"  {study.id}: {arms}; {study.rounds} rounds of {study.block_s} s, {study.sustained_s} s in a stretch"
            )
        said += [f"  probe {probe.name}" for probe in (plan.probes.arms if plan.probes else ())]
    for check in (GPUS, UNDER_LOAD, TRANSPORT):
        for name, (cases, devices) in BESIDE.items():
            plan = planning(devices, THREE if devices > 8 else THIS_MACHINE).plan_for([check, *cases])
            probes = ", ".join(probe.name for probe in plan.probes.arms) if plan.probes else "no probe"
            said.append(f"{check.id} beside {name}: {probes}")
    assert_approved("asked.txt", "\n".join(said) + "\n")
