"""The catalogue of node checks: required state of a node, independent of its performance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pytest_ddpscale.plan.words import DeviceType, Precision

Reads = Literal["survey", "telemetry", "transport"]


@dataclass(frozen=True)
class NodeCheck:
    """One check.

    Attributes:
        name: as in thresholds.yaml.
        title: heading for reports.
        meaning: condition for a node to pass, as a clause after "a node passes if".
        reads: data source: the survey before launch, telemetry under load, or NCCL's log.
        on_cpu: whether it applies to CPU runs.
    """

    name: str
    title: str
    meaning: str
    reads: Reads = "survey"
    on_cpu: bool = False


@dataclass(frozen=True)
class NodeExpectation:
    """Expected state of every node of a run. None means no expectation.

    Attributes:
        device_type: device that ranks train on.
        name_pattern: anchored regular expression for NVML's name of the SKU's GPUs.
        pci_device_ids: of the SKU, four lower-case hexadecimal digits each; empty for any.
        memory_gib: smallest and largest device memory of the SKU, in GiB.
        gpus_per_node: GPUs that ranks train on; on CPU the ranks, each of which needs a core.
        gpus_installed: minimum number of the SKU's GPUs per node, used by ranks or not, from the thresholds or as
            requested.
        pcie_generation: maximum generation of GPU and slot together.
        pcie_width: lanes of each GPU.
        nvlinks: NVLinks of each GPU; 0 for none.
        ecc: whether ECC must be on.
        free_disk_gib: required free space where the run is written, in GiB.
        precisions: precisions that the plan trains in.
        crosses_nodes: whether ranks of several nodes communicate in the plan.
    """

    device_type: DeviceType
    name_pattern: str | None = None
    pci_device_ids: tuple[str, ...] = ()
    memory_gib: tuple[float, float] | None = None
    gpus_per_node: int = 0
    gpus_installed: int = 0
    pcie_generation: int | None = None
    pcie_width: int | None = None
    nvlinks: int | None = None
    ecc: bool | None = None
    free_disk_gib: float = 1.0
    precisions: frozenset[Precision] = frozenset()
    crosses_nodes: bool = True


_ALL = (
    NodeCheck(
        "gpus",
        "GPU model and count",
        "all requested GPUs of this model are present, answer and may be used",
        on_cpu=True,
    ),
    NodeCheck("processes", "Foreign processes", "no foreign processes run on its GPUs"),
    NodeCheck("mig", "MIG", "MIG is off on all GPUs"),
    NodeCheck("ecc", "Memory errors", "ECC is on as expected, without uncorrectable errors"),
    NodeCheck("throttling", "Throttling", "no GPU clock is throttled"),
    NodeCheck("pcie", "PCIe", "each GPU has the expected PCIe generation and width"),
    NodeCheck("nvlink", "NVLink", "all NVLinks are up"),
    NodeCheck("topology", "Topology", "its GPUs and network cards are connected as on the other nodes"),
    NodeCheck("versions", "Versions", "driver, CUDA, NCCL and torch match the other nodes", on_cpu=True),
    NodeCheck("kernels", "Kernels", "torch runs on its driver and has kernels for its GPUs"),
    NodeCheck("bf16", "bf16", "its GPUs have native bf16, if a workload needs it"),
    NodeCheck("disk", "Disk", "enough disk space is free for the run", on_cpu=True),
    NodeCheck("transport", "Transport", "NCCL uses the fastest available links", "transport"),
    NodeCheck("ecc_under_load", "Memory errors under load", "no uncorrectable errors appear under load", "telemetry"),
    NodeCheck("throttling_under_load", "Throttling under load", "no GPU is throttled under load", "telemetry"),
    NodeCheck("pcie_under_load", "PCIe under load", "PCIe links run at full speed under load", "telemetry"),
)

NODE_CHECKS = {check.name: check for check in _ALL}
