"""Profiles of arms by torch.profiler, taken after the timed rounds, one record per arm."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from msgspec import Meta

from pytest_ddpscale.plan.study import MOST_PROFILED_STEPS
from pytest_ddpscale.run.strict_json import Count, Positive, Record, refuse_other_lengths

# Tolerance for rounding of the trace's clock and of the written numbers.
_SLACK_MS = 0.01
Milliseconds = Annotated[float, Meta(ge=0, le=1e10)]
PerStep = Annotated[tuple[Milliseconds, ...], Meta(max_length=MOST_PROFILED_STEPS)]


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
