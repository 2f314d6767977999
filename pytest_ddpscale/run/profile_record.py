"""Profiles of arms by torch.profiler, taken after the timed rounds: profiles.jsonl, one record per arm."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from msgspec import Meta

from pytest_ddpscale.plan.study import MOST_PROFILED_STEPS
from pytest_ddpscale.run.strict_json import Count, Positive, Record, refuse_other_lengths

MOST_KERNELS = 10
MOST_GAPS = 5
MOST_SPANS = 1000
LONGEST_NAME = 200
# Tolerance for rounding of the trace's clock and of the written numbers.
_SLACK_MS = 0.01
Milliseconds = Annotated[float, Meta(ge=0, le=1e10)]
Name = Annotated[str, Meta(max_length=LONGEST_NAME)]
PerStep = Annotated[tuple[Milliseconds, ...], Meta(max_length=MOST_PROFILED_STEPS)]
Lane = Literal["phase", "compute", "all_reduce", "other_collective"]


class ProfiledBucket(Record, frozen=True, kw_only=True):
    """One all-reduce of a step, medians over the steps: under DDP that of one gradient bucket.

    Attributes:
        bytes: message size; None if the trace does not have it.
        begins_ms: time since the start of the step.
        took_ms: duration, including the wait for other ranks.
        hidden_ms: part of the duration in which the rank computed.
    """

    bytes: Positive | None
    begins_ms: Milliseconds
    took_ms: Milliseconds
    hidden_ms: Milliseconds


class ProfiledKernel(Record, frozen=True, kw_only=True):
    """Kernels of one name; on a CPU operators, without nested operators.

    Attributes:
        name: from the trace, truncated.
        calls: number of calls in all profiled steps.
        ms_per_step: mean time per step of all calls.
    """

    name: Name
    calls: Positive
    ms_per_step: Milliseconds


class IdleGap(Record, frozen=True, kw_only=True):
    """A gap in which a rank neither computed nor communicated, between two kernels or operators."""

    begins_ms: Milliseconds
    lasts_ms: Milliseconds
    after: Name = ""
    before: Name = ""


class ProfileSpan(Record, frozen=True, kw_only=True):
    """A span in the timeline of one step; unnamed spans of dense computation are merged."""

    lane: Lane
    begins_ms: Milliseconds
    lasts_ms: Milliseconds
    name: Name = ""


class ArmProfile(Record, frozen=True, kw_only=True, tag_field="kind", tag="profile"):
    """Profiled steps of one rank of an arm, or why there are none.

    A step is split into three parts: the rank computes, waits for a collective without computing, or is idle.

    Attributes:
        study: id of the study.
        arm: name of the arm.
        gang: number of the gang.
        rank: the profiled rank.
        trace: path of the gzipped Chrome trace below the run directory; empty if it could not be kept.
        problem: why there are no numbers; empty if there are.
        step_ms: duration of each step, including profiler overhead.
        compute_ms: time of each step in which a kernel other than a collective ran (CPU: an operator of the training
            thread).
        waiting_ms: time in which a collective ran and nothing was computed: exposed communication.
        idle_ms: the rest.
        all_reduce_ms: time in which an all-reduce ran.
        hidden_ms: part of that in which the rank computed.
        buckets: all-reduces of a step, in order.
        longest: the kernels or operators that took longest.
        gaps: the longest idle times of the step with the median duration.
        spans: timeline of that step.
    """

    study: str
    arm: str
    gang: Count
    rank: Count
    trace: str = ""
    problem: str = ""
    step_ms: PerStep = ()
    compute_ms: PerStep = ()
    waiting_ms: PerStep = ()
    idle_ms: PerStep = ()
    all_reduce_ms: PerStep = ()
    hidden_ms: PerStep = ()
    buckets: tuple[ProfiledBucket, ...] = ()
    longest: Annotated[tuple[ProfiledKernel, ...], Meta(max_length=MOST_KERNELS)] = ()
    gaps: Annotated[tuple[IdleGap, ...], Meta(max_length=MOST_GAPS)] = ()
    spans: Annotated[tuple[ProfileSpan, ...], Meta(max_length=MOST_SPANS)] = ()

    def __post_init__(self) -> None:
        """Refuse numbers that contradict each other. Raises ValueError."""
        refuse_other_lengths(
            self, len(self.step_ms), "compute_ms", "waiting_ms", "idle_ms", "all_reduce_ms", "hidden_ms"
        )
        if bool(self.problem) == bool(self.step_ms):
            raise ValueError(f"problem is {self.problem!r} with {len(self.step_ms)} steps; expected one of the two")
        parts = zip(self.step_ms, self.compute_ms, self.waiting_ms, self.idle_ms, strict=True)
        for step, *of_step in parts:
            if abs(step - sum(of_step)) > _SLACK_MS:
                raise ValueError(f"a step of {step} ms has parts of {of_step} ms; expected them to add up")
        for reduced, hidden in zip(self.all_reduce_ms, self.hidden_ms, strict=True):
            if hidden > reduced + _SLACK_MS:
                raise ValueError(f"hidden_ms is {hidden} of {reduced} ms of all-reduce; expected no more")


def latest_profiles(profiles: Iterable[ArmProfile]) -> tuple[ArmProfile, ...]:
    """The last profile of each arm of each study."""
    return tuple({(one.study, one.arm): one for one in profiles}.values())
