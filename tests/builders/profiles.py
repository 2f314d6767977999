"""Profiles of arms, from round numbers."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_ddpscale.run.records import ArmProfile, ProfiledBucket, ProfiledStep


def profile(
    study: str, arm: str, steps: Sequence[tuple[float, float, float]], reduced: Sequence[tuple[float, float]] = ()
) -> ArmProfile:
    """Of steps (duration, computing, waiting) and their all-reduces (under way, hidden), in ms."""
    reduced = reduced or [(0.0, 0.0)] * len(steps)
    is_ddp = any(under_way for under_way, _ in reduced)
    buckets = (ProfiledBucket(bytes=2**20, begins_ms=50, took_ms=reduced[0][0], hidden_ms=reduced[0][1]),)
    profiled = tuple(
        ProfiledStep(
            step_ms=step, compute_ms=compute, waiting_ms=waiting, idle_ms=step - compute - waiting,
            all_reduce_ms=under_way, hidden_ms=hidden,
        )
        for (step, compute, waiting), (under_way, hidden) in zip(steps, reduced, strict=True)
    )  # fmt: skip
    return ArmProfile(
        study=study, arm=arm, gang=0, rank=0, trace=f"profiles/{arm}.json.gz", steps=profiled,
        buckets=buckets if is_ddp else (),
    )  # fmt: skip
