"""Numbers from a Chrome trace of torch.profiler: computation, communication, and how much of that is hidden.

On a GPU, NCCL's kernels communicate and all others compute. A step begins with the first kernel that was launched in
it. On a CPU, the training thread computes while one of its operators runs, and events of gloo's threads are
collectives. Times are in milliseconds, spans are arrays of (spans, 2): begin and end.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from pytest_ddpscale.plan.words import DeviceType
from pytest_ddpscale.run.records import ProfiledBucket, ProfiledStep
from pytest_ddpscale.util.arrays import FloatArray
from pytest_ddpscale.worker.step_names import STEP

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
_EMPTY = np.empty((0, 2))


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
class TracedCollective:
    """A collective in a step, with begin and end in ms after the step's begin; `bytes` is None if unknown."""

    begin: float
    end: float
    is_all_reduce: bool
    bytes: int | None


@dataclass(frozen=True)
class TracedStep:
    """One step of one rank.

    Attributes:
        length: its duration.
        compute: merged spans of computation.
        collectives: in order of their begins.
    """

    length: float
    compute: FloatArray
    collectives: Sequence[TracedCollective]

    def communication(self, *, only_all_reduce: bool = False) -> FloatArray:
        """Merged spans in which a collective runs."""
        return merged([(one.begin, one.end) for one in self.collectives if one.is_all_reduce or not only_all_reduce])

    @property
    def busy(self) -> FloatArray:
        """Merged spans of computation and communication."""
        return merged([*self.compute.tolist(), *self.communication().tolist()])


def read_trace(data: bytes) -> list[TraceEvent]:
    """The complete events of a trace.

    Raises:
        ValueError: the data is not a trace.
    """
    try:
        events = msgspec.json.decode(data, type=ChromeTrace).traceEvents
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError(f"the trace of torch.profiler cannot be read ({error})") from None
    return [event for event in events if event.ph == "X"]


def traced_steps(events: Sequence[TraceEvent], device_type: DeviceType) -> list[TracedStep]:
    """The steps in a trace, in order.

    Raises:
        ValueError: it has no steps, or no GPU kernel.
    """
    marks = sorted((one for one in events if one.name == STEP and one.cat == "user_annotation"), key=lambda one: one.ts)
    if not marks:
        raise ValueError("the trace has no step")
    if device_type == "cpu":
        return [_cpu_step(mark, events) for mark in marks]
    return _gpu_steps(marks, events)


def _cpu_step(mark: TraceEvent, events: Sequence[TraceEvent]) -> TracedStep:
    inside = [one for one in events if one.end > mark.ts and one.ts < mark.end]
    operators = [one for one in inside if one.cat == "cpu_op" and one.tid == mark.tid]
    handing_over = [one for one in operators if one.name.startswith(_HANDING_OVER)]
    span = _within(mark.ts, mark.end)
    return TracedStep(
        length=mark.dur / _US_PER_MS,
        compute=without(merged([span(one) for one in operators]), merged([span(one) for one in handing_over])),
        collectives=_collectives([one for one in inside if one.tid != mark.tid], mark.ts, mark.end),
    )


def _gpu_steps(marks: Sequence[TraceEvent], events: Sequence[TraceEvent]) -> list[TracedStep]:
    """Steps on a GPU; work belongs to the step in which it was launched, because it may run much later."""
    on_gpu = [one for one in events if one.cat in _ON_GPU]
    if not any(one.cat == "kernel" for one in on_gpu):
        raise ValueError("the trace has no GPU kernel")
    launched_at = {_correlation(one): one.ts for one in events if one.cat in _LAUNCHES}
    borders = [mark.ts for mark in marks]
    of_step: list[list[TraceEvent]] = [[] for _ in marks]
    for one in on_gpu:
        launch = launched_at.get(_correlation(one), one.ts)
        number = int(np.searchsorted(borders, launch, "right")) - 1
        if number >= 0 and launch <= marks[-1].end:
            of_step[number].append(one)
    if not all(of_step):
        raise ValueError("the trace has a step without any GPU kernel")
    begins = [min(one.ts for one in launched) for launched in of_step]
    ends = [*begins[1:], max(one.end for one in of_step[-1])]
    return [_gpu_step(begin, end, on_gpu) for begin, end in zip(begins, ends, strict=True)]


def _gpu_step(begin: float, end: float, on_gpu: Sequence[TraceEvent]) -> TracedStep:
    span = _within(begin, end)
    # Includes work of an earlier step that still runs.
    running = [one for one in on_gpu if one.end > begin and one.ts < end]
    computing = [one for one in running if not _COLLECTIVE.match(one.name)]
    return TracedStep(
        length=(end - begin) / _US_PER_MS,
        compute=merged([span(one) for one in computing]),
        collectives=_collectives(running, begin, end),
    )


def _correlation(event: TraceEvent) -> object:
    return event.args.get("correlation")


def _within(begin: float, end: float) -> Callable[[TraceEvent], tuple[float, float]]:
    """A function from an event to its span in ms after `begin`, cut to a step."""

    def span(event: TraceEvent) -> tuple[float, float]:
        return (max(event.ts, begin) - begin) / _US_PER_MS, (min(event.end, end) - begin) / _US_PER_MS

    return span


def _collectives(events: Iterable[TraceEvent], begin: float, end: float) -> list[TracedCollective]:
    span = _within(begin, end)
    found = [one for one in events if _COLLECTIVE.match(one.name)]
    return [
        TracedCollective(begins, ends, bool(_ALL_REDUCE.match(one.name)), message_bytes(one.args))
        for one in sorted(found, key=lambda one: one.ts)
        for begins, ends in [span(one)]
    ]


def message_bytes(args: dict[str, Any]) -> int | None:
    """Message size of a collective, from elements and type of NCCL's kernels, or of the inputs of gloo's ranges."""
    try:
        if "In msg nelems" in args:
            return int(args["In msg nelems"]) * _BYTES[str(args["dtype"]).lower()]
        sizes = zip(args["Input Dims"], args["Input type"], strict=True)
        return sum(int(np.prod(dims)) * _BYTES[str(kind).lower()] for dims, kind in sizes) or None
    except (KeyError, TypeError, ValueError):
        return None


def merged(spans: Iterable[Sequence[float]]) -> FloatArray:
    """Spans in order, with touching ones merged, (spans, 2)."""
    ordered = np.array(sorted(map(tuple, spans)), np.float64).reshape(-1, 2)
    if not len(ordered):
        return _EMPTY
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
    return merged(left)


def profiled_step(step: TracedStep) -> ProfiledStep:
    """What a step's time went into."""
    compute, busy = length_of(step.compute), length_of(step.busy)
    reduced = step.communication(only_all_reduce=True)
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
    of_steps = [([one for one in step.collectives if one.is_all_reduce], step.compute) for step in steps]
    usual = statistics.mode(len(found) for found, _ in of_steps)
    alike = [(found, compute) for found, compute in of_steps if len(found) == usual]
    buckets = []
    for number in range(usual):
        same = [(found[number], compute) for found, compute in alike]
        sizes = {one.bytes for one, _ in same}
        buckets.append(
            ProfiledBucket(
                bytes=sizes.pop() if len(sizes) == 1 else None,
                begins_ms=_median(one.begin for one, _ in same),
                took_ms=_median(one.end - one.begin for one, _ in same),
                hidden_ms=_median(covered(one.begin, one.end, compute) for one, compute in same),
            )
        )
    return tuple(buckets)


def typical_step(steps: Sequence[TracedStep]) -> TracedStep:
    """The step with the median duration; the shorter of two middle ones."""
    return sorted(steps, key=lambda step: step.length)[(len(steps) - 1) // 2]


def _median(values: Iterable[float]) -> float:
    return _rounded(statistics.median(values))


def _rounded(milliseconds: float) -> float:
    """Round to a tenth of a microsecond; differences slightly below zero become 0."""
    return round(max(0.0, milliseconds), 4)
