"""Telemetry of GPUs while an arm was timed: telemetry.jsonl, one record for each arm and round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from msgspec import Meta, field

from pytest_ddpscale.run.records import Joules, Ranks, Share, Texts
from pytest_ddpscale.run.strict_json import Count, Record, UnixSeconds, column, each, refuse_other_lengths

Amount = Annotated[float, Meta(ge=0, le=1e18)]
Growth = Annotated[int, Meta(ge=0, le=2**62)]
_SHARES = ("utilization", "sm_activity")
_SPREADS = (*_SHARES, "power_w", "sm_clock_mhz", "temperature_c")


class Spread(Record, frozen=True):
    """A quantity over a window.

    Attributes:
        mean: of the samples; samples that cover a period are weighted by their part in the window.
        minimum: smallest sample.
        maximum: largest sample.
        samples: number of samples.
    """

    mean: Amount
    minimum: Amount
    maximum: Amount
    samples: Annotated[int, Meta(ge=1, le=2**53)]


class GpuReadings(Record, frozen=True, kw_only=True):
    """Readings of one GPU in one window of time. None means that the driver gave no value; `unreadable` has the reason.

    Attributes:
        started_unix_s: start of the window, seconds since 1970 UTC.
        ended_unix_s: end of the window.
        polls: number of polls in the window, for quantities without samples in the driver.
        lost: NVML's error if the GPU is lost until it or its node is reset; else empty.
        utilization: share of time in which any kernel ran, 0 … 1, including waiting inside a kernel.
        power_w: board power, in watts.
        power_limit_w: enforced limit.
        idle_power_w: median power before the first window, while the utilization was 0; None if it never was.
        sm_clock_mhz: clock of the streaming multiprocessors.
        sm_clock_max_mhz: maximum SM clock.
        temperature_c: of the GPU.
        energy_j: in the window; `sources` says whether from the GPU's ``counter`` or from ``power`` samples.
        throttle_reasons: share of polls by reason, 0 … 1 (``hw_slowdown``, ``hw_thermal_slowdown``,
            ``hw_power_brake_slowdown``, ``sw_thermal_slowdown``, ``sw_power_cap``, ``sync_boost``, ``gpu_idle`` …).
        ecc_corrected: corrected memory errors, new in the window or in the poll at either end of it.
        ecc_uncorrected: uncorrectable ones; likewise.
        pcie_generation: lowest value seen.
        pcie_width: lanes, lowest value seen.
        sm_activity: share of SMs with work, 0 … 1 (GPM: Hopper and later).
        sources: origin by reading: ``buffer`` (samples kept by the driver), ``poll`` (one momentary value per poll),
            ``counter``, ``power``, ``gpm``.
        unreadable: reason by reading; ``device`` stands for all of them.
    """

    started_unix_s: UnixSeconds
    ended_unix_s: UnixSeconds
    polls: Count = 0
    lost: str = ""
    utilization: Spread | None = None
    power_w: Spread | None = None
    power_limit_w: Amount | None = None
    idle_power_w: Amount | None = None
    sm_clock_mhz: Spread | None = None
    sm_clock_max_mhz: Amount | None = None
    temperature_c: Spread | None = None
    energy_j: Joules | None = None
    throttle_reasons: dict[str, Share] | None = None
    ecc_corrected: Growth | None = None
    ecc_uncorrected: Growth | None = None
    pcie_generation: Count | None = None
    pcie_width: Count | None = None
    sm_activity: Spread | None = None
    sources: dict[str, str] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)


class SpreadColumns(Record, frozen=True, kw_only=True):
    """A quantity over a window, for several GPUs: a column for each field of `Spread`; None without a value."""

    mean: Amount | tuple[Amount | None, ...] | None
    minimum: Amount | tuple[Amount | None, ...] | None
    maximum: Amount | tuple[Amount | None, ...] | None
    samples: Count | tuple[Count | None, ...] | None


class TelemetryBlock(Record, frozen=True, kw_only=True):
    """Telemetry of one arm, or of one probe, in one round: a column for each field of `GpuReadings`.

    Attributes:
        study: id of the study.
        arm: name of the arm, or id of the probe.
        round: counted from 0.
        gang: number of the gang.
        ranks: ranks of the GPUs; for send-recv one entry per peer. Columns are in their order; a shared value is stored
            once.
    """

    study: str
    arm: str
    round: Count
    gang: Count
    ranks: Ranks
    started_unix_s: UnixSeconds | tuple[UnixSeconds, ...]
    ended_unix_s: UnixSeconds | tuple[UnixSeconds, ...]
    polls: Count | tuple[Count, ...] = 0
    lost: str | Texts = ""
    utilization: SpreadColumns | None = None
    power_w: SpreadColumns | None = None
    power_limit_w: Amount | tuple[Amount | None, ...] | None = None
    idle_power_w: Amount | tuple[Amount | None, ...] | None = None
    sm_clock_mhz: SpreadColumns | None = None
    sm_clock_max_mhz: Amount | tuple[Amount | None, ...] | None = None
    temperature_c: SpreadColumns | None = None
    energy_j: Joules | tuple[Joules | None, ...] | None = None
    throttle_reasons: dict[str, Share] | tuple[dict[str, Share] | None, ...] | None = None
    ecc_corrected: Growth | tuple[Growth | None, ...] | None = None
    ecc_uncorrected: Growth | tuple[Growth | None, ...] | None = None
    pcie_generation: Count | tuple[Count | None, ...] | None = None
    pcie_width: Count | tuple[Count | None, ...] | None = None
    sm_activity: SpreadColumns | None = None
    sources: dict[str, str] | tuple[dict[str, str], ...] = field(default_factory=dict)
    unreadable: dict[str, str] | tuple[dict[str, str], ...] = field(default_factory=dict)

    def __post_init__(self) -> None:
        count = len(self.ranks)
        refuse_other_lengths(self, count, *GpuReadings.__struct_fields__)
        for name in _SPREADS:
            spreads: SpreadColumns | None = getattr(self, name)
            if spreads is not None:
                refuse_other_lengths(spreads, count, *Spread.__struct_fields__)
                _refuse_impossible(name, spreads, count)
        if not np.less(self.started_unix_s, self.ended_unix_s).all():
            raise ValueError("a window ends before it began (started_unix_s, ended_unix_s)")


def joined_telemetry(
    ranks: Sequence[int], readings: Sequence[GpuReadings], study: str, arm: str, number: int, gang: int
) -> TelemetryBlock:
    """Join the readings of several ranks to a record.

    Args:
        ranks: numbered as in the gang.
        readings: of each rank.
        study: id of the study.
        arm: name of the arm, or id of the probe.
        number: of the round.
        gang: number of the gang.
    """
    columns: dict[str, Any] = {}
    for name in GpuReadings.__struct_fields__:
        values = [getattr(one, name) for one in readings]
        columns[name] = _spread_columns(values) if name in _SPREADS else column(values)
    return TelemetryBlock(study=study, arm=arm, round=number, gang=gang, ranks=tuple(ranks), **columns)


def _spread_columns(spreads: Sequence[Spread | None]) -> SpreadColumns | None:
    if all(spread is None for spread in spreads):
        return None
    columns = {name: column(getattr(one, name, None) for one in spreads) for name in Spread.__struct_fields__}
    return SpreadColumns(**columns)


def _refuse_impossible(name: str, spreads: SpreadColumns, count: int) -> None:
    parts = {part: getattr(spreads, part) for part in Spread.__struct_fields__}
    mean, minimum, maximum, samples = (np.asarray(column, np.float64) for column in parts.values())  # None is NaN
    most = 1.0 if name in _SHARES else float("inf")
    is_sound = (minimum <= mean) & (mean <= maximum) & (maximum <= most) & (samples >= 1)
    is_absent = np.isnan(mean) & np.isnan(minimum) & np.isnan(maximum) & np.isnan(samples)
    impossible = np.flatnonzero(np.broadcast_to(~(is_sound | is_absent), count))
    if len(impossible):
        said = {part: each(column, count)[impossible[0]] for part, column in parts.items()}
        raise ValueError(f"{name}: {said}; expected minimum <= mean <= maximum <= {most:g}, of at least one sample")
