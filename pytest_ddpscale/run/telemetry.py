"""Telemetry of GPUs while an arm was timed: its quantities, its records, and columns in memory.

`GpuReadings` declares each quantity once; its type says what the quantity is and what values are possible.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import numpy as np
from msgspec import Meta, field

from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.records import GangRecord, Joules, Ranks, Share
from pytest_ddpscale.run.strict_json import Count, Record, UnixSeconds, column, refuse_other_lengths
from pytest_ddpscale.util.arrays import BoolArray, FloatArray, Index, IntArray
from pytest_ddpscale.util.digits import percent

T = TypeVar("T")
if TYPE_CHECKING:  # most code has the readings of one GPU; columns are read with `each`
    Column = Annotated[T, "or one for each GPU"]
else:
    Column = T | tuple[T, ...]
Amount = Annotated[float, Meta(ge=0, le=1e18)]
Growth = Annotated[int, Meta(ge=0, le=2**62)]
Amounts = Column[Amount | None]


class GpuReadings(Record, kw_only=True):
    """Readings of GPUs, each in one window of time. A value that all share, as of a single GPU, is stored once.

    None means that the driver gave no value; `unreadable` has the reason. Utilization, power, clock,
    temperature and SM activity are means over the window.

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
        energy_j: growth of the GPU's counter in the window.
        throttle_reasons: share of polls by reason, 0 … 1 (``hw_slowdown``, ``hw_thermal_slowdown``,
            ``hw_power_brake_slowdown``, ``sw_thermal_slowdown``, ``sw_power_cap``, ``sync_boost``, ``gpu_idle`` …).
        ecc_corrected: corrected memory errors, new in the window or in the poll at either end of it.
        ecc_uncorrected: uncorrectable ones; likewise.
        pcie_generation: lowest value seen.
        pcie_width: lanes, lowest value seen.
        sm_activity: share of SMs with work, 0 … 1 (GPM: Hopper and later).
        unreadable: reason by reading; ``device`` stands for all of them.
    """

    started_unix_s: Column[UnixSeconds]
    ended_unix_s: Column[UnixSeconds]
    polls: Column[Count] = 0
    lost: Column[str] = ""
    utilization: Column[Share | None] = None
    power_w: Amounts = None
    power_limit_w: Amounts = None
    idle_power_w: Amounts = None
    sm_clock_mhz: Amounts = None
    sm_clock_max_mhz: Amounts = None
    temperature_c: Amounts = None
    energy_j: Column[Joules | None] = None
    throttle_reasons: Column[dict[str, Share] | None] = None
    ecc_corrected: Column[Growth | None] = None
    ecc_uncorrected: Column[Growth | None] = None
    pcie_generation: Column[Count | None] = None
    pcie_width: Column[Count | None] = None
    sm_activity: Column[Share | None] = None
    unreadable: Column[dict[str, str]] = field(default_factory=dict)


READINGS = GpuReadings.__struct_fields__
# Some drivers say 0 % of a GPU at full load. A utilization below the first is wrong if power, as a share of its limit,
# or SM activity reach the second …
HARDLY_BUSY, AT_WORK = 0.1, 0.5
# … also if that is so of a part of the readings in a window, but more than the one that began before it.
_PART = 0.3
# Of its limit: a counter that says more shows no work.
_MOST_POWER = 2


def contradicts(share: Any, watts: Any, limit_w: Any, sms: Any) -> Any:
    """Whether a utilization is wrong: the GPU worked in readings that say it did not, (rows,), or of one window.

    Nothing else of a GPU makes a reading wrong: its power, clock, temperature, throttle reasons and pace stay as read.

    Args:
        share: of the readings in a window that are below `HARDLY_BUSY`; in all others it may have drawn its limit.
        watts: mean power, and its limit; NaN if unknown, as the SM activity.
    """
    least = 1 - (1 - AT_WORK) * share
    draws = (watts >= least * limit_w) & (watts < _MOST_POWER * limit_w)
    return (share >= _PART) & (draws | (sms >= least))


def why_not_idle(busy: float, watts: float, limit_w: float, sms: float) -> str:
    """What contradicts a utilization."""
    if AT_WORK * limit_w <= watts < _MOST_POWER * limit_w:
        return f"{percent(busy)} busy, although it drew {watts:.0f} W of {limit_w:.0f} W"
    return f"{percent(busy)} busy, although {percent(sms)} of its SMs worked"


class TelemetryBlock(GpuReadings, kw_only=True, tag_field="kind", tag="telemetry"):
    """Telemetry of one arm, or of one probe, in one round; written before its blocks.

    Attributes:
        study: id of the study.
        arm: name of the arm, or id of the probe.
        round: counted from 0.
        gang: number of the gang.
        ranks: ranks of the GPUs, in the order of the columns; for send-recv one entry per peer.
    """

    study: str
    arm: str
    round: Count
    gang: Count
    ranks: Ranks

    def __post_init__(self) -> None:
        refuse_other_lengths(((name, getattr(self, name)) for name in READINGS), len(self.ranks))
        if not np.less(self.started_unix_s, self.ended_unix_s).all():
            raise ValueError("a window ends before it began (started_unix_s, ended_unix_s)")


def joined_readings(parts: Sequence[GpuReadings], **common: Any) -> TelemetryBlock:
    """One block of the readings of GPUs, in order, and of `common`, what they share."""
    for name in READINGS:
        common[name] = column(getattr(part, name) for part in parts)
    return TelemetryBlock(**common)


@dataclass(frozen=True, eq=False)
class Categorical:
    """A column with few different values, texts or mappings, stored once each.

    Attributes:
        values: the different values.
        which: index of each row's value, (rows,).
    """

    values: Sequence[Any]
    which: IntArray

    def __iter__(self) -> Iterator[Any]:
        """Value of each row."""
        return (self.values[i] for i in self.which.tolist())

    def __getitem__(self, rows: Index) -> Categorical:
        """Some of the rows."""
        return Categorical(self.values, self.which[rows])

    @property
    def different(self) -> dict[int, Any]:
        """The different values of these rows, by index."""
        return {i: self.values[i] for i in np.flatnonzero(np.bincount(self.which)).tolist()}

    def where(self, is_so: Callable[[Any], bool]) -> BoolArray:
        """Whether the condition holds for each row's value, (rows,)."""
        answers = np.zeros(len(self.values), np.bool_)
        for i, value in self.different.items():
            answers[i] = is_so(value)
        return answers[self.which]


@dataclass(frozen=True, eq=False)
class TelemetryColumns:
    """Telemetry in columns, (rows,): a row for each GPU and block, in the order of blocks and of their ranks.

    Each column is an attribute.

    Attributes:
        arms: study and arm, or probe, in order of first appearance.
        places: host, local rank and device of ranks.
        columns: ``arm`` and ``place``, indices in `arms` and `places`; ``round``, its number; and each quantity of
            `GpuReadings`, NaN if not read, texts and mappings as `Categorical`.
    """

    arms: Sequence[tuple[str, str]]
    places: Sequence[Place]
    columns: Mapping[str, Any]

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["columns"][name]
        except KeyError:
            raise AttributeError(f"{name} is no column of telemetry") from None

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.arm)

    def of(self, rows: Index) -> TelemetryColumns:
        """Some rows."""
        return replace(self, columns={name: values[rows] for name, values in self.columns.items()})

    def together(self, keys: IntArray) -> list[IntArray]:
        """Rows grouped by key, (rows,), in order of first appearance."""
        if not len(keys):
            return []
        order = np.argsort(keys, kind="stable")
        ends = np.flatnonzero(np.diff(keys[order])) + 1
        return sorted(np.split(order, ends), key=lambda rows: int(rows[0]))

    def of_arm(self, study: str, arm: str, hosts: Container[str] | None = None) -> TelemetryColumns:
        """Rows of an arm, or of a probe by its id, on some hosts or all."""
        is_there = np.array([hosts is None or place.host in hosts for place in self.places], np.bool_)[self.place]
        number = self.arms.index((study, arm)) if (study, arm) in self.arms else -1
        return self.of((self.arm == number) & is_there)

    @property
    def seconds(self) -> FloatArray:
        """Length of the windows, in seconds."""
        seconds: FloatArray = self.ended_unix_s - self.started_unix_s
        return seconds

    @property
    def mean_power_w(self) -> FloatArray:
        """Mean power of the block, in watts, (rows,).

        From the GPU's energy counter if it has one: from Ampere on, power samples are averages over the last second, so
        they lag in a block of a few seconds.
        """
        watts: FloatArray = np.where(np.isnan(self.energy_j), self.power_w, self.energy_j / self.seconds)
        return watts

    @property
    def hosts(self) -> frozenset[str]:
        """Names of the nodes with telemetry."""
        return frozenset(self.places[place].host for place in np.unique(self.place).tolist())

    def place_of(self, row: int) -> Place:
        """Host, local rank and GPU of a row."""
        return self.places[int(self.place[row])]


def telemetry_columns_of(blocks: Sequence[TelemetryBlock], gangs: Mapping[int, GangRecord]) -> TelemetryColumns:
    """The columns of telemetry records. Utilizations that power or SM activity contradict are unreadable, with why.

    Args:
        blocks: in order.
        gangs: by number.
    """
    arms: dict[tuple[str, str], int] = {}
    places: dict[Place, int] = {}
    of_gangs = {
        number: np.array([places.setdefault(place, len(places)) for place in gangs[number].places], np.int64)
        for number in dict.fromkeys(block.gang for block in blocks)
    }

    def stacked(of: Callable[[TelemetryBlock], Any], kind: type[np.generic] = np.int64) -> Any:
        parts = (np.broadcast_to(np.asarray(of(block), kind), len(block.ranks)) for block in blocks)
        return np.concatenate([np.zeros(0, kind), *parts])

    def sayings(of: Callable[[TelemetryBlock], Any]) -> Categorical:
        known: dict[str, tuple[int, Any]] = {}  # index and value, by what it looks like

        def number(value: Any) -> Any:
            if isinstance(value, tuple):
                return list(map(number, value))
            return known.setdefault(repr(value), (len(known), value))[0]

        which = stacked(lambda block: number(of(block)))
        return Categorical([value for _, value in known.values()], which)

    columns: dict[str, Any] = {
        "arm": stacked(lambda block: arms.setdefault((block.study, block.arm), len(arms))),
        "place": stacked(lambda block: of_gangs[block.gang][list(block.ranks)]),
        "round": stacked(attrgetter("round")),
    }
    for name in READINGS:
        of = attrgetter(name)
        is_text = name in ("lost", "throttle_reasons", "unreadable")
        columns[name] = sayings(of) if is_text else stacked(of, np.float64)
    telemetry = TelemetryColumns(list(arms), list(places), columns)
    readings = telemetry.utilization, telemetry.mean_power_w, telemetry.power_limit_w, telemetry.sm_activity
    reasons, which = telemetry.unreadable.values, telemetry.unreadable.which
    for row in np.flatnonzero(contradicts(readings[0] < HARDLY_BUSY, *readings[1:])).tolist():
        reasons.append(
            reasons[which[row]] | {"utilization": why_not_idle(*(float(reading[row]) for reading in readings))}
        )
        which[row] = len(reasons) - 1
        telemetry.utilization[row] = np.nan
    return telemetry


NO_TELEMETRY = telemetry_columns_of((), {})
