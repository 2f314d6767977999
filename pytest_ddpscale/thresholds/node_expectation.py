"""The expected state of every node, from SKU and plan."""

from __future__ import annotations

from pytest_ddpscale.plan.node_check import NodeExpectation
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.plan.words import Precision
from pytest_ddpscale.thresholds.hardware import Node
from pytest_ddpscale.thresholds.model import Sku

_OF_WORKLOADS: tuple[Precision, ...] = ("fp32", "fp16", "bf16")


def node_expectation(sku: Sku, plan: Plan) -> NodeExpectation:
    """The expected state of every node.

    Args:
        sku: the SKU to judge by.
        plan: the measured plan, which gives GPUs per node and precisions.
    """
    node = sku.node
    defaults = Node.model_fields
    return NodeExpectation(
        device_type=plan.device_type,
        name_pattern=sku.detect.name,
        pci_device_ids=tuple(sku.detect.pci_device_ids),
        memory_gib=sku.detect.memory_band_gib,
        gpus_per_node=plan.layout.ranks_per_node,
        gpus_installed=max(node.gpus or 0 if node else 0, plan.gpus_asked or 0) or None,
        pcie_generation=node.pcie_generation if node else None,
        pcie_width=node.pcie_width if node else None,
        nvlinks=node.nvlinks if node else None,
        ecc=node.ecc if node else None,
        free_disk_gib=node.free_disk_gib if node else defaults["free_disk_gib"].default,
        clock_skew_s=node.clock_skew_s if node else defaults["clock_skew_s"].default,
        precisions=_precisions(plan),
        crosses_nodes=not all(map(plan.fits_nodes, plan.study_ids)),
    )


def _precisions(plan: Plan) -> frozenset[Precision]:
    probed = {probe.operation.precision for probe in plan.probes.arms} if plan.probes else set()
    trained = {study.workload.precision for study in plan.studies}
    return frozenset(precision for precision in _OF_WORKLOADS if precision in probed | trained)
