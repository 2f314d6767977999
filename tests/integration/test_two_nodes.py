"""Two agents on this machine that call themselves two nodes: what a gang of several nodes measures."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from pytest_ddpscale.launch.limits import Limits
from pytest_ddpscale.launch.supervisor import Supervisor
from pytest_ddpscale.plan.study import Arm, Plan, Study
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.results.by_rank import seeded_steps_of
from pytest_ddpscale.results.records import gangs_by_number
from pytest_ddpscale.results.run_directory import RunDirectory
from pytest_ddpscale.results.run_record import errors_of
from tests.builders.measurements import Measurement, measurements_in
from tests.two_nodes_here import HOSTS, two_nodes_here

pytestmark = pytest.mark.slow

TINY = Workload("tiny", "shufflenet_v2_x0_5", "fp32", 2, 32, "contiguous", num_classes=10)
ARMS = (Arm("alone", 1, 2), Arm("ddp", 2, 2), Arm("ddp", 4, 2), Arm("ddp", 2, 2, "spread"), Arm("each", 4, 2))
STUDY = Study("weak", TINY, ARMS, rounds=2, block_s=0.05, warmup_s=0.05, turns=2)
OF_RANKS = {rank: HOSTS[rank // 2] for rank in range(4)}


def test_every_node_trains_what_fits_it_and_all_together_what_does_not(tmp_path: Path) -> None:
    plan = Plan("cpu", "cpu", (STUDY,), nodes=2, ranks_per_node=2)
    run = RunDirectory.create(tmp_path / "run")
    Supervisor(two_nodes_here(), run, Limits(inactivity_s=120)).measure(plan)
    assert errors_of(run.read_records()) == {}
    measurements = measurements_in(run)
    for arm in ARMS:
        for number in range(STUDY.rounds):
            blocks = [m for m in measurements if (m.arm, m.round) == (arm.name, number)]
            assert sorted(m.rank for m in blocks) == list(plan.layout.ranks([arm], STUDY.turn(plan.seed, number)))
            assert_groups_agree(plan, arm, number, blocks)
    assert {m.rank: m.host for m in measurements} == OF_RANKS
    assert {m.rank: m.local_rank for m in measurements} == {0: 0, 1: 1, 2: 0, 3: 1}
    records = run.read_records()
    (gang,) = gangs_by_number(records).values()
    assert dict(enumerate(gang.hosts)) == OF_RANKS
    (steps,) = seeded_steps_of(records).values()
    assert {one.rank: one.host for one in steps} == OF_RANKS
    assert len({one.checksum for one in steps}) == 1


def assert_groups_agree(plan: Plan, arm: Arm, number: int, blocks: list[Measurement]) -> None:
    """DDP keeps the replicas of a group the same; those of two groups train on different images."""
    if arm.kind != "ddp":
        return
    of_rank = {m.rank: m.parameters_checksum for m in blocks}
    checksums = defaultdict(set)
    for group in plan.layout.groups(arm, STUDY.turn(plan.seed, number)):
        checksums[group] = {of_rank[rank] for rank in group}
        assert len(checksums[group]) == 1, f"{arm.name}: {of_rank}"
    assert len(set.union(*checksums.values())) == len(checksums)
