"""The shipped file: what it asks of nodes, what it probes, where the numbers come from, and how long that takes."""

from __future__ import annotations

import re
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
MOST_PROBES = 12
PUBLISHERS = (
    r"^(Azure/azurehpc-health-checks|Azure/AI-benchmarking-guide|stas00/ml-engineering|zzc0721/\S+"
    r"|li-plus/playground|voipmonitor/rtx6kpro|NVIDIA/nccl#|NVIDIA/nccl-tests issues)\b"
)
# Sent in by users: enough to look at, not to reject a machine.
CROWD = ("zzc0721/", "voipmonitor/", "li-plus/")
# What was sent and what came of it are held at most, and checked in parts.
LARGEST_SHARE_OF_MEMORY = 1 / 4


@rows("sku", MEASURED.values(), ids=MEASURED)
def test_checks_reject_except_those_that_can_be_wrong_without_harm(sku: Sku) -> None:
    assert sku.checks
    for name, severity in sku.checks.items():
        assert severity == ("warn" if name in ALWAYS_WARN else "fail"), name


@rows("sku", GPUS.values(), ids=GPUS)
def test_every_gpu_is_checked_for_all_that_it_has(sku: Sku) -> None:
    assert sku.node is not None
    lacks = set() if sku.node.nvlinks else {"nvlink"}
    if not any(workload.precision == "bf16" for workload in sku.workloads.values()):
        lacks.add("bf16")
    assert set(sku.checks) == set(NODE_CHECKS) - lacks


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


@rows(
    ("prefix", "generation", "nvlinks", "ecc"),
    [
        ("v100-sxm2", 3, 6, True), ("a100-sxm4", 4, 12, True), ("a100-pcie", 4, None, True),
        ("h100-pcie", 5, None, True), ("h200", 5, 18, True), ("b200", 5, 18, True), ("rtx-pro-6000", 5, 0, None),
        ("a6000", 4, None, None),
    ],
)  # fmt: skip
def test_nodes_are_those_of_the_data_sheets(
    prefix: str, generation: int, nvlinks: int | None, ecc: bool | None
) -> None:
    nodes = [sku.node for name, sku in GPUS.items() if name.startswith(prefix)]
    assert nodes
    for node in nodes:
        assert node is not None
        assert (node.pcie_generation, node.pcie_width, node.nvlinks, node.ecc) == (generation, 16, nvlinks, ecc)


def is_on_one_node(requirement: Requirement) -> bool:
    return isinstance(requirement.world_size, int) or requirement.world_size == "node"


def probes_of(sku: str, layout: Layout = ONE_NODE) -> list[Arm]:
    cases = [case for case in cases_for(FILE, sku, layout) if not case.requirement.definition.compares_places]
    return [case.probe for case in cases if isinstance(case, NodeCase) and case.probe is not None]


@rows("sku", GPUS)
def test_every_gpu_is_probed_for_computing_memory_host_and_links(sku: str) -> None:
    probes = probes_of(sku)
    assert len(probes) == len(set(probes)) <= MOST_PROBES
    precisions = {workload.precision for workload in GPUS[sku].workloads.values()} - {"fp32"}
    assert {p.operation.precision for p in probes if p.operation.kind == "matmul"} - {"fp8"} == precisions
    kinds = {probe.operation.kind for probe in probes}
    assert kinds >= {"memory-copy", "host-to-device", "device-to-host", *BOUNDED, "send-recv"}
    assert Arm("all-reduce-32mib", 8) in probes, "the size of DDP's buckets"


@rows("sku", GPUS)
def test_messages_fit_the_memory(sku: str) -> None:
    memory_gib = GPUS[sku].detect.memory_gib
    assert memory_gib is not None
    sizes = [probe.operation.message_bytes for probe in probes_of(sku, Layout(2, 8))]
    assert max(size or 0 for size in sizes) <= LARGEST_SHARE_OF_MEMORY * memory_gib * 2**30


def test_probes_are_compared_with_peers_only_if_a_row_asks_for_them() -> None:
    for name, sku in FILE.thresholds.skus.items():
        asked = {one.probe for one in sku.requirements if one.probe and not one.definition.compares_places}
        assert {one.probe for one in sku.requirements if one.definition.compares_places} <= asked, name


def test_what_peers_are_compared_by_rejects_but_cannot_accept() -> None:
    found = [(name, one) for name, sku in MEASURED.items() for one in sku.requirements if one.definition.reads_own_pace]
    assert {(one.severity, one.provisional) for _, one in found} == {("fail", True)}
    assert {one.bound for name, one in found if name != "cpu"} == {1.05, 1.03}
    assert {one.bound for name, one in found if name == "cpu"} == {2.0}


def test_only_the_newest_have_fp8_and_no_v100_bf16() -> None:
    fp8 = {name for name, r in PROBES if r.probe == "matmul-fp8"}
    assert fp8 == {"h100", "h200", "b200"}
    assert not any(r.probe == "matmul-bf16" for name, r in PROBES if name.startswith("v100"))


@rows("sku", GPUS)
def test_every_probe_says_where_its_number_comes_from(sku: str) -> None:
    for requirement in (requirement for name, requirement in PROBES if name == sku):
        source, published = requirement.source, requirement.source.reference or ""
        if requirement.provisional:
            assert requirement.severity == "warn", requirement
            assert source.reasoning, requirement
            assert source.measured is None, f"a measured value has a reference: {requirement}"
        else:
            assert re.match(PUBLISHERS, published), requirement
            assert source.margin_pct is not None, requirement
            assert source.margin_pct > 0 or "its pass limits" in published, "only what is a bound already"
            assert requirement.severity == "warn" or not published.startswith(CROWD), requirement


def test_a_published_probe_is_cited_by_the_sku_it_was_measured_on_and_no_other() -> None:
    cited_by: dict[str, set[str]] = {}
    for sku, requirement in PROBES:
        if requirement.source.reference:
            cited_by.setdefault(requirement.source.reference, set()).add(sku)
    several = {re.split("[,:]", reference)[0]: skus for reference, skus in cited_by.items() if len(skus) > 1}
    assert several == {
        "NVIDIA/nccl-tests issues": {"h100", "h200", "b200"},  # a port of the network, whatever GPU is behind it
        "stas00/ml-engineering@744d01e": {"a100-sxm4-80gb", "h100"},
        "stas00/ml-engineering@082816f": {"h200", "b200"},
        "zzc0721/torch-performance-test-data": {"rtx-pro-6000-server", "rtx-pro-6000-workstation"},
        "voipmonitor/rtx6kpro@29f3863": {one for one in GPUS if one.startswith("rtx-pro-6000")},
    }, "they name each of them"


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


@rows(
    ("sku", "message", "large", "bucket"),
    [
        ("v100-sxm2-32gb", "8gib", 110, None), ("a100-sxm4-80gb", "8gib", 228, 132.77),
        ("a100-sxm4-40gb", "8gib", 228, None), ("h100", "8gib", 430, 295.53), ("h200", "8gib", 431, 275.84),
        ("b200", "16gib", 838.97, 325.97),
    ],
)  # fmt: skip
def test_published_bandwidths_stand_behind_the_bounds_and_reject(
    sku: str, message: str, large: float, bucket: float | None
) -> None:
    lines = {r.probe: r for r in GPUS[sku].requirements if r.metric == "busbw_gbps"}
    for name, measured in ((f"all-reduce-{message}", large), ("all-reduce-32mib", bucket)):
        if measured is not None:
            assert (lines[name].source.measured, lines[name].severity) == (measured, "fail")


@rows("sku", WITH_NVSWITCH)
def test_links_that_fell_back_to_pcie_keep_no_bound(sku: str) -> None:
    """8x A100 that had lost NVLink reached 20 GB/s; PCIe 5.0 carries 63."""
    pcie_gbps = 20 if sku.startswith("a100") else 63
    for requirement in GPUS[sku].requirements:
        if requirement.metric in ("busbw_gbps", "pair_bandwidth_gbps") and is_on_one_node(requirement):
            assert requirement.bound > 1.5 * pcie_gbps, requirement.probe


@rows("sku", MEASURED.values(), ids=MEASURED)
def test_every_sku_is_compared_with_its_own_past_which_only_warns(sku: Sku) -> None:
    [line] = [r for r in sku.requirements if r.metric == "no_regression"]
    assert (line.severity, line.provisional) == ("warn", True)


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


def test_energy_is_asked_where_it_was_published_and_only_warns() -> None:
    found = {name: r for name, sku in MEASURED.items() for r in sku.requirements if r.metric == "images_per_joule"}
    assert {name: r.source.measured for name, r in found.items()} == {"v100-sxm2-16gb": 1.77, "a100-sxm4-80gb": 2.964}
    assert {r.severity for r in found.values()} == {"warn"}


BETWEEN = (
    ("weak_scaling_efficiency", "2 nodes"), ("weak_scaling_efficiency", "all"), ("busbw_gbps", "all"),
    ("pair_bandwidth_gbps", "all"),
)  # fmt: skip


@rows("sku", GPUS)
def test_every_gpu_is_asked_what_several_nodes_do_together(sku: str) -> None:
    asked = [r for r in GPUS[sku].requirements if not is_on_one_node(r)]
    assert all(r.severity == "warn" for r in asked), "networks differ"
    between = [r for r in asked if r.provisional]
    assert sorted((r.metric, r.world_size) for r in between) == sorted(BETWEEN)
    [node] = [r for r in GPUS[sku].requirements if (r.metric, r.subject, r.world_size) == (*WEAK_OF_R50, "node")]
    two, every = (next(r for r in between if (r.metric, r.world_size) == one) for one in BETWEEN[:2])
    assert node.bound > two.bound > every.bound, "no more is asked of several nodes than of one"


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
