"""What a GPU said about itself while an arm was timed: records of kind ``telemetry``, in telemetry.jsonl."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from pytest_ddpscale.results.records import refuse_other_types

_SHARES = {"utilization", "memory_utilization", "sm_activity", "sm_occupancy", "tensor_activity", "dram_activity"}
_SPREADS = _SHARES | {"power_w", "sm_clock_mhz", "memory_clock_mhz", "memory_used_bytes", "temperature_c"}
_NUMBERS = (
    *("power_limit_w", "idle_power_w", "sm_clock_max_mhz", "energy_j", "ecc_corrected", "ecc_uncorrected"),
    *("pcie_generation", "pcie_width", "pcie_replays", "pcie_tx_bytes_per_s", "pcie_rx_bytes_per_s"),
    *("nvlink_tx_bytes_per_s", "nvlink_rx_bytes_per_s", "nvlink_errors"),
)


@dataclass(frozen=True)
class Spread:
    """A quantity over a window.

    Attributes:
        mean: of the samples; where each describes a stretch of time, weighted by what of it lies in the window.
        minimum: the least sample.
        maximum: the largest.
        samples: how many there were.
    """

    mean: float
    minimum: float
    maximum: float
    samples: int

    def __post_init__(self) -> None:
        refuse_other_types(self)
        if not all(map(math.isfinite, (self.mean, self.minimum, self.maximum))) or self.samples < 1:
            raise ValueError(f"{self}; expected finite numbers of at least one sample")
        if not self.minimum <= self.mean <= self.maximum:
            raise ValueError(f"{self}; expected minimum <= mean <= maximum")


@dataclass(frozen=True)
class Telemetry:
    """One GPU in one timed block. None is what the driver did not say: `unreadable` has the reason.

    Attributes:
        study: id of the study.
        arm: name of the arm.
        round: counted from 0.
        rank: global rank that had the GPU.
        local_rank: rank on its host.
        host: host name.
        device: GPU UUID as NVML has it (``GPU-…``).
        started_unix_s: when the window begins, seconds since 1970 UTC.
        ended_unix_s: when it ends.
        polls: how often the GPU was asked in the window for what the driver keeps no samples of.
        utilization: share of time in which any kernel ran, 0 … 1; waiting inside a kernel counts as well.
        power_w: board power, in watts.
        power_limit_w: as enforced.
        idle_power_w: median power before the first window, while the utilization was 0; None if it never was.
        sm_clock_mhz: clock of the streaming multiprocessors.
        sm_clock_max_mhz: that it can reach.
        memory_clock_mhz: clock of the device memory.
        memory_utilization: share of time in which device memory was read or written, 0 … 1.
        memory_used_bytes: device memory in use, by whomever.
        temperature_c: of the GPU.
        energy_j: in the window; `sources` says whether by the GPU's ``counter`` or from ``power`` samples.
        throttle_reasons: why clocks were held down → share of polls, 0 … 1 (``hw_slowdown``,
            ``hw_thermal_slowdown``, ``hw_power_brake_slowdown``, ``sw_thermal_slowdown``, ``sw_power_cap``,
            ``sync_boost``, ``gpu_idle`` …).
        ecc_corrected: memory errors that ECC corrected, new in the window or in the poll at either end of it.
        ecc_uncorrected: those it could not; likewise.
        pcie_generation: the lowest that was seen.
        pcie_width: lanes, the fewest that were seen.
        pcie_replays: packets sent anew, new as with `ecc_corrected`.
        pcie_tx_bytes_per_s: sent by the GPU.
        pcie_rx_bytes_per_s: received by it.
        nvlink_tx_bytes_per_s: payload sent over all links.
        nvlink_rx_bytes_per_s: payload received over all links.
        nvlink_errors: replays, recoveries and checksum errors of all links, new in the window or in the five seconds
            before it.
        sm_activity: share of SMs with work, 0 … 1 (GPM, as the next three: Hopper and later).
        sm_occupancy: share of the warps that could be resident, 0 … 1.
        tensor_activity: share of time in which tensor cores worked, 0 … 1.
        dram_activity: share of the device memory's bandwidth, 0 … 1.
        sources: reading → where it comes from: ``buffer`` (samples that the driver kept), ``poll`` (one value of
            the moment at each poll), ``counter``, ``power``, ``gpm``.
        unreadable: reading → why there is no value; ``device`` for all of them.
    """

    study: str
    arm: str
    round: int
    rank: int
    local_rank: int
    host: str
    device: str
    started_unix_s: float
    ended_unix_s: float
    polls: int = 0
    utilization: Spread | None = None
    power_w: Spread | None = None
    power_limit_w: float | None = None
    idle_power_w: float | None = None
    sm_clock_mhz: Spread | None = None
    sm_clock_max_mhz: float | None = None
    memory_clock_mhz: Spread | None = None
    memory_utilization: Spread | None = None
    memory_used_bytes: Spread | None = None
    temperature_c: Spread | None = None
    energy_j: float | None = None
    throttle_reasons: Mapping[str, float] | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    pcie_replays: int | None = None
    pcie_tx_bytes_per_s: float | None = None
    pcie_rx_bytes_per_s: float | None = None
    nvlink_tx_bytes_per_s: float | None = None
    nvlink_rx_bytes_per_s: float | None = None
    nvlink_errors: int | None = None
    sm_activity: Spread | None = None
    sm_occupancy: Spread | None = None
    tensor_activity: Spread | None = None
    dram_activity: Spread | None = None
    sources: Mapping[str, str] = field(default_factory=dict)
    unreadable: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        refuse_other_types(self)
        if not (math.isfinite(self.started_unix_s) and self.started_unix_s < self.ended_unix_s < math.inf):
            raise ValueError(f"{self.started_unix_s} … {self.ended_unix_s}; expected a window that ends after it began")
        if min(self.round, self.rank, self.local_rank, self.polls) < 0:
            raise ValueError(
                f"round={self.round}, rank={self.rank}, local_rank={self.local_rank}, polls={self.polls}; "
                "expected none below 0"
            )
        for name, value in self._amounts().items():
            most = 1.0 if name.partition(".")[0] in _SHARES else math.inf
            if not (math.isfinite(value) and 0 <= value <= most):
                raise ValueError(f"{name}={value}; expected a finite number from 0 to {most:g}")
        for reason, share in (self.throttle_reasons or {}).items():
            if not 0 <= share <= 1:
                raise ValueError(f"throttle_reasons: {reason}={share}; expected a share from 0 to 1")

    def as_json(self) -> dict[str, Any]:
        """The record as JSON types, with its ``kind``."""
        return {"kind": "telemetry", **asdict(self)}

    @staticmethod
    def from_json(data: dict[str, Any]) -> Telemetry:
        """Read what `as_json` wrote.

        Raises:
            TypeError: a key is missing or unknown, or its value of another type.
            ValueError: a number is impossible.
        """
        return Telemetry(**{key: _spread(key, value) for key, value in data.items() if key != "kind"})

    def _amounts(self) -> dict[str, float]:
        """Every number by its name; of a spread, its ends."""
        found: dict[str, float] = {name: getattr(self, name) for name in _NUMBERS if getattr(self, name) is not None}
        for name in _SPREADS:
            spread: Spread | None = getattr(self, name)
            if spread is not None:
                found |= {f"{name}.minimum": spread.minimum, f"{name}.maximum": spread.maximum}
        return found


def telemetry_of(records: Sequence[dict[str, Any]]) -> list[Telemetry]:
    """The telemetry among records, in their order. Raises as `Telemetry.from_json`."""
    return [Telemetry.from_json(record) for record in records if record.get("kind") == "telemetry"]


def _spread(key: str, value: Any) -> Any:
    """The spread that a field holds as JSON; anything else as it is.

    Raises:
        TypeError: a field of the spread is missing or unknown, or of another type.
        ValueError: its numbers are impossible.
    """
    return Spread(**value) if key in _SPREADS and isinstance(value, dict) else value
