"""The shipped file: what it asks of nodes, what it probes, where the numbers come from, and how long that takes."""

from __future__ import annotations

from dataclasses import replace

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.estimate import TimeEstimate, estimate
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.node_check import NODE_CHECKS
from pytest_ddpscale.plan.planner import PACES, build_plan
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.thresholds.cases import (
    NodeCase,
    cases_for,
    device_type,
    expected_by,
    nightly_uniformity,
    node_expectation,
    training_cases,
)
from pytest_ddpscale.thresholds.model import Requirement, Sku
from pytest_ddpscale.thresholds.parts import Node
from tests.builders.clusters import WHOLE_RUNS_ONLY
from tests.builders.clusters import thresholds as packaged_thresholds
from tests.rows import rows

FILE = packaged_thresholds()
ONE_NODE = Layout(1, 8)
MEASURED = {
    name: sku
    for name, sku in FILE.thresholds.skus.items()
    if sku.detect.device != "none" and name not in WHOLE_RUNS_ONLY
}
GPUS = {name: sku for name, sku in MEASURED.items() if sku.detect.device == "cuda"}
# Those with a bound of their own; the others compare places of the same probes.
PROBES = [
    (name, r) for name, sku in GPUS.items() for r in sku.requirements if r.probe and not r.definition.compares_places
]
WITH_NVSWITCH = ("a100-sxm4-80gb", "a100-sxm4-40gb", "h100", "h200", "b200")
ALWAYS_WARN = {"pcie_under_load", "topology"}
MINUTES_5 = 300.0
BOUNDED = ("all-reduce", "all-gather", "reduce-scatter")  # collectives that DDP and FSDP use, with published values
PUBLISHERS = (
    r"^(Azure/azurehpc-health-checks|Azure/AI-benchmarking-guide|stas00/ml-engineering|zzc0721/\S+"
    r"|li-plus/playground|voipmonitor/rtx6kpro|NVIDIA/nccl#|NVIDIA/nccl-tests issues)\b"
)
# Sent in by users: enough to look at, not to reject a machine.
CROWD = ("zzc0721/", "voipmonitor/", "li-plus/")
# What was sent and what came of it are held at most, and checked in parts.
LARGEST_SHARE_OF_MEMORY = 1 / 4


@rows("sku", FILE.thresholds.skus.values(), ids=FILE.thresholds.skus)
def test_every_sku_is_checked_for_all_that_it_has(sku: Sku) -> None:
    assert {name for name, severity in sku.checks.items() if severity == "warn"} == ALWAYS_WARN & set(sku.checks)
    if sku.detect.device == "cuda":
        lacks = {"bf16": "V100" in (sku.detect.name or ""), "nvlink": sku.node and not sku.node.nvlinks}
        assert set(sku.checks) == {name for name in NODE_CHECKS if not lacks.get(name)}


def test_every_sku_with_a_check_says_what_it_needs() -> None:
    for name, sku in FILE.thresholds.skus.items():
        node = node_expectation(sku)
        assert "pcie" not in sku.checks or None not in (node.pcie_width, node.pcie_generation), name
        assert "nvlink" not in sku.checks or node.nvlinks is not None, name


@rows(("in_file", "asked", "least"), [(None, None, 0), (8, None, 8), (None, 8, 8), (4, 8, 8)])
def test_gpus_that_should_be_there_are_those_of_the_file_or_those_asked_for(
    in_file: int | None, asked: int | None, least: int
) -> None:
    """A plan that asks for GPUs which are not there comes from a session, and not from a line of compiled.txt."""
    sku = replace(MEASURED["cpu"], node=Node.model_validate({"gpus": in_file}))
    assert expected_by(Plan("cpu", "cpu", (), gpus_asked=asked), node_expectation(sku)).gpus_installed == least


def test_a_cpu_is_checked_for_what_means_something_there() -> None:
    assert set(MEASURED["cpu"].checks) == {name for name, check in NODE_CHECKS.items() if check.on_cpu}


def is_on_one_node(requirement: Requirement) -> bool:
    return isinstance(requirement.world_size, int) or requirement.world_size == "node"


def probes_of(sku: str, layout: Layout = ONE_NODE) -> list[Arm]:
    cases = [case for case in cases_for(FILE, sku, layout) if not case.requirement.definition.compares_places]
    return [case.probe for case in cases if isinstance(case, NodeCase) and case.probe is not None]


@rows("sku", GPUS)
def test_messages_fit_the_memory(sku: str) -> None:
    memory_gib = GPUS[sku].detect.memory_gib
    assert memory_gib is not None
    sizes = [probe.operation.message_bytes for probe in probes_of(sku, Layout(2, 8))]
    assert max(size or 0 for size in sizes) <= LARGEST_SHARE_OF_MEMORY * memory_gib * 2**30


def test_probes_are_compared_with_peers_only_if_a_row_asks_for_them() -> None:
    for name, sku in FILE.thresholds.skus.items():
        asked = {
            requirement.probe
            for requirement in sku.requirements
            if requirement.probe and not requirement.definition.compares_places
        }
        assert {
            requirement.probe for requirement in sku.requirements if requirement.definition.compares_places
        } <= asked, name


def test_a_bound_lies_below_what_the_data_sheet_promises() -> None:
    for sku in GPUS:
        for case in cases_for(FILE, sku, ONE_NODE):
            if isinstance(case, NodeCase) and case.peak is not None:
                assert 0.4 * case.peak < case.requirement.bound < case.peak, case.id


@rows("sku", GPUS.values(), ids=GPUS)
def test_a_large_message_has_to_be_faster_than_a_bucket(sku: Sku) -> None:
    within = [r for r in sku.requirements if "all-reduce" in r.probe and is_on_one_node(r)]
    bounds = {Arm(r.probe, 8).operation.message_bytes: r.bound for r in within}
    assert [bound for _, bound in sorted(bounds.items(), key=lambda item: item[0] or 0)] == sorted(bounds.values())


@rows("sku", WITH_NVSWITCH)
def test_links_that_fell_back_to_pcie_keep_no_bound(sku: str) -> None:
    """8x A100 that had lost NVLink reached 20 GB/s; PCIe 5.0 carries 63."""
    pcie_gbps = 20 if sku.startswith("a100") else 63
    for requirement in GPUS[sku].requirements:
        if requirement.metric in ("busbw_gbps", "pair_bandwidth_gbps") and is_on_one_node(requirement):
            assert requirement.bound > 1.5 * pcie_gbps, requirement.probe


def node_health(name: str, ranks_per_node: int) -> TimeEstimate:
    """Of `pytest -m node_health` on one node: all checks, all probes, and what compares ranks."""
    cases, device = cases_for(FILE, name, ONE_NODE), device_type(FILE.thresholds.skus[name])
    training = training_cases(cases)
    asked = [c.question for c in training if c.requirement.metric == "replica_agreement"]
    asked += [c.question for c in nightly_uniformity(cases)]
    probes = [case.probe for case in cases if isinstance(case, NodeCase) and case.probe]
    plan = build_plan(Plan(name, device, (), ranks_per_node=ranks_per_node, survey=True), asked, PACES[device], probes)
    assert plan.probes is not None
    alone = [c.requirement for c in training if c.id.startswith("throughput_per_gpu") and c.requirement.world_size == 1]
    return estimate(plan, samples_per_s={r.workload: r.source.measured or r.bound for r in alone})


@rows("sku", GPUS)
def test_a_node_of_8_gpus_is_decided_in_less_than_5_minutes_even_if_it_takes_all_rounds(sku: str) -> None:
    found = node_health(sku, 8)
    assert found.seconds < found.most_seconds <= MINUTES_5


def test_any_machine_keeps_the_bounds_of_a_cpu() -> None:
    probes = [r for r in MEASURED["cpu"].requirements if r.probe and r.world_size != "all"]
    assert {probe.operation.kind for probe in probes_of("cpu")} == {
        "matmul", "memory-copy", "host-to-device", *BOUNDED, "send-recv",
    }  # fmt: skip
    for requirement in probes:
        assert requirement.source.measured is not None
        assert requirement.bound <= requirement.source.measured / 20, requirement.probe


BETWEEN = (
    ("weak_scaling_efficiency", "2 nodes"), ("weak_scaling_efficiency", "all"), ("busbw_gbps", "all"),
    ("pair_bandwidth_gbps", "all"),
)  # fmt: skip


WEAK_OF_R50 = ("weak_scaling_efficiency", "resnet50-fp16")


def plan_of(sku: str, layout: Layout) -> tuple[list[str], Plan]:
    """What a whole session asks there, and its plan."""
    cases, device = cases_for(FILE, sku, layout), device_type(FILE.thresholds.skus[sku])
    questions = [case.question for case in training_cases(cases)]
    plan = build_plan(
        Plan(sku, device, (), nodes=layout.nodes, ranks_per_node=layout.ranks_per_node, survey=True),
        questions,
        PACES[device],
        probes_of(sku, layout),
    )
    return [case.id for case in cases], plan


@rows("sku", [*GPUS, "cpu"])
@rows("nodes", [2, 3])
def test_packets_go_between_all_nodes_of_a_run(sku: str, nodes: int) -> None:
    layout = Layout(nodes, 8)
    asked, plan = plan_of(sku, layout)
    assert any(study.world_size == layout.world_size for study in plan.studies)
    assert plan.probes is not None
    between = {probe.operation.kind: probe for probe in plan.probes.arms if probe.world_size == layout.world_size}
    assert set(between) == {"all-reduce", "send-recv"}
    pairs = layout.groups_of_round(between["send-recv"])
    assert {rank for pair in pairs for rank in pair} == set(range(layout.world_size))
    assert all(one // 8 != other // 8 for one, other in pairs)
    assert plan.pairs is not None, "which tell whose link is slow"
    assert len(set(asked)) == len(asked)


@rows("sku", [*GPUS, "cpu"])
def test_on_one_node_nothing_between_nodes_is_asked_or_counted_as_missing(sku: str) -> None:
    for ranks in (1, 8):
        asked = [case.id for case in cases_for(FILE, sku, Layout(1, ranks))]
        assert not [name for name in asked if name.endswith(("-all]", "nodes]"))]
    assert plan_of(sku, ONE_NODE)[1].pairs is None


def test_ranks_of_cpus_that_are_one_a_node_are_asked_what_all_nodes_do_and_no_number_of_them() -> None:
    asked, plan = plan_of("cpu", Layout(4, 1))
    sizes = {study.id: {arm.world_size for arm in study.arms} for study in plan.studies}
    assert sizes == {"weak/shuffle96-fp32": {1}, "weak/shufflenet-fp32": {1, 2, 4}}
    assert not [name for name in asked if "2rank" in name]
    assert [name for name in plan_of("cpu", Layout(1, 1))[0] if "2rank" in name], "on one node they are missing"
