"""What a SKU and a plan come to for every node."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.image_family import ImageFamily
from pytest_ddpscale.plan.node_check import NodeExpectation
from pytest_ddpscale.plan.study import Plan, ProbeStudy, Study
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.thresholds.cases import node_expectation
from pytest_ddpscale.thresholds.model import Sku
from pytest_ddpscale.thresholds.parts import Detect, Node
from tests.builders.clusters import thresholds as packaged_thresholds
from tests.rows import rows

DETECT = {"name": "^A100$", "pci_device_ids": ["20b2", "20b5"], "memory_gib": 80}
NODE = {
    "pcie_generation": 4, "pcie_width": 16, "nvlinks": 12, "ecc": True, "free_disk_gib": 5, "clock_skew_s": 0.2,
}  # fmt: skip
BF16 = Workload("b", ImageFamily("resnet18"), "bf16", 8)
FP16 = replace(BF16, name="h", precision="fp16")


def sku(node: dict[str, Any] | None = None, detect: dict[str, Any] | None = None) -> Sku:
    section = None if node is None else Node.model_validate(node)
    return Sku("any", Detect.model_validate(detect or DETECT), node=section)


def trained(*workloads: Workload, world_size: int = 8) -> tuple[Study, ...]:
    return tuple(Study("weak", workload, (Arm("ddp", world_size, 8),), 5, 1.0, 1.0) for workload in workloads)


def test_everything_that_the_thresholds_and_the_plan_say() -> None:
    found = node_expectation(sku(NODE), Plan("a100", "cuda", trained(BF16)))
    assert found.memory_gib == pytest.approx((72, 88))
    assert found == NodeExpectation(
        device_type="cuda", name_pattern="^A100$", pci_device_ids=("20b2", "20b5"), memory_gib=found.memory_gib,
        gpus_per_node=8, pcie_generation=4, pcie_width=16, nvlinks=12, ecc=True, free_disk_gib=5.0, clock_skew_s=0.2,
        precisions=frozenset({"bf16"}), crosses_nodes=False,
    )  # fmt: skip


def test_without_a_node_section_little_is_expected() -> None:
    found = node_expectation(sku(), Plan("a100", "cuda", trained(BF16)))
    assert (found.pcie_generation, found.pcie_width, found.nvlinks, found.ecc) == (None, None, None, None)
    assert (found.free_disk_gib, found.clock_skew_s) == (1.0, 1.0)
    assert (found.name_pattern, found.gpus_per_node) == ("^A100$", 8)


def test_a_section_without_a_limit_has_the_usual_one() -> None:
    found = node_expectation(sku({"nvlinks": 0}), Plan("a100", "cuda", ()))
    assert (found.nvlinks, found.free_disk_gib, found.clock_skew_s) == (0, 1.0, 1.0)


def test_any_memory_will_do_where_none_is_said() -> None:
    found = node_expectation(sku(detect={"name": "^A100$"}), Plan("a100", "cuda", ()))
    assert (found.memory_gib, found.pci_device_ids) == (None, ())


@rows(("nodes", "ranks_per_node", "gpus"), [(1, None, 4), (1, 8, 8), (3, 8, 8)])
def test_a_node_has_to_have_as_many_gpus_as_the_gang_has_ranks_there(
    nodes: int, ranks_per_node: int | None, gpus: int
) -> None:
    plan = Plan("a100", "cuda", trained(BF16, world_size=4), nodes=nodes, ranks_per_node=ranks_per_node)
    assert node_expectation(sku(), plan).gpus_per_node == gpus


def test_a_site_may_say_how_many_gpus_a_node_has_at_least() -> None:
    plan = Plan("a100", "cuda", trained(BF16, world_size=7))
    found = node_expectation(sku({**NODE, "gpus": 8}), plan)
    assert (found.gpus_per_node, found.gpus_installed) == (7, 8)
    assert node_expectation(sku(NODE), plan).gpus_installed is None
    assert node_expectation(sku(), plan).gpus_installed is None


def test_precisions_are_those_that_are_trained_or_multiplied() -> None:
    probes = ProbeStudy((Arm("matmul-bf16"), Arm("matmul-fp8"), Arm("memory-copy")), 16, 0.5)
    plan = Plan("a100", "cuda", trained(FP16), probes=probes)
    # What fp8 needs no check of nodes asks for.
    assert node_expectation(sku(), plan).precisions == {"fp16", "bf16"}
    assert node_expectation(sku(), replace(plan, probes=None)).precisions == {"fp16"}
    assert node_expectation(sku(), Plan("a100", "cuda", ())).precisions == frozenset()


def test_on_a_cpu_there_is_no_gpu_to_recognize() -> None:
    plan = Plan("cpu", "cpu", trained(BF16, world_size=2))
    found = node_expectation(sku(detect={"device": "cpu"}), plan)
    assert (found.device_type, found.name_pattern, found.gpus_per_node) == ("cpu", None, 2)


@rows(("world_size", "crosses"), [(8, False), (16, True)])
def test_whether_ranks_of_different_nodes_talk_to_each_other(world_size: int, crosses: bool) -> None:
    plan = Plan("a100", "cuda", trained(BF16, world_size=world_size), nodes=2, ranks_per_node=8)
    assert node_expectation(sku(), plan).crosses_nodes is crosses
    probes = ProbeStudy((Arm("all-reduce-32mib", world_size),), 16, 0.5)
    probed = replace(plan, studies=(), probes=probes)
    assert node_expectation(sku(), probed).crosses_nodes is crosses


def test_every_packaged_sku_that_has_checks_says_what_they_need() -> None:
    for name, packaged_sku in packaged_thresholds().thresholds.skus.items():
        found = node_expectation(packaged_sku, Plan(name, "cuda", ()))
        for check, expected in (("pcie", found.pcie_width), ("pcie", found.pcie_generation), ("nvlink", found.nvlinks)):
            assert check not in packaged_sku.checks or expected is not None, (name, check)


@rows(("in_file", "asked", "least"), [(None, None, None), (8, None, 8), (None, 8, 8), (4, 8, 8)])
def test_gpus_that_should_be_there_are_those_of_the_file_or_those_asked_for(
    in_file: int | None, asked: int | None, least: int | None
) -> None:
    plan = replace(Plan("a100", "cuda", ()), gpus_asked=asked)
    assert node_expectation(sku(NODE | {"gpus": in_file}), plan).gpus_installed == least
