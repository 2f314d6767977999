"""Profile steps of every training arm of a study with torch.profiler, after the timed rounds.

Rank 0, which is in every arm, records a trace for each step; all ranks of an arm run the same steps. A failure of the
profiler costs only the profile, because measurements are written before.

A trace has numbers on computation, communication, and how much of that is hidden. On a GPU, NCCL's kernels communicate
and all others compute; a step begins with the first kernel that was launched in it. On a CPU, the training thread
computes while one of its operators runs, and events of gloo's threads are collectives. Times are in milliseconds, spans
are arrays of (spans, 2): begin and end.
"""

from __future__ import annotations

import gzip
import re
import shutil
import statistics
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from torch.profiler import ProfilerActivity

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.study import Study
from pytest_ddpscale.plan.words import DeviceType
from pytest_ddpscale.run.rank_folder import LOGS, MOST_TRACE_BYTES, TRACES
from pytest_ddpscale.run.records import ArmProfile, ProfiledBucket, ProfiledStep
from pytest_ddpscale.util.arrays import FloatArray
from pytest_ddpscale.util.owned_folder import owned_folder
from pytest_ddpscale.worker.arms import StudyArms
from pytest_ddpscale.worker.context import RankContext, arm_order
from pytest_ddpscale.worker.training import STEP

_ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
_LAUNCHES = ("cuda_runtime", "cuda_driver")
# Kernels of NCCL, `ncclDevKernel_AllReduce_Sum_f32_RING_LL(…)`, of symmetric memory `ncclSymkDevKernel_…` (before 2.19
# `ncclKernel_…`); ranges of gloo's threads.
_COLLECTIVE = re.compile(r"nccl(?:Dev|SymkDev)?Kernel|gloo:")
_ALL_REDUCE = re.compile(r"nccl(?:Dev|SymkDev)?Kernel_AllReduce|gloo:all_reduce", re.IGNORECASE)
# Operators of the training thread that start a collective are not computation.
_HANDING_OVER = ("c10d::", "record_param_comms")
_BYTES = {
    "float": 4, "double": 8, "half": 2, "bfloat16": 2, "c10::half": 2, "c10::bfloat16": 2, "long": 8, "long int": 8,
    "int": 4, "short": 2, "byte": 1, "char": 1, "unsigned char": 1, "signed char": 1, "bool": 1,
}  # fmt: skip
_US_PER_MS = 1000.0
_LONGEST_PROBLEM = 400
_NO_KERNELS = (
    "torch.profiler saw no GPU kernel; CUPTI may lack privileges (then the rank's stderr.log has "
    "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES). Load the driver with NVreg_RestrictProfilingToAdminUsers=0, and attach no "
    "other profiler"
)


class StudyProfile:
    """The profile of one study. All ranks of the gang construct one and run it together."""

    def __init__(self, study: Study, arms: StudyArms, context: RankContext, seed: int) -> None:
        self._study, self._arms, self._context, self._seed = study, arms, context, seed
        self._device_type: DeviceType = "cuda" if context.device.torch_device.type == "cuda" else "cpu"
        self._profiled = [arm for arm in study.arms if not arm.infers]
        self._traces: dict[str, list[Path]] = {arm.name: [] for arm in self._profiled}
        self._problems: dict[str, list[str]] = {arm.name: [] for arm in self._profiled}

    def run(self) -> None:
        """Run the steps, one of each arm per pass, so drift affects all arms equally."""
        context, control, key = self._context, self._context.control, f"{self._study.id}/profile"
        with owned_folder("traces") as folder:
            for number in range(-1, context.profile_steps):  # the first pass warms up the profiler and is thrown away
                if control.decided(f"{key}/{number}/late", lambda: context.is_out_of_time):
                    break
                for arm in arm_order(self._profiled, self._seed, key, number):
                    self._step(arm, number, folder)
                    control.decided(f"{key}/{number}/{arm.name}", lambda: True)  # all wait for rank 0
            context.progress.phase = "reading the profile"
            if control.rank == 0:
                for arm in self._profiled:
                    context.sink.append_record(self._profile_of(arm))
        control.decided(f"{key}/done", lambda: True)

    def _step(self, arm: Arm, number: int, folder: Path) -> None:
        """Run one step on the ranks of an arm, while all others are idle."""
        progress, control, path = self._context.progress, self._context.control, folder / f"{number}-{arm.name}.json.gz"
        progress.arm, progress.round, progress.phase = arm.name, None, "profile"
        if control.rank == 0:
            self._arms.time_block(arm, 1, recorded(self._device_type, path, self._problems[arm.name]))
            if number >= 0 and path.exists():
                self._traces[arm.name].append(path)
        elif control.rank in control.layout.ranks([arm]):
            self._arms.time_block(arm, 1)
        progress.phase = "gathering"

    def _profile_of(self, arm: Arm) -> ArmProfile:
        """The profile of an arm, or why there is none."""
        read: list[tuple[TracedStep, Path]] = []
        problems, numbers = self._problems[arm.name], dict[str, Any]()
        try:
            for path in self._traces[arm.name]:
                read += [(step, path) for step in traced_steps(gzip.decompress(path.read_bytes()), self._device_type)]
            if read:
                steps = [step for step, _ in read]
                # The step with the median duration; the shorter of two middle ones.
                _, typical = sorted(read, key=lambda one: one[0].length)[(len(read) - 1) // 2]
                numbers = {"steps": tuple(map(profiled_step, steps)), "buckets": buckets_of(steps)}
                numbers["trace"] = self._kept(typical, arm)
        except Exception as error:  # unexpected formats of torch versions cost only the profile
            numbers = {}
            problems.append(in_words(error))
        if not numbers:
            numbers["problem"] = [*problems, "there was no time left for it (--ddp-budget)"][0]
        return ArmProfile(study=self._study.id, arm=arm.name, gang=self._context.gang, rank=0, **numbers)

    def _kept(self, path: Path, arm: Arm) -> str:
        """Store a trace for the node's agent to send. Returns its path in the run directory; empty if that failed."""
        name = re.sub(r"[^\w@.-]+", "-", f"gang-{self._context.gang}-rank-0-{self._study.id}-{arm.name}") + ".json.gz"
        place = self._context.sink.folder / LOGS / TRACES
        try:
            if path.stat().st_size > MOST_TRACE_BYTES:
                return ""
            place.mkdir(exist_ok=True)
            shutil.copyfile(path, place / name)
        except OSError:
            return ""
        return f"{TRACES}/{name}"


@contextmanager
def recorded(device_type: DeviceType, path: Path, problems: list[str]) -> Iterator[None]:
    """torch.profiler around a step, which writes its gzipped Chrome trace; its errors are kept, and steps go on."""
    activities = [ProfilerActivity.CPU]
    activities += [ProfilerActivity.CUDA] if device_type == "cuda" else []
    try:
        profile = torch.profiler.profile(activities=activities, record_shapes=True)  # for message sizes
        profile.start()
    except Exception as error:
        problems.append(in_words(error))
        yield
        return
    yield
    try:
        profile.stop()
        profile.export_chrome_trace(str(path))
    except Exception as error:
        problems.append(in_words(error))


def in_words(error: Exception) -> str:
    """Type and message of an error, in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST_PROBLEM]


class TraceEvent(msgspec.Struct, frozen=True):
    """One event of a trace; for a complete one (``ph`` is ``X``) `ts` is the begin and `dur` the duration, in µs."""

    name: str = ""
    ph: str = ""
    cat: str | None = None
    ts: float = 0.0
    dur: float = 0.0
    tid: int | str = 0
    args: dict[str, Any] = {}

    @property
    def end(self) -> float:
        """End of the event, in µs."""
        return self.ts + self.dur


class ChromeTrace(msgspec.Struct, frozen=True):
    """The part of a trace file that is read."""

    traceEvents: list[TraceEvent]  # noqa: N815 (the format's name)


@dataclass(frozen=True)
class TracedStep:
    """One step of one rank, with spans in ms after its begin.

    Attributes:
        length: its duration.
        compute: merged spans of computation.
        communication: merged spans in which a collective runs.
        all_reduces: spans in order of their begins.
        bytes: message size of each all-reduce; None if unknown.
    """

    length: float
    compute: FloatArray
    communication: FloatArray
    all_reduces: FloatArray
    bytes: Sequence[int | None]


def traced_steps(data: bytes, device_type: DeviceType) -> list[TracedStep]:
    """The steps in a trace, in order.

    Raises:
        ValueError: it is no trace, has no step, or no GPU kernel.
    """
    try:
        events = [event for event in msgspec.json.decode(data, type=ChromeTrace).traceEvents if event.ph == "X"]
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError(f"the trace of torch.profiler cannot be read ({error})") from None
    marks = sorted(
        (event for event in events if event.name == STEP and event.cat == "user_annotation"), key=lambda event: event.ts
    )
    if not marks:
        raise ValueError("the trace has no step")
    return [(_cpu_step if device_type == "cpu" else _gpu_step)(mark, events) for mark in marks]


def _cpu_step(mark: TraceEvent, events: Sequence[TraceEvent]) -> TracedStep:
    inside = [event for event in events if event.end > mark.ts and event.ts < mark.end]
    operators = [event for event in inside if event.cat == "cpu_op" and event.tid == mark.tid]
    handing_over = [event for event in operators if event.name.startswith(_HANDING_OVER)]
    return _step(mark.ts, mark.end, operators, handing_over, [event for event in inside if event.tid != mark.tid])


def _gpu_step(mark: TraceEvent, events: Sequence[TraceEvent]) -> TracedStep:
    """Work belongs to the step in which it was launched, because it may run much later."""
    launched_at = {event.args.get("correlation"): event.ts for event in events if event.cat in _LAUNCHES}
    on_gpu = [event for event in events if event.cat in _ON_GPU]
    mine = [
        event for event in on_gpu if mark.ts <= launched_at.get(event.args.get("correlation"), event.ts) <= mark.end
    ]
    if not any(event.cat == "kernel" for event in mine):
        raise ValueError(_NO_KERNELS)
    computing = [event for event in mine if not _COLLECTIVE.match(event.name)]
    return _step(min(event.ts for event in mine), max(event.end for event in mine), computing, (), mine)


def _step(
    begin: float, end: float, computing: Sequence[TraceEvent], handing_over: Sequence[TraceEvent],
    others: Sequence[TraceEvent],
) -> TracedStep:  # fmt: skip
    def spans(events: Sequence[TraceEvent]) -> FloatArray:
        intervals = np.array([(event.ts, event.end) for event in events], np.float64).reshape(-1, 2)
        return (np.clip(intervals, begin, end) - begin) / _US_PER_MS

    collectives = sorted((event for event in others if _COLLECTIVE.match(event.name)), key=lambda event: event.ts)
    reduced = [event for event in collectives if _ALL_REDUCE.match(event.name)]
    return TracedStep(
        length=(end - begin) / _US_PER_MS,
        compute=without(merged(spans(computing)), merged(spans(handing_over))),
        communication=merged(spans(collectives)),
        all_reduces=spans(reduced),
        bytes=[message_bytes(event.args) for event in reduced],
    )


def message_bytes(args: dict[str, Any]) -> int | None:
    """Message size of a collective, from elements and type of NCCL's kernels, or of the inputs of gloo's ranges."""
    try:
        if "In msg nelems" in args:
            return int(args["In msg nelems"]) * _BYTES[str(args["dtype"]).lower()]
        sizes = zip(args["Input Dims"], args["Input type"], strict=True)
        return sum(int(np.prod(dims)) * _BYTES[str(kind).lower()] for dims, kind in sizes) or None
    except (KeyError, TypeError, ValueError):
        return None


def merged(spans: FloatArray) -> FloatArray:
    """Spans in order, with touching ones merged."""
    if not len(spans):
        return spans
    ordered = spans[spans[:, 0].argsort()]
    reach = np.maximum.accumulate(ordered[:, 1])
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:, 0] > reach[:-1]]))
    ends = np.concatenate([reach[starts[1:] - 1], reach[-1:]])
    return np.column_stack([ordered[starts, 0], ends])


def length_of(spans: FloatArray) -> float:
    """Total length of merged spans."""
    return float((spans[:, 1] - spans[:, 0]).sum())


def covered(begin: float, end: float, spans: FloatArray) -> float:
    """Length of the part of an interval that merged spans cover."""
    return float(np.maximum(0.0, np.minimum(spans[:, 1], end) - np.maximum(spans[:, 0], begin)).sum())


def without(spans: FloatArray, others: FloatArray) -> FloatArray:
    """Merged spans without the parts that other merged spans cover."""
    left: list[tuple[float, float]] = []
    for begin, end in spans.tolist():
        inside = others[(others[:, 1] > begin) & (others[:, 0] < end)]
        borders = [begin, *np.clip(inside, begin, end).ravel().tolist(), end]
        left += [(a, b) for a, b in zip(borders[::2], borders[1::2], strict=True) if b > a]
    return merged(np.array(left, np.float64).reshape(-1, 2))


def profiled_step(step: TracedStep) -> ProfiledStep:
    """What a step's time went into."""
    compute, reduced = length_of(step.compute), merged(step.all_reduces)
    busy = length_of(merged(np.concatenate([step.compute, step.communication])))
    hidden = sum(covered(begin, end, step.compute) for begin, end in reduced.tolist())
    return ProfiledStep(
        step_ms=_rounded(step.length),
        compute_ms=_rounded(compute),
        waiting_ms=_rounded(busy - compute),
        idle_ms=_rounded(step.length - busy),
        all_reduce_ms=_rounded(length_of(reduced)),
        hidden_ms=_rounded(hidden),
    )


def buckets_of(steps: Sequence[TracedStep]) -> tuple[ProfiledBucket, ...]:
    """The all-reduces of a step, in order; as many as most steps have."""
    usual = statistics.mode(len(step.bytes) for step in steps)
    alike = [step for step in steps if len(step.bytes) == usual]
    buckets = []
    for number in range(usual):
        sizes = {step.bytes[number] for step in alike}
        spans = [(float(begin), float(end)) for begin, end in (step.all_reduces[number] for step in alike)]
        buckets.append(
            ProfiledBucket(
                bytes=sizes.pop() if len(sizes) == 1 else None,
                begins_ms=_median(begin for begin, _ in spans),
                took_ms=_median(end - begin for begin, end in spans),
                hidden_ms=_median(covered(*span, step.compute) for span, step in zip(spans, alike, strict=True)),
            )
        )
    return tuple(buckets)


def _median(values: Iterable[float]) -> float:
    return _rounded(statistics.median(values))


def _rounded(milliseconds: float) -> float:
    """Round to a tenth of a microsecond; differences slightly below zero become 0."""
    return round(max(0.0, milliseconds), 4)
