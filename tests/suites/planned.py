"""A suite planned for GPUs that are not here, and measured as if they had known paces."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Mapping

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.suites.engine import MeasuredSuite, Suite, nodes_of
from tests.builders.judged import evidence_of_plan, make_measurement
from tests.suites.run_records import SUITE_RECORD

A6000 = ("--gpu-sku=a6000", "--ddp-hosts=n1", "--ddp-exec=true {host}")
# Samples per second of a rank, by study, arm, round and rank.
Pace = Callable[[Study, Arm, int, int], float]


def planned(suite: Suite, *options: str, gpus: int = 4, sku: tuple[str, ...] = A6000) -> Plan:
    """On one node of A6000. Raises BadInput."""
    parser = argparse.ArgumentParser()
    suite.add_to(parser)
    arguments = parser.parse_args([*sku, f"--ddp-gpus-per-node={gpus}", *options])
    return suite.plan(arguments, nodes_of(arguments))


def played(
    plan: Plan, pace: Pace, ended: Mapping[str, tuple[int, str]] | None = None, without: Collection[str] = (),
    waited_s: float | None = None, without_rank: int | None = None,
) -> MeasuredSuite:  # fmt: skip
    """All rounds of a plan; of studies by workload that `ended` in an error some, and none of the arms `without`."""
    errors = {study.workload.name: study.id for study in plan.studies if study.workload.name in (ended or {})}
    found = [
        make_measurement(
            study.id, arm, number, rank, pace(study, arm, number, rank), host="n1", local_rank=rank,
            device=f"GPU-{rank}",
            waited_s=None if waited_s is None or arm.variant.data == "synthetic" else waited_s * (1 + rank),
        )
        for study in plan.studies
        for number in range((ended or {}).get(study.workload.name, (study.rounds, ""))[0])
        for arm in study.arms if arm.name not in without
        for rank in (range(arm.world_size) if arm.world_size > 1 else [study.turn(plan.seed, number)])
        if rank != without_rank
    ]  # fmt: skip
    told = {errors[name]: why for name, (_, why) in (ended or {}).items()}
    return MeasuredSuite(evidence_of_plan(plan, found, errors=told), 0.95, SUITE_RECORD)


def wavering(number: int) -> float:
    """Rounds differ as much as intervals need."""
    return 1 + 0.001 * (number % 3)
