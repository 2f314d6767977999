"""Real ranks: what a gang measures, and what happens when it fails."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest

from pytest_ddpscale.launch.gang_state import Limits
from pytest_ddpscale.launch.launcher import Launch
from pytest_ddpscale.launch.supervisor import Supervisor
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.run.block import Block
from pytest_ddpscale.run.evidence import evidence_of
from pytest_ddpscale.run.records import (
    RoundEnd,
    SeededSteps,
    StudyEnd,
    StudyStart,
    WorkloadFlops,
    gangs_by_number,
)
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.run_record import ends_of
from pytest_ddpscale.run.table import Columns
from tests.builders.measurements import measurements_in
from tests.builders.trained import TINY
from tests.forks.launcher import forked_here

ARMS = (Arm("alone", 1, 2), Arm("ddp", 1, 2), Arm("ddp", 2, 2))
EVERY_KIND = (*ARMS, Arm("each", 2, 2), Arm("no_sync", 2, 2))
WEAK = Study("weak", TINY, ARMS, rounds=FEWEST_ROUNDS, block_s=0.02, warmup_s=0.02, turns=2)
WHOLE = replace(WEAK, arms=EVERY_KIND)
NARROW = replace(WEAK, scaling="strong", workload=replace(TINY, name="narrow"), arms=(Arm("alone", 1, 4),), turns=1)
STEERED = replace(WEAK, workload=replace(TINY, name="steered"), rounds=50)
LAUNCHED = tuple(replace(NARROW, workload=replace(TINY, name="launched"), launch=launch) for launch in (1, 2))
SITE_TOKEN = "hunter2-of-the-site"


def prepared(folder: Path, *studies: Study) -> tuple[RunDirectory, Plan]:
    run = RunDirectory.create(folder / "run")
    plan = Plan("cpu", "cpu", studies, launches=max(study.launch for study in studies))
    run.write_json(run.plan_json, plan)
    return run, plan


def ends(run: RunDirectory) -> dict[str, StudyEnd]:
    return ends_of(run.read_records())


def rounds_by_arm(run: RunDirectory, study: Study) -> dict[str, list[int]]:
    """Rounds of each arm in which all its ranks have a block."""
    ranks = Counter((one.arm, one.round) for one in measurements_in(run) if one.study == study.id)
    sizes = {arm.name: arm.world_size for arm in study.arms}
    return {
        arm: sorted(n for (name, n), count in ranks.items() if (name, count) == (arm, size))
        for arm, size in sizes.items()
    }


def ranks_of(run: RunDirectory) -> list[int]:
    gangs = gangs_by_number(run.read_records()).values()
    return [rank.pid for gang in gangs for rank in gang.ranks]


def assert_gone(pids: list[int]) -> None:
    assert pids
    assert not [pid for pid in pids if psutil.pid_exists(pid)]


class WantsLess:
    """A judge that after the fewest rounds wants only one arm, and after one more nothing."""

    def __init__(self) -> None:
        self.rounds = 0

    def hear(self, record: object) -> None:
        self.rounds += isinstance(record, RoundEnd)

    def needed_arms(self, study_id: str) -> list[str]:
        return ["alone", "ddp@2"] if self.rounds < FEWEST_ROUNDS else ["alone"] if self.rounds == FEWEST_ROUNDS else []


@dataclass(frozen=True)
class Gangs:
    """Runs measured at once: one undisturbed, one told what is decided, one of two launches."""

    measured: RunDirectory
    steered: RunDirectory
    launched: RunDirectory


@pytest.fixture(scope="module")
def gangs(tmp_path_factory: pytest.TempPathFactory) -> Gangs:
    """What tests look at that disturb nothing."""
    folder = tmp_path_factory.mktemp("gangs")
    runs, threads = {}, []
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("NCCL_SITE_TOKEN", SITE_TOKEN)
        of_each: dict[str, tuple[Sequence[Study], Launch, WantsLess | None]] = {
            "measured": ((WHOLE, NARROW), forked_here(), None),
            "steered": ((STEERED,), forked_here(), WantsLess()),
            "launched": (LAUNCHED, forked_here(), None),
        }
        for name, (studies, launch, judge) in of_each.items():
            runs[name], plan = prepared(folder / name, *studies)
            supervisor = Supervisor(launch, runs[name], Limits(inactivity_s=120), judge=judge)
            threads.append(threading.Thread(target=supervisor.measure, args=(plan,)))
            threads[-1].start()
        for thread in threads:
            thread.join()
    return Gangs(**runs)


@pytest.fixture
def measured(gangs: Gangs) -> RunDirectory:
    """Two studies."""
    return gangs.measured


def test_one_gang_measures_every_arm_of_every_study_in_every_round(gangs: Gangs) -> None:
    run = gangs.measured
    assert len(gangs_by_number(run.read_records())) == 1
    measurements = measurements_in(run)
    for study in (WHOLE, NARROW):
        assert rounds_by_arm(run, study) == {arm.name: list(range(FEWEST_ROUNDS)) for arm in study.arms}
    assert all(len(m.step_s) == m.steps and m.utilization is not None for m in measurements)
    assert {m.device for m in measurements} == {"cpu"}
    assert {end.reason for end in ends(run).values()} == {"rounds"}
    assert_gone(ranks_of(run))


def test_arms_take_turns_within_a_round(measured: RunDirectory) -> None:
    order = [(m.round, m.arm) for m in measurements_in(measured) if m.study == WHOLE.id]
    assert [number for number, _ in order] == sorted(number for number, _ in order)
    names = {arm.name for arm in EVERY_KIND}
    assert all({arm for number, arm in order if number == r} == names for r in range(FEWEST_ROUNDS))


def test_arms_of_every_kind_are_measured_on_their_ranks_and_replicas_agree(
    measured: RunDirectory,
) -> None:
    measurements = [m for m in measurements_in(measured) if m.study == WHOLE.id]
    for arm in EVERY_KIND:
        blocks = [m for m in measurements if m.arm == arm.name]
        each = WEAK.rounds // 2 if arm.world_size == 1 else WEAK.rounds  # ranks take turns at arms of one
        assert Counter(m.rank for m in blocks) == dict.fromkeys(range(2), each)
        assert all((m.parameters_checksum is not None) == (arm.kind == "ddp") for m in blocks)
    assert {m.skipped_steps for m in measurements} == {0}
    for number in range(WEAK.rounds):
        checksums = [m.parameters_checksum for m in measurements if (m.arm, m.round) == ("ddp@2", number)]
        assert len(checksums) == 2
        assert len(set(checksums)) == 1


def test_a_study_begins_with_a_seeded_step_of_every_rank_and_the_cost_of_an_image(
    measured: RunDirectory,
) -> None:
    records = measured.read_records()
    evidence = evidence_of(measured.read_plan(), Columns(), records)
    seeded = [(study, *step) for study, steps in evidence.seeded_steps.items() for step in steps.items()]
    assert [(study, one.rank, place.local_rank, place.uuid) for study, place, one in seeded] == [
        (WHOLE.id, 0, 0, "cpu"),
        (WHOLE.id, 1, 1, "cpu"),
        (NARROW.id, 0, 0, "cpu"),  # the other rank has no part in that study
    ]
    assert len({one.checksum for _, _, one in seeded}) == 1, "all studies train the same model"
    flops = evidence.flops_per_sample
    assert list(flops) == [WHOLE.id, NARROW.id]
    # A filter of 3 · 3 · 3 on 30 · 30 places for 4 channels, forward and for its weights; the last layer thrice.
    assert set(flops.values()) == {2 * (2 * 27 * 30 * 30 * 4) + 3 * (2 * 4 * 10)}
    kinds = [type(record) for record in records if getattr(record, "study", "") == WHOLE.id]
    assert kinds[:3] == [StudyStart, SeededSteps, WorkloadFlops]


def test_ranks_say_who_they_are_and_how_long_they_took_to_start(measured: RunDirectory) -> None:
    (gang,) = gangs_by_number(measured.read_records()).values()
    assert all(rank.import_s > 0 < rank.rendezvous_s for rank in gang.ranks)
    assert gang.ranks[0].environment["OMP_NUM_THREADS"] == os.environ.get("OMP_NUM_THREADS", "1")
    assert gang.versions_of(1)["torch"]


def test_no_file_of_the_run_has_the_value_of_a_variable_named_like_a_secret(
    measured: RunDirectory,
) -> None:
    run = measured
    (gang,) = gangs_by_number(run.read_records()).values()
    assert gang.ranks[0].environment["NCCL_SITE_TOKEN"] == "***"
    files = [path for path in run.path.rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {"measurements.jsonl", "gang-0.log"}
    assert not [path for path in files if SITE_TOKEN.encode() in path.read_bytes()]


def test_a_study_ends_when_all_is_decided_and_arms_before_it(gangs: Gangs) -> None:
    run = gangs.steered
    # Rank 0 asks for a word from the last of the fewest rounds on: until then every arm is timed.
    assert rounds_by_arm(run, STEERED) == {
        "alone": list(range(FEWEST_ROUNDS + 1)),
        "ddp@1": list(range(FEWEST_ROUNDS)),
        "ddp@2": list(range(FEWEST_ROUNDS)),
    }
    assert ends(run)[STEERED.id].reason == "decided"
    timed = [list(record.arms) for record in run.read_records() if isinstance(record, RoundEnd)]
    assert timed == [["alone", "ddp@1", "ddp@2"]] * FEWEST_ROUNDS + [["alone"]]


def test_each_launch_measures_with_processes_of_its_own(gangs: Gangs) -> None:
    records = gangs.launched.read_records()
    first, second = ({rank.pid for rank in gang.ranks} for gang in gangs_by_number(records).values())
    assert not first & second
    by_gang = [(block.study, block.gang) for block in records if isinstance(block, Block)]
    assert by_gang == [(study.id, study.launch - 1) for study in LAUNCHED for _ in range(FEWEST_ROUNDS)]
    assert {end.reason for end in ends(gangs.launched).values()} == {"rounds"}
    assert_gone(ranks_of(gangs.launched))


def test_two_gangs_at_once_do_not_meet(gangs: Gangs) -> None:
    """A nightly check beside a manual run: each has its own store and ports."""
    one, other = (gangs_by_number(run.read_records()) for run in (gangs.measured, gangs.steered))
    assert len(one) == len(other) == 1, "neither had to be started anew"
    assert not set(ranks_of(gangs.measured)) & set(ranks_of(gangs.steered))
    assert_gone(ranks_of(gangs.steered))
