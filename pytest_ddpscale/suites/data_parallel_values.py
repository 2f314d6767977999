"""Results of one process on several devices by batch, compared with one device and with a rank on each device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from pytest_ddpscale.judge.stats import Found, estimate_of
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.study import Study
from pytest_ddpscale.suites.pace import paces
from pytest_ddpscale.suites.suite import MeasuredSuite, why_incomplete
from pytest_ddpscale.util.arrays import FloatArray

# Arms in which one process divides a batch.
WAYS: Mapping[str, str] = {"vanilla_parallel": "our DataParallel", "data_parallel": "nn.DataParallel"}


@dataclass(frozen=True)
class Way:
    """One process that drives several devices.

    Attributes:
        kind: of the arm.
        samples_per_s: of all devices together.
        communication: share of a pass outside parallel_apply: replicate, scatter and gather; None if unknown, as of
            torch's, whose parallel_apply is not timed.
        to_one: throughput relative to one device with the whole batch, in the same round.
        to_ranks: throughput relative to a rank on each device, together.
    """

    kind: str
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
        problem: why something was not measured, or in fewer rounds than planned; empty if it ended as planned.
    """

    batch: int
    devices: int
    one: Found | None = None
    ranks: Found | None = None
    ways: Sequence[Way] = field(default_factory=tuple)
    problem: str = ""


def is_below(ratio: Found | None) -> bool:
    """Whether the whole interval of a throughput ratio is below 1."""
    return ratio is not None and ratio.interval is not None and ratio.interval[1] < 1


def split_batches(measured: MeasuredSuite) -> list[SplitBatch]:
    """Results of each study, in the plan's order."""
    return [_batch(measured, study) for study in measured.evidence.plan.studies]


def _batch(measured: MeasuredSuite, study: Study) -> SplitBatch:
    one, *split, ranks = study.arms
    apply = next(arm for arm in split if arm.kind == "parallel_apply")

    def node_samples_per_s(*arms: Arm) -> FloatArray:
        """Of all ranks of the slowest node, at the pace of its slowest rank, in the rounds that all arms have."""
        sizes = np.array([[arm.world_size] for arm in arms])
        return np.asarray(paces(measured.evidence, study, *arms) * sizes)

    def found(arm: Arm, baseline: Arm | None = None) -> Found | None:
        values = node_samples_per_s(arm) if baseline is None else node_samples_per_s(arm, baseline)
        ratios = values[0] if baseline is None else values[0] / values[1]
        return estimate_of(ratios, "factors", measured.confidence) if len(ratios) else None

    def communication(arm: Arm) -> Found | None:
        if arm.kind == "data_parallel":
            return None
        of_arm, of_apply = node_samples_per_s(arm, apply)
        return estimate_of(1 - of_arm / of_apply, "differences", measured.confidence) if len(of_arm) else None

    ways = [
        Way(arm.kind, pace, communication(arm), found(arm, one), found(arm, ranks))
        for arm in split
        if arm.kind in WAYS and (pace := found(arm)) is not None
    ]
    is_measured = all(node_samples_per_s(arm).size for arm in study.arms)
    problem = why_incomplete(measured.evidence, study, is_measured=is_measured)
    return SplitBatch(study.workload.batch_size, ranks.world_size, found(one), found(ranks), ways, problem)
