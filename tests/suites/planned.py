"""A suite planned for GPUs that are not here, measured as if they had known paces, and what is told of that."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.run.run_json import RunRecord, ThresholdsUsed
from pytest_ddpscale.suites.engine import MeasuredSuite, Suite, nodes_of
from pytest_ddpscale.suites.results import Results
from tests.builders.judged import evidence_of_plan, make_measurement

A6000 = ("--gpu-sku=a6000", "--ddp-hosts=n1", "--ddp-exec=true {host}")
TWO_NODES = (*A6000[:1], "--ddp-hosts=n1,n2", *A6000[2:])
SUITE_RECORD = RunRecord(
    sku="cpu", status="finished", started_at="2026-11-22T10:00:00+00:00", argv=("ddpscale", "suite", "<b>"),
    thresholds=ThresholdsUsed(str(Path("thresholds.yaml")), "0" * 64), versions={"torch": "2.15"},
)  # fmt: skip
BROKE = "rank 0 on n1 failed: OutOfMemoryError: CUDA out of memory\nits stack"
# Samples per second of a rank, by study, arm, round and rank.
Pace = Callable[[Study, Arm, int, int], float]


def planned(suite: Suite, *options: str, gpus: int = 4, sku: tuple[str, ...] = A6000) -> Plan:
    """On one node of A6000. Raises BadInput."""
    parser = argparse.ArgumentParser()
    suite.add_to(parser)
    arguments = parser.parse_args([*sku, f"--ddp-gpus-per-node={gpus}", *options])
    return suite.plan(arguments, nodes_of(arguments))


def played(
    plan: Plan, pace: Pace, ended: Mapping[str, int] | None = None, waited_s: float = 0.0,
    is_lost: Callable[[Study, Arm, int], bool] = lambda *_: False,
) -> MeasuredSuite:  # fmt: skip
    """All rounds of a plan; of studies that an error ended only some, and none of ranks that are lost to an arm."""
    rounds = ended or {}
    found = [
        make_measurement(
            study.id, arm, number, rank, pace(study, arm, number, rank), host="n1", local_rank=rank,
            device=f"GPU-{rank}", waited_s=None if arm.variant.data == "synthetic" else waited_s * (1 + rank),
        )
        for study in plan.studies
        for number in range(rounds.get(study.id, study.rounds))
        for arm in study.arms
        for rank in (range(arm.world_size) if arm.world_size > 1 else [study.turn(plan.seed, number)])
        if not is_lost(study, arm, rank)
    ]  # fmt: skip
    return MeasuredSuite(evidence_of_plan(plan, found, errors=dict.fromkeys(rounds, BROKE)), 0.95, SUITE_RECORD)


def wavering(number: int) -> float:
    """Rounds differ as much as intervals need."""
    return 1 + 0.001 * (number % 3)


def text_of(*results: Results) -> str:
    """What a terminal shows of them, and of each figure what is said to those who do not see it."""
    lines = list[str]()
    for result in results:
        lines += [*result.lines(0.95), *(f"figure: {picture.alt}" for picture in result.drawn), ""]
    return "\n".join(lines)
