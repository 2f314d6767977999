"""Results of one process on several devices by batch, compared with one device and with a rank on each device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pytest_ddpscale.judge.arm_change import samples_per_s
from pytest_ddpscale.judge.estimating import Found, estimate_of
from pytest_ddpscale.plan.arm import Arm, ArmKind
from pytest_ddpscale.plan.per_round import PerRound
from pytest_ddpscale.plan.study import Study
from pytest_ddpscale.suites.suite import MeasuredSuite, why_missing

# Arms in which one process divides a batch.
WAYS: Mapping[ArmKind, str] = {"vanilla_parallel": "our DataParallel", "data_parallel": "nn.DataParallel"}


@dataclass(frozen=True)
class Way:
    """One process that drives several devices.

    Attributes:
        kind: of the arm.
        samples_per_s: of all devices together.
        communication: share of a pass outside parallel_apply: replicate, scatter and gather; None if unknown.
        to_one: throughput relative to one device with the whole batch, in the same round.
        to_ranks: throughput relative to a rank on each device, together.
    """

    kind: ArmKind
    samples_per_s: Found
    communication: Found | None
    to_one: Found | None
    to_ranks: Found | None


@dataclass(frozen=True)
class SplitBatch:
    """One batch, which all devices share.

    Attributes:
        one: images per second of one device with the whole batch; None if it was not measured.
        ranks: images per second of a rank on each device together, at the slowest rank's pace; None if not measured.
        ways: results of each way by one process.
        problem: why something was not measured; empty if nothing is missing.
    """

    batch: int
    devices: int
    one: Found | None = None
    ranks: Found | None = None
    ways: Sequence[Way] = field(default_factory=tuple)
    problem: str = ""


def is_below(ratio: Found | None) -> bool:
    """Whether the whole interval of a throughput ratio is below 1."""
    return ratio is not None and ratio.estimate is not None and ratio.estimate.interval[1] < 1


def split_batches(measured: MeasuredSuite) -> list[SplitBatch]:
    """Results of each study, in the plan's order."""
    return [_batch(measured, study) for study in measured.evidence.plan.studies]


def _batch(measured: MeasuredSuite, study: Study) -> SplitBatch:
    paces = {arm: _node_samples_per_s(measured, study, arm) for arm in study.arms}
    one, *split, ranks = study.arms
    apply = next(paces[arm] for arm in split if arm.kind == "parallel_apply")

    def found(values: PerRound, *, is_share: bool = False) -> Found | None:
        samples = list(values)
        return estimate_of(samples, "differences" if is_share else "factors", measured.confidence) if samples else None

    ways = [
        Way(
            arm.kind, pace, found(1 - paces[arm] / apply, is_share=True), found(paces[arm] / paces[one]),
            found(paces[arm] / paces[ranks]),
        )
        for arm in split
        if arm.kind in WAYS and (pace := found(paces[arm])) is not None
    ]  # fmt: skip
    problem = ""
    if not all(len(pace) for pace in paces.values()):
        problem = why_missing(measured.evidence, study.id) or "no complete round"
    return SplitBatch(
        study.workload.batch_size, ranks.world_size, found(paces[one]), found(paces[ranks]), ways, problem
    )  # fmt: skip


def _node_samples_per_s(measured: MeasuredSuite, study: Study, arm: Arm) -> PerRound:
    """Images per second of all ranks of the slowest node, at the pace of its slowest rank."""
    return samples_per_s(measured.evidence, study, arm) * arm.world_size
