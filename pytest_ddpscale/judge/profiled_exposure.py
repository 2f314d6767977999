"""Exposed communication of one rank by two methods: from timed rounds and from profiled steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from pytest_ddpscale.judge.rounds import ArmRounds, all_groups
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.study import Study
from pytest_ddpscale.run.column_record import FloatArray
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.profile_record import ArmProfile


@dataclass(frozen=True)
class ProfiledExposure:
    """Exposed communication of a ``ddp@k`` arm, as shares of its step.

    Attributes:
        by_rounds: 1 − step time of no_sync@k ÷ that of ddp@k, in each timed round: the metric
            ``exposed_communication`` of the profiled rank alone.
        by_profile: the same from profiled steps; both arms of a pass are compared.
        waiting: share of the profiled ddp@k step in which the rank waits for a collective and computes nothing. The
            rest of `by_profile` is slower computation: a collective takes cores or SMs, and memory bandwidth.
    """

    study: str
    arm: str
    by_rounds: FloatArray
    by_profile: FloatArray
    waiting: FloatArray


def profiled_exposures(evidence: Evidence) -> Iterator[ProfiledExposure]:
    """One for each DDP arm that was profiled together with its no_sync arm."""
    profiles = {(one.study, one.arm): one for one in evidence.profiles if not one.problem}
    for study in evidence.plan.studies:
        for arm in study.arms:
            silent = next((one for one in study.arms if _is_silent(one, arm)), None)
            ddp = profiles.get((study.id, arm.name))
            no_sync = None if silent is None else profiles.get((study.id, silent.name))
            if silent is not None and ddp is not None and no_sync is not None:
                yield ProfiledExposure(
                    study.id, arm.name, _by_rounds(evidence, study, arm, silent, ddp.rank), *_by_profile(ddp, no_sync)
                )


def _is_silent(one: Arm, arm: Arm) -> bool:
    return arm.kind == "ddp" and one == replace(arm, kind="no_sync")


def _by_rounds(evidence: Evidence, study: Study, arm: Arm, silent: Arm, rank: int) -> FloatArray:
    found = [all_groups(evidence.columns, study.id, one, evidence.plan.layout) for one in (silent, arm)]
    shared = np.intersect1d(found[0].numbers, found[1].numbers)
    no_sync, ddp = (_step_s(rounds.of(np.isin(rounds.numbers, shared)), rank) for rounds in found)
    shares = 1 - no_sync / ddp
    return shares[np.isfinite(shares)]


def _step_s(rounds: ArmRounds, rank: int) -> FloatArray:
    """Mean step time of a rank in each round, NaN where it was absent."""
    [column] = np.flatnonzero(rounds.ranks.numbers == rank) if len(rounds) else [0]
    return rounds.mean_step_s[:, column] if len(rounds) else np.empty(0)


def _by_profile(ddp: ArmProfile, no_sync: ArmProfile) -> tuple[FloatArray, FloatArray]:
    passes = min(len(ddp.step_ms), len(no_sync.step_ms))
    step_ms, waiting_ms = np.array(ddp.step_ms[:passes]), np.array(ddp.waiting_ms[:passes])
    return 1 - np.array(no_sync.step_ms[:passes]) / step_ms, waiting_ms / step_ms
