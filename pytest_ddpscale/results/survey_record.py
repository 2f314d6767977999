"""What a node is, found out before anything is launched on it: records of kind ``survey`` in measurements.jsonl."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec import field

from pytest_ddpscale.results.strict_json import Record, decode

if TYPE_CHECKING:
    from pytest_ddpscale.results.record_lines import AnyRecord

STUDY_ID = "survey"


class GpuProcess(Record, frozen=True):
    """A process that had a compute context on a GPU before ours began.

    Attributes:
        pid: as NVML gives it: of the host, not of a container.
        name: its command, or empty if it cannot be seen from here.
        memory_bytes: device memory it holds; None if unknown.
    """

    pid: int
    name: str
    memory_bytes: int | None = None


class RemappedRows(Record, frozen=True):
    """Rows of device memory that were replaced by spare ones (Ampere and later), because of which errors.

    Attributes:
        pending: whether one waits for a reset of the GPU.
        failed: whether one could not be replaced: the GPU has to go.
    """

    correctable: int
    uncorrectable: int
    pending: bool
    failed: bool


class SurveyedGpu(Record, frozen=True):
    """One GPU. None is what the driver does not say, whatever the reason; `unreadable` has that.

    Attributes:
        index: NVML's, in PCI bus order.
        uuid: ``GPU-…``; empty if it does not answer.
        pci_bus_id: ``00000000:17:00.0``.
        pci_device_id: four lower-case hexadecimal digits.
        is_visible: whether CUDA_VISIBLE_DEVICES lets ranks use it.
        local_rank: of the rank that uses it: its place in CUDA's order of visible devices; None if it has none.
        problem: why the GPU as a whole does not answer, such as ``GPU is lost``; empty if it does.
        is_lost: whether that is until it, or its node, is reset.
        compute_capability: ``9.0``.
        ecc_corrected: errors since the driver was loaded, as `ecc_uncorrected`.
        retired_pages_pending: whether a page waits for a reset to be retired (before Ampere).
        remapped_rows: from Ampere on.
        throttle_reasons: why its clocks are held down now, as `telemetry.nvml_calls` names them:
            ``hw_thermal_slowdown`` …; also what is no fault, such as ``gpu_idle``.
        power_limit_w: as enforced; by default as built.
        sm_clock_max_mhz: that it can reach.
        pcie_generation: now; an idle GPU saves power and falls to 1.
        pcie_generation_max: that GPU and slot can have together.
        pcie_generation_gpu_max: that the GPU can have.
        pcie_width: lanes now; at most those that it has.
        nvlinks_active: links that are up, of `nvlinks`, up or down; 0 without NVLink.
        processes: of others.
        unreadable: reading → reason.
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
    compute_capability: str | None = None
    memory_bytes: int | None = None
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
    sm_clock_max_mhz: int | None = None
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_generation_gpu_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    nvlinks_active: int | None = None
    nvlinks: int | None = None
    processes: tuple[GpuProcess, ...] | None = None
    unreadable: dict[str, str] = field(default_factory=dict)


class InfiniBandPort(Record, frozen=True):
    """One port of an adapter under /sys/class/infiniband; the link layer is ``InfiniBand`` or ``Ethernet`` (RoCE)."""

    device: str
    port: int
    state: str
    link_layer: str


class ClockSkew(Record, frozen=True):
    """Bounds of what a node's clock shows more than the supervisor's, in seconds.

    The node read its clock at some moment between the question and the arrival of its answer.

    Attributes:
        earliest_skew_s: if it did when the answer arrived.
        latest_skew_s: if it did when it was asked.
    """

    earliest_skew_s: float
    latest_skew_s: float


class Survey(Record, frozen=True, tag_field="kind", tag="survey"):
    """One node.

    Attributes:
        unix_s: when this was found out, on the node's own clock.
        problem: why the node could not be looked at at all; empty if it could.
        has_driver: whether an NVIDIA driver is loaded; False where nobody asked, on a CPU SKU.
        driver_problem: what NVML says where the driver is there and does not work; empty if all is well.
        gpus: of the node, in NVML's order, whether visible or not.
        cores: CPU cores that ranks may use.
        versions: ``driver``, ``cuda_driver``, ``torch``, ``cuda``, ``nccl``, ``python``, ``pytest_ddpscale``,
            ``kernel``; None is what is not there.
        torch_problem: why torch cannot be imported; empty if it can.
        arch_list: GPU architectures that this torch build has kernels for: ``sm_90``, ``compute_120`` …
        free_bytes: on the file system of ``run_directory``, ``shared_memory`` and ``temporary``.
        topology: what ``nvidia-smi topo -m`` prints; empty where there is no such command, or it fails.
        clock: of the node, beside the supervisor's; None if it was not asked, or did not answer.
    """

    host: str
    unix_s: float
    problem: str = ""
    has_driver: bool = False
    driver_problem: str = ""
    gpus: tuple[SurveyedGpu, ...] = ()
    cores: int | None = None
    versions: dict[str, str | None] = field(default_factory=dict)
    torch_problem: str = ""
    arch_list: tuple[str, ...] = ()
    free_bytes: dict[str, int] = field(default_factory=dict)
    infiniband: tuple[InfiniBandPort, ...] = ()
    topology: str = ""
    clock: ClockSkew | None = None


class PostMortem(Record, frozen=True, tag_field="kind", tag="post_mortem"):
    """What a node's GPUs were when they were looked at again, after ranks had failed."""

    survey: Survey


_SURVEY = msgspec.json.Decoder(Survey)


def read_survey(data: bytes) -> Survey:
    """A survey from the line that `line_of` made. Raises ValueError if it is none."""
    return decode(_SURVEY, data)


def surveys_of(records: Sequence[AnyRecord]) -> dict[str, Survey]:
    """The surveys among records, by host; a node's last one counts."""
    return {record.host: record for record in records if isinstance(record, Survey)}


def post_mortems_of(records: Sequence[AnyRecord]) -> list[Survey]:
    """What nodes were after their ranks had failed, in order: driver and GPUs."""
    return [record.survey for record in records if isinstance(record, PostMortem)]
