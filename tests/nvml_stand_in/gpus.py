"""GPUs to play: what the driver says of them, at rest and at work, healthy and with faults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

# nvmlReturn_t, for `failures`
NOT_SUPPORTED = 3
NO_PERMISSION = 4
DRIVER_NOT_LOADED = 9
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
LIB_RM_VERSION_MISMATCH = 18
UNKNOWN_ERROR = 999
HANG = -1  # no nvmlReturn_t: the call does not return
ANY_FUNCTION = "any"

# nvmlComputeMode_t
COMPUTE_MODE_DEFAULT = 0
COMPUTE_MODE_PROHIBITED = 2
COMPUTE_MODE_EXCLUSIVE_PROCESS = 3

# Clock event reasons (throttle reasons), bits of nvml.h
GPU_IDLE = 0x1
SW_POWER_CAP = 0x4
HW_SLOWDOWN = 0x8
HW_THERMAL_SLOWDOWN = 0x40

# nvmlSamplingType_t: power, GPU utilization, SM clock
SAMPLE_BUFFERS = (0, 1, 5)


@dataclass(frozen=True)
class Changing:
    """A number that changes at given times.

    Attributes:
        value: from the beginning of time.
        changes: (seconds since the epoch, value from then on), in the order of time.
    """

    value: float
    changes: Sequence[tuple[float, float]]


Number = float | Changing


@dataclass(frozen=True)
class Failing:
    """An nvmlReturn_t, or `HANG`, that a function gives from a time on, in seconds since the epoch."""

    code: int
    from_unix_s: float = 0.0


Failures = Mapping[str, int | Failing]


@dataclass(frozen=True)
class Ecc:
    """Memory with error correction; volatile counts begin when the driver is loaded, aggregate ones never end."""

    enabled: bool = True
    enabled_after_reboot: bool = True
    corrected_volatile: Number = 0
    uncorrected_volatile: Number = 0
    corrected_aggregate: Number = 0
    uncorrected_aggregate: Number = 0


@dataclass(frozen=True)
class RetiredPages:
    """Pages taken out of use, as GPUs before Ampere do."""

    pending: bool = False


@dataclass(frozen=True)
class RemappedRows:
    """Rows of memory replaced by spare ones, as GPUs since Ampere do."""

    correctable: int = 0
    uncorrectable: int = 0
    pending: bool = False
    failed: bool = False


@dataclass(frozen=True)
class Mig:
    """Whether the GPU is cut into instances."""

    enabled: bool = False
    enabled_after_reset: bool = False


@dataclass(frozen=True)
class Pcie:
    """The link to the host.

    Attributes:
        generation: as negotiated now; some GPUs lower it at rest.
        width: lanes in use now.
        max_generation: what GPU and slot could do together.
        max_width: lanes, likewise.
        gpu_max_generation: what the GPU alone could do.
    """

    generation: Number
    width: Number
    max_generation: int
    max_width: int
    gpu_max_generation: int


@dataclass(frozen=True)
class NvLink:
    """One link, up or down."""

    active: Number = 1


@dataclass(frozen=True)
class Gpm:
    """GPU performance monitoring, as GPUs since Hopper do; None: that metric is not supported."""

    sm_util_pct: Number | None = 0


@dataclass(frozen=True)
class Process:
    """A process that has memory on the GPU."""

    pid: int
    memory_mib: int = 512


@dataclass(frozen=True)
class Work:
    """What a healthy GPU of this kind shows while it trains, in place of the fields of the same names."""

    power_w: float
    sm_clock_mhz: float
    memory_clock_mhz: float
    temperature_c: float
    pcie_generation: int
    clock_event_reasons: int = 0
    utilization_pct: Number = 99
    memory_utilization_pct: float = 60
    gpm: Gpm = Gpm(85)


@dataclass(frozen=True)
class PlayedGpu:
    """One GPU of a played machine. What is None is what that GPU does not support.

    Attributes:
        name: as NVML gives it.
        pci_device_id: four hexadecimal digits.
        memory_mib: total memory as the driver reports it, MiB.
        uuid: ``GPU-…``; empty: made from the GPU's position.
        utilization_pct: per cent.
        utilization_changes: as of `Changing`, where `utilization_pct` is a plain number.
        failures: NVML function, or `ANY_FUNCTION` → the nvmlReturn_t it gives for this GPU, or when it begins to.
        clock_event_reasons: bits, why clocks are not higher.
        compute_mode: nvmlComputeMode_t, who may open the GPU.
        sample_buffers: nvmlSamplingType_t of the buffers that the driver keeps.
        work: what `at_work` makes of this GPU.
    """

    name: str
    pci_device_id: str
    memory_mib: int
    uuid: str = ""
    utilization_pct: Number = 0
    utilization_changes: Sequence[tuple[float, float]] = ()
    failures: Failures = field(default_factory=dict)
    compute_capability: tuple[int, int] = (8, 0)
    memory_utilization_pct: Number | None = 0
    memory_reserved_mib: Number | None = 600
    memory_used_mib: Number | None = 4
    power_w: Number | None = 60
    power_limit_w: Number | None = 400
    default_power_limit_w: Number | None = 400
    sm_clock_mhz: Number | None = 210
    max_sm_clock_mhz: Number | None = 1410
    memory_clock_mhz: Number | None = 1593
    max_memory_clock_mhz: Number | None = 1593
    temperature_c: Number | None = 30
    clock_event_reasons: Number | None = GPU_IDLE
    ecc: Ecc | None = Ecc()
    retired_pages: RetiredPages | None = None
    remapped_rows: RemappedRows | None = RemappedRows()
    mig: Mig | None = Mig()
    compute_mode: int | None = COMPUTE_MODE_DEFAULT
    processes: Sequence[Process] = ()
    pcie: Pcie = Pcie(4, 16, 4, 16, 4)
    nvlinks: Sequence[NvLink] = ()
    gpm: Gpm | None = None
    sample_buffers: Sequence[int] = SAMPLE_BUFFERS
    work: Work = Work(390, 1350, 1593, 60, pcie_generation=4)


def uuid_of(index: int) -> str:
    """The UUID of the GPU at that position, where none is given: its first digits tell it from the others."""
    return f"GPU-{index:08x}-1111-2222-3333-444455556666"
