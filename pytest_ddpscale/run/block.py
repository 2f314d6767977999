"""What is timed in rounds: records of kind ``timed``, and why ranks could not do it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
from msgspec import Meta, field
from msgspec.structs import force_setattr

from pytest_ddpscale.plan.operation import operation_of
from pytest_ddpscale.run.records import Ranks, Texts
from pytest_ddpscale.run.strict_json import (
    Count,
    Line,
    Positive,
    Record,
    Seconds,
    UnixSeconds,
    column,
    refuse_other_lengths,
)
from pytest_ddpscale.run.telemetry import GpuReadings
from pytest_ddpscale.util.arrays import FloatArray


class Reading(NamedTuple):
    """One quantity; `kind` is numpy's, of its array: ``f``, ``i`` or ``b``."""

    unit: str
    least: float
    most: float
    kind: str = "f"


READINGS: Mapping[str, Reading] = {
    # Share of the block in which the device was busy (CPU: process CPU time per thread).
    "utilization": Reading("", 0, 1),
    "energy_j": Reading("J", 0, 1e12),  # of the GPU
    # GPU: allocated by torch in this block. CPU: the process's largest resident set so far. No process is smaller.
    "peak_memory_bytes": Reading("bytes", 2**20, 2**47),
    "skipped_steps": Reading("steps", 0, 2**53, "i"),  # by fp16's loss scaler
    "step_stdev_s": Reading("s", 0, 1e7),  # of the sample, in imported results, which keep no steps
    "step_p95_s": Reading("s", 0, 1e7),  # its 95th percentile, likewise
    "single_sample": Reading("(true or false)", 0, 1, "b"),  # the one long sample of an imported result
    "is_correct": Reading("(true or false)", 0, 1, "b"),  # the result of a probe
    # Forward passes of the module that DDP wraps, summed over the block: the rank's own pace, which waits for nobody.
    "forward_s": Reading("s", 0, 1e7),
}
# Seconds of each step, and those of them in which the rank waited for data.
STEP_S, WAITED_S = "step_s", "waited_s"
SERIES = (STEP_S, WAITED_S)
FORWARD_S = "forward_s"

# A thousand times what any GPU trains, computes or moves; more means a broken clock, and ratios overflow.
MOST_SAMPLES_PER_S, MOST_WORK_PER_S = 1e9, 1e18
NO_CHECKSUM = "0" * 16  # of parameters
STEP_BYTES = 4  # of one step time: float32 has seven digits, more than any GPU clock
# Fields with a value for each rank, by the type of their arrays.
_COLUMNS = {"ranks": "i8", "groups": "i8", "count": "i8", "work": "f8", "began_unix_s": "f8", "seconds": "f8"}

WorkDone = Annotated[float, Meta(gt=0, le=1e30)]
# Of a reading; larger integers would not be exact as numbers in columns.
Value = bool | Annotated[int, Meta(ge=-(2**53), le=2**53)] | float | None
Reason = Annotated[str, Meta(max_length=1000)]


def joined_checksums(of_ranks: Sequence[str | None]) -> str | None:
    """Checksums in the form of `Block.digests`; a shared one is stored once."""
    if len(set(of_ranks)) == 1:
        return of_ranks[0]
    return "".join(digest or NO_CHECKSUM for digest in of_ranks)


class Block(Line, eq=False, kw_only=True, tag="timed"):
    """One arm in one round: training, forward passes, a probe, or pairs of nodes, timed by all its ranks.

    Columns are in the order of `ranks`; a shared value is stored once. Study, arm, round and turn are its key.

    Attributes:
        study: id of the study, ``weak/resnet152-fp16``, ``probes`` or ``pairs``.
        arm: name of the arm, ``ddp@8``, or id of the probe, ``all-reduce-32mib@8``.
        round: counted from 0.
        turn: counted from 0 where groups of ranks take turns within a round, as pairs of ranks do.
        gang: number of the gang.
        ranks: ranks that took part, numbered as in the gang.
        groups: number of the group of ranks, counted from 0, that a rank worked with: those of a node, a pair, all.
        count: steps, forward passes, iterations or messages; they may differ between ranks in imported results.
        work: of one of them: samples of a rank, floating-point operations or bytes.
        began_unix_s: start of the block, seconds since 1970 UTC; 0 if it was not recorded.
        seconds: its duration.
        readings: by the names in `READINGS`; a reading that no rank has is absent.
        unread: why ranks lack a reading that was expected of them, by its name; empty for a rank that has it.
        series: by the names in `SERIES`, a number of seconds for each step, (ranks, count): little-endian float32, rank
            after rank, in base64. With 8,192 ranks a list of numbers would take twice the space and ten times as long
            to read. Imported results keep no steps, and only data from a folder is waited for.
        digests: of the bits of all parameters after the block: 16 hexadecimal digits per rank, rank after rank,
            `NO_CHECKSUM` if not taken; under ``ddp`` only, where all ranks of a group have to agree.
    """

    study: str
    arm: str
    round: Count
    turn: Count = 0
    gang: Count
    ranks: Ranks
    groups: Count | tuple[Count, ...] = 0
    count: Positive | tuple[Positive, ...]
    work: WorkDone | tuple[WorkDone, ...]
    began_unix_s: UnixSeconds | tuple[UnixSeconds, ...]
    seconds: Seconds | tuple[Seconds, ...]
    readings: dict[str, Value | tuple[Value, ...]] = field(default_factory=dict)
    unread: dict[str, Reason | tuple[Reason, ...]] = field(default_factory=dict)
    series: dict[str, bytes] = field(default_factory=dict)
    digests: Annotated[str, Meta(pattern="^([0-9a-f]{16})+$")] | None = None

    def __post_init__(self) -> None:
        """Convert columns to arrays, unless all ranks share a value. Raises ValueError if it cannot be so."""
        for given, known in ((self.readings, READINGS), (self.unread, READINGS), (self.series, SERIES)):
            if unknown := given.keys() - known:
                raise ValueError(f"unknown name {min(unknown)!r}; expected one of {', '.join(known)}")
        columns, size = {name: getattr(self, name) for name in _COLUMNS}, len(self.ranks)
        refuse_other_lengths([*columns.items(), *self.readings.items(), *self.unread.items()], size)
        for name, values in columns.items():
            if isinstance(values, tuple):
                force_setattr(self, name, np.array(values, _COLUMNS[name]))
        readings: dict[str, Any] = {}
        for name, values in self.readings.items():
            reading = READINGS[name]
            array = np.asarray(values, "f8" if reading.kind == "f" else None)
            if array.dtype.kind != reading.kind or ((array < reading.least) | (array > reading.most)).any():
                limits = f"{reading.least:g} to {reading.most:g} {reading.unit}".strip()
                raise ValueError(f"{name} of a rank is out of range; expected {limits}")
            readings[name] = array if array.ndim else values
        force_setattr(self, "readings", readings)
        fewest = int(np.min(self.count))
        for name, steps in self.series.items():
            if isinstance(self.count, np.ndarray) or len(steps) != STEP_BYTES * size * fewest:
                raise ValueError(f"{len(steps)} bytes of {name}; expected 4 for each of {size} x {fewest}")
        waited_s, digits = self.each(WAITED_S), len(self.digests or NO_CHECKSUM)
        if (np.diff(np.sort(self.ranks)) == 0).any():
            raise ValueError(f"ranks has {size} values; expected each rank once")
        if not (np.isfinite(waited_s) & (waited_s >= 0)).all():
            raise ValueError("a wait for data (waited_s) is negative or not finite; expected 0 s or more")
        if digits not in (len(NO_CHECKSUM), len(NO_CHECKSUM) * size):
            raise ValueError(f"digests has {digits} digits; expected 16 for each of {size} ranks")
        is_probe = operation_of(self.arm.partition("@")[0]) is not None
        most, unit = (MOST_WORK_PER_S, "of it") if is_probe else (MOST_SAMPLES_PER_S, "samples")
        with np.errstate(over="ignore"):  # an overflow to infinity is refused
            fastest = self.per_second.max()
        if fastest > most:
            raise ValueError(f"a rank has {fastest:g} {unit} per second; expected at most {most:g}")

    @property
    def key(self) -> tuple[str, str, int]:
        """Study, arm and round."""
        return self.study, self.arm, self.round

    def each(self, name: str) -> Any:
        """A quantity as an array, even if all ranks share one value.

        Returns:
            A reading as numbers, NaN where it is unknown; a digest as an integer, 0 if it was not taken, (ranks,). A
            series, (ranks, count), or (ranks, 0) if it is absent.
        """
        if name in SERIES:
            return np.frombuffer(self.series.get(name, b""), "<f4").reshape(len(self.ranks), -1)
        if name == "digest":
            array: Any = np.frombuffer(bytes.fromhex(self.digests or NO_CHECKSUM), ">i8").astype(np.int64)
        else:
            values = getattr(self, name) if name in _COLUMNS else self.readings.get(name)
            array = np.asarray(values, _COLUMNS.get(name, "f8"))
        return np.broadcast_to(array, len(self.ranks))

    @property
    def per_second(self) -> FloatArray:
        """Work done per second, (ranks,)."""
        return self.each("work") * self.each("count") / self.each("seconds")  # type: ignore[no-any-return]


class RankBlock(Record, kw_only=True):
    """One rank's part of a `Block`, sent to rank 0."""

    rank: Count
    group: Count = 0
    work: WorkDone
    began_unix_s: UnixSeconds
    seconds: Seconds
    readings: dict[str, Value] = field(default_factory=dict)
    unread: dict[str, Reason] = field(default_factory=dict)
    series: dict[str, bytes] = field(default_factory=dict)
    digest: Annotated[str, Meta(pattern="^[0-9a-f]{16}$")] | None = None
    telemetry: GpuReadings | None = None


def joined(parts: Sequence[RankBlock], **common: Any) -> Block:
    """One block of the parts of all ranks, in order, and of `common`: what they share, or rank 0 alone knows."""
    for name in ("work", "began_unix_s", "seconds"):
        common[name] = column(getattr(part, name) for part in parts)
    joins: Any = {"readings": (column, None), "unread": (column, ""), "series": (b"".join, b"")}
    for part, (join, absent) in joins.items():
        values = [getattr(one, part) for one in parts]
        known = dict.fromkeys(
            name for values_of_rank in values for name, value in values_of_rank.items() if value is not None
        )
        common[part] = {name: join([values_of_rank.get(name, absent) for values_of_rank in values]) for name in known}
    digests, groups = joined_checksums([part.digest for part in parts]), column(part.group for part in parts)
    return Block(ranks=tuple(part.rank for part in parts), groups=groups, digests=digests, **common)


class Unsupported(Line, tag="unsupported"):
    """Why ranks could not do what an arm asks for."""

    study: str
    arm: str
    gang: Count
    ranks: Ranks
    reasons: str | Texts

    def __post_init__(self) -> None:
        refuse_other_lengths([("reasons", self.reasons)], len(self.ranks))


def read_steps(data: bytes) -> FloatArray:
    """Seconds of steps from the format of `Block.series`."""
    return np.frombuffer(data, "<f4").astype(np.float64)


def step_bytes(step_s: Iterable[float]) -> bytes:
    """Seconds of steps in the format of `Block.series`."""
    return np.fromiter(step_s, "<f4").tobytes()
