"""Profiles of arms by torch.profiler, taken after the timed rounds, one record per arm."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from pytest_ddpscale.plan.study import MOST_PROFILED_STEPS
from pytest_ddpscale.run.strict_json import Count, Positive, Record

Milliseconds = Annotated[float, Meta(ge=0, le=1e10)]


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


class ProfiledStep(Record, frozen=True, kw_only=True):
    """One step, split into three parts: the rank computes, waits for a collective without computing, or is idle.

    Attributes:
        step_ms: duration, including profiler overhead.
        compute_ms: time in which a kernel other than a collective ran (CPU: an operator of the training thread).
        waiting_ms: time in which a collective ran and nothing was computed: exposed communication.
        idle_ms: the rest.
        all_reduce_ms: time in which an all-reduce ran.
        hidden_ms: part of that in which the rank computed.
    """

    step_ms: Milliseconds
    compute_ms: Milliseconds
    waiting_ms: Milliseconds
    idle_ms: Milliseconds
    all_reduce_ms: Milliseconds
    hidden_ms: Milliseconds


class ArmProfile(Record, frozen=True, kw_only=True, tag_field="kind", tag="profile"):
    """Profiled steps of one rank of an arm, or why there are none.

    Attributes:
        study: id of the study.
        arm: name of the arm.
        gang: number of the gang.
        rank: the profiled rank.
        trace: path of the gzipped Chrome trace below the run directory; empty if it could not be kept.
        problem: why there are no numbers; empty if there are.
        steps: in order.
        buckets: all-reduces of a step, in order.
    """

    study: str
    arm: str
    gang: Count
    rank: Count
    trace: str = ""
    problem: str = ""
    steps: Annotated[tuple[ProfiledStep, ...], Meta(max_length=MOST_PROFILED_STEPS)] = ()
    buckets: tuple[ProfiledBucket, ...] = ()

    def __post_init__(self) -> None:
        if bool(self.problem) == bool(self.steps):
            raise ValueError(f"problem is {self.problem!r} with {len(self.steps)} steps; expected one of the two")
