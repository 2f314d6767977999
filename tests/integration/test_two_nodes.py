"""Two agents on this machine that call themselves two nodes: what a gang of several nodes measures, by NCCL's rules."""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_ddpscale.launch.gang_state import Limits
from pytest_ddpscale.launch.supervisor import Supervisor
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.pairing import PairStudy
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.run.evidence import evidence_of
from pytest_ddpscale.run.records import gangs_by_number
from pytest_ddpscale.run.run_record import ended
from pytest_ddpscale.run.table import Columns
from tests.builders.measurements import Measurement, measurements_in
from tests.nccl_rules import test_gangs
from tests.nccl_rules.checking import violations
from tests.nccl_rules.ranks import RUN_DIR_VARIABLE
from tests.nccl_rules.test_gangs import Measured, groups_of, prepared, probes
from tests.two_nodes_here import HOSTS, two_nodes_here

pytestmark = pytest.mark.lab

SPREAD = Arm("ddp", 2, 2, "spread")
STUDY = replace(test_gangs.study(4, SPREAD), turns=2)
PLAN = Plan(
    "cpu", "cpu", (STUDY,), probes=probes(2, 4), pairs=PairStudy((Arm("all-reduce-4kib", 2),), 2), nodes=2,
    ranks_per_node=2,
)  # fmt: skip
OF_RANKS = {rank: HOSTS[rank // 2] for rank in range(4)}
LIMITS = Limits(inactivity_s=120.0)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    """What is larger than a node, spread over both, and pairs of nodes, too."""
    run = prepared(tmp_path_factory.mktemp("nodes") / "run", PLAN)
    path = os.pathsep.join([str(Path(test_gangs.__file__).with_name("site")), str(test_gangs.ROOT)])
    launch = two_nodes_here({"PYTHONPATH": path, RUN_DIR_VARIABLE: str(run.path)})
    Supervisor(launch, run, LIMITS).measure(PLAN)
    return Measured(run, has_failed=False)


def test_two_agents_keep_the_rules(measured: Measured) -> None:
    assert set(measured.ends.values()) == {"rounds", "decided"}, measured.ends
    pairs = {(0, 1), (2, 3), (0, 2), (1, 3)}
    assert groups_of(measured.logs) == {(0,), (1,), (2,), (3,), *pairs, (0, 1, 2, 3)}
    assert violations(measured.logs, 1.5 * LIMITS.inactivity_s + 30) == []


def test_every_node_trains_what_fits_it_and_all_together_what_does_not(measured: Measured) -> None:
    assert ended(measured.run.read_records(), "error") == {}
    measurements = measurements_in(measured.run)
    for arm in STUDY.arms:
        for number in range(STUDY.rounds):
            blocks = [m for m in measurements if (m.arm, m.round) == (arm.name, number)]
            assert sorted(m.rank for m in blocks) == list(PLAN.layout.ranks([arm], STUDY.turn(PLAN.seed, number)))
            assert_groups_agree(arm, number, blocks)


def test_ranks_are_numbered_from_node_to_node(measured: Measured) -> None:
    measurements, records = measurements_in(measured.run), measured.run.read_records()
    assert {m.rank: m.host for m in measurements} == OF_RANKS
    assert {m.rank: m.local_rank for m in measurements} == {0: 0, 1: 1, 2: 0, 3: 1}
    (gang,) = gangs_by_number(records).values()
    assert {rank: place.host for rank, place in enumerate(gang.places)} == OF_RANKS
    (steps,) = evidence_of(PLAN, Columns(), records).seeded_steps.values()
    assert {one.rank: place.host for place, one in steps.items()} == OF_RANKS
    assert len({one.checksum for one in steps.values()}) == 1


def assert_groups_agree(arm: Arm, number: int, blocks: list[Measurement]) -> None:
    """DDP keeps the replicas of a group the same; those of two groups train on different images."""
    if arm.kind != "ddp":
        return
    of_rank = {m.rank: m.parameters_checksum for m in blocks}
    checksums = defaultdict(set)
    for group in PLAN.layout.groups(arm, STUDY.turn(PLAN.seed, number)):
        checksums[group] = {of_rank[rank] for rank in group}
        assert len(checksums[group]) == 1, f"{arm.name}: {of_rank}"
    assert len(set.union(*checksums.values())) == len(checksums)
