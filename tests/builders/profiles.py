"""Profiles of arms, from round numbers."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_ddpscale.run.profile_record import ArmProfile, ProfiledBucket


def profile(
    study: str, arm: str, steps: Sequence[tuple[float, float, float]], reduced: Sequence[tuple[float, float]] = ()
) -> ArmProfile:
    """Of steps (duration, computing, waiting) and their all-reduces (under way, hidden), in ms."""
    reduced = reduced or [(0.0, 0.0)] * len(steps)
    is_ddp = any(under_way for under_way, _ in reduced)
    buckets = (ProfiledBucket(bytes=2**20, begins_ms=50, took_ms=reduced[0][0], hidden_ms=reduced[0][1]),)
    return ArmProfile(
        study=study, arm=arm, gang=0, rank=0, trace=f"profiles/{arm}.json.gz",
        step_ms=tuple(step for step, _, _ in steps), compute_ms=tuple(compute for _, compute, _ in steps),
        waiting_ms=tuple(waiting for _, _, waiting in steps),
        idle_ms=tuple(step - compute - waiting for step, compute, waiting in steps),
        all_reduce_ms=tuple(under_way for under_way, _ in reduced), hidden_ms=tuple(hidden for _, hidden in reduced),
        buckets=buckets if is_ddp else (),
    )  # fmt: skip
