"""Surveys of nodes before the launch: records of kind ``survey`` in measurements.jsonl."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile
from typing import Annotated

from msgspec import Meta, field

from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.strict_json import Line, Record, UnixSeconds

STUDY_ID = "survey"
# nvml.h, nvmlComputeMode_t, in its order; the names are nvidia-smi's.
COMPUTE_MODES = ("Default", "Exclusive_Thread", "Prohibited", "Exclusive_Process")


class GpuProcess(Record):
    """A process that had a compute context on a GPU before the run began.

    Attributes:
        pid: from NVML: in the host's namespace, not a container's.
        name: its command, or empty if it is not visible.
        memory_bytes: device memory it holds; None if unknown.
    """

    pid: int
    name: str
    memory_bytes: int | None = None


class RemappedRows(Record):
    """Rows of device memory that were remapped to spare ones (Ampere and later).

    Attributes:
        uncorrectable: number of rows remapped for errors that could not be corrected.
        pending: whether a remapping waits for a reset of the GPU.
        failed: whether a remapping failed, so the GPU has to be replaced.
    """

    uncorrectable: int
    pending: bool
    failed: bool


class SurveyedGpu(Record):
    """One GPU. None means that the driver gave no value; `unreadable` has the reason.

    Attributes:
        index: NVML index, in PCI bus order.
        uuid: ``GPU-…``; empty if the GPU does not answer.
        pci_bus_id: ``00000000:17:00.0``.
        pci_device_id: four lower-case hexadecimal digits.
        is_visible: whether CUDA_VISIBLE_DEVICES lets ranks use it.
        local_rank: local rank that uses it: its index in CUDA's order of visible devices; None if there is none.
        problem: why the GPU as a whole does not answer, such as ``GPU is lost``; empty if it does.
        is_lost: whether it stays so until the GPU or its node is reset.
        compute_capability: ``9.0``.
        compute_mode: who may use the GPU, one of `COMPUTE_MODES`.
        memory_used_bytes: in use before the run began, without what the driver reserves.
        ecc_corrected: errors since the driver was loaded; `ecc_uncorrected` likewise.
        retired_pages_pending: whether a page waits for a reset to be retired (before Ampere).
        remapped_rows: from Ampere on.
        throttle_reasons: why its clocks are limited now, named as in `telemetry.nvml`: ``hw_thermal_slowdown``
            …; includes reasons that are not faults, such as ``gpu_idle``.
        power_limit_w: enforced limit; `power_limit_default_w` is the factory default.
        pcie_generation: current generation; an idle GPU falls to 1 to save power.
        pcie_generation_max: maximum of GPU and slot together.
        pcie_generation_gpu_max: maximum of the GPU.
        pcie_width: current lanes; `pcie_width_max` is their maximum.
        nvlinks_active: links that are up, out of `nvlinks`; 0 without NVLink.
        processes: processes of others.
        unreadable: reason by reading.
    """

    index: int
    uuid: str
    name: str
    pci_bus_id: str
    pci_device_id: str
    is_visible: bool = True
    local_rank: int | None = None
    problem: str = ""
    is_lost: bool = False
    compute_capability: Annotated[str, Meta(pattern=r"^\d+\.\d+$")] | None = None
    compute_mode: str | None = None
    memory_bytes: int | None = None
    memory_used_bytes: int | None = None
    mig_enabled: bool | None = None
    ecc_enabled: bool | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    retired_pages_pending: bool | None = None
    remapped_rows: RemappedRows | None = None
    throttle_reasons: tuple[str, ...] | None = None
    power_limit_w: float | None = None
    power_limit_default_w: float | None = None
    temperature_c: int | None = None
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_generation_gpu_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    nvlinks_active: int | None = None
    nvlinks: int | None = None
    processes: tuple[GpuProcess, ...] | None = None
    unreadable: dict[str, str] = field(default_factory=dict)

    def on(self, host: str) -> Place:
        """Its place."""
        return Place(host, self.local_rank, self.uuid, self.index, self.pci_bus_id)


class InfiniBandPort(Record):
    """One port of an adapter under /sys/class/infiniband.

    Attributes:
        link_layer: ``InfiniBand``, ``Ethernet`` (RoCE) or ``EFA``.
        rate_gbps: line rate in Gb/s, of a port that is down the slowest one; None if unknown.
        pci_function: PCI address of the adapter's function, of a virtual function the physical one; empty if unknown.
        pcie_gbps: what its PCIe link can carry in Gb/s, by the slower of its two ends; None if unknown.
    """

    device: str
    port: int
    state: str
    link_layer: str
    rate_gbps: float | None = None
    pci_function: str = ""
    pcie_gbps: float | None = None


class Survey(Line, tag="survey"):
    """One node.

    Attributes:
        unix_s: time of the survey, on the node's own clock.
        problem: why the node could not be surveyed at all; empty if it could.
        has_driver: whether an NVIDIA driver is loaded; False on a CPU SKU, where it is not checked.
        driver_problem: NVML's error if the driver is loaded and does not work; empty without one.
        gpus: all GPUs of the node, visible or not, in NVML's order.
        cores: CPU cores that ranks may use.
        versions: ``driver``, ``cuda_driver``, ``torch``, ``cuda``, ``nccl``, ``python``, ``pytest_ddpscale``,
            ``kernel``; None if absent.
        torch_problem: why torch cannot be imported; empty if it can.
        arch_list: GPU architectures that this torch build has kernels for: ``sm_90``, ``compute_120`` …
        torch_gpus: number of GPUs that CUDA has for ranks; None if it was not asked or did not answer.
        cuda_problem: CUDA's error, or why it did not count its GPUs; empty without one.
        free_bytes: on the file systems of ``run_directory``, ``shared_memory`` and ``temporary``.
        topology: output of ``nvidia-smi topo -m``; empty if the command is missing or fails.
        addresses: IPv4, on all interfaces that are up, without loopback.
    """

    host: str
    unix_s: UnixSeconds
    problem: str = ""
    has_driver: bool = False
    driver_problem: str = ""
    gpus: tuple[SurveyedGpu, ...] = ()
    cores: int | None = None
    versions: dict[str, str | None] = field(default_factory=dict)
    torch_problem: str = ""
    arch_list: tuple[str, ...] = ()
    torch_gpus: int | None = None
    cuda_problem: str = ""
    free_bytes: dict[str, int] = field(default_factory=dict)
    infiniband: tuple[InfiniBandPort, ...] = ()
    topology: str = ""
    addresses: tuple[str, ...] = ()

    @property
    def connections(self) -> dict[tuple[str, str], str]:
        """How each GPU and adapter of `topology` is connected with each other one: ``{("GPU0", "NIC0"): "PXB"}``."""
        rows = [words for line in self.topology.splitlines() if (words := line.split())] or [[]]
        devices = [*takewhile(lambda word: word != "CPU", rows[0])]  # then affinities
        return {
            (row[0], other): cell for row in rows[1:] if row[0] in devices
            for other, cell in zip(devices, row[1:], strict=False)
        }  # fmt: skip


class PostMortem(Line, tag="post_mortem"):
    """A second survey of a node's GPUs, after ranks had failed."""

    survey: Survey


def surveys_of(records: Iterable[object]) -> dict[str, Survey]:
    """The last survey of each host among records."""
    return {record.host: record for record in records if isinstance(record, Survey)}
