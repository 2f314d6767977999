"""The catalogue of node checks: what a node has to be, whatever it reaches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pytest_ddpscale.plan.study import DeviceType
from pytest_ddpscale.plan.workload import Precision

Reads = Literal["survey", "telemetry", "transport"]


@dataclass(frozen=True)
class NodeCheck:
    """One check: its name in thresholds.yaml, its heading, and for a stakeholder what holds of a node that passes.

    It reads what was found out before anything is launched, while ranks work, or from NCCL's own words.
    """

    name: str
    title: str
    meaning: str
    reads: Reads = "survey"
    on_cpu: bool = False


@dataclass(frozen=True)
class NodeExpectation:
    """What every node of a run has to be. None is what nobody expects anything of.

    Attributes:
        device_type: what ranks train on.
        name_pattern: anchored regular expression for the name NVML gives of the SKU's GPUs.
        pci_device_ids: of the SKU, four lower-case hexadecimal digits each; empty for any.
        memory_gib: least and most device memory that the SKU may show, in GiB.
        gpus_per_node: GPUs that ranks train on; on CPU the ranks, each of which needs a core.
        gpus_installed: GPUs of the SKU that a node has at least, whether ranks may use them or not: as the thresholds
            say, or as was asked for.
        pcie_generation: that GPU and slot can have together.
        pcie_width: lanes of each GPU.
        nvlinks: of each GPU; 0 if it has none.
        ecc: whether errors of device memory have to be corrected.
        free_disk_gib: where the run is written, in GiB.
        clock_skew_s: most that clocks of nodes may differ, in seconds.
        precisions: in which the plan trains.
        crosses_nodes: whether ranks of several nodes communicate in the plan.
    """

    device_type: DeviceType
    name_pattern: str | None = None
    pci_device_ids: tuple[str, ...] = ()
    memory_gib: tuple[float, float] | None = None
    gpus_per_node: int | None = None
    gpus_installed: int | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    nvlinks: int | None = None
    ecc: bool | None = None
    free_disk_gib: float = 1.0
    clock_skew_s: float = 1.0
    precisions: frozenset[Precision] = frozenset()
    crosses_nodes: bool = True


_ALL = (
    NodeCheck(
        "gpus", "GPU model and count", "it has as many GPUs of this model as asked, and each answers", on_cpu=True
    ),
    NodeCheck("processes", "Foreign processes", "nobody else computes on its GPUs"),
    NodeCheck("mig", "MIG", "no GPU is cut into slices"),
    NodeCheck("ecc", "Memory errors", "memory errors are corrected, and no GPU has any that could not be"),
    NodeCheck("throttling", "Throttling", "nothing holds the clocks of its GPUs down"),
    NodeCheck("pcie", "PCIe", "each GPU has the PCIe generation and width that it should"),
    NodeCheck("nvlink", "NVLink", "all NVLinks are up"),
    NodeCheck("topology", "Topology", "its GPUs and network cards are connected as those of the other nodes"),
    NodeCheck("versions", "Versions", "driver, CUDA, NCCL and torch are those of the other nodes", on_cpu=True),
    NodeCheck("kernels", "Kernels", "torch was built with kernels for its GPUs"),
    NodeCheck("bf16", "bf16", "its GPUs compute bf16 themselves, if it is asked of them"),
    NodeCheck("disk", "Disk", "there is room for what is measured", on_cpu=True),
    NodeCheck("clock", "Clock", "its clock agrees with those of the other nodes", on_cpu=True),
    NodeCheck("transport", "Transport", "NCCL uses the fastest links there are", "transport"),
    NodeCheck("ecc_under_load", "Memory errors under load", "no memory error appears while its GPUs work", "telemetry"),
    NodeCheck("throttling_under_load", "Throttling under load", "no GPU is held down while it works", "telemetry"),
    NodeCheck("pcie_under_load", "PCIe under load", "PCIe links run at full speed while they are used", "telemetry"),
)

NODE_CHECKS: dict[str, NodeCheck] = {check.name: check for check in _ALL}
