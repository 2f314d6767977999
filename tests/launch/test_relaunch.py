"""After a gang has ended, another goes on with what is left, on the nodes that are left.

The gangs are scripted: each writes the records it is told to, and ends as it is told to.
"""

from __future__ import annotations

import json
import re
import signal
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpscale.families.image import ImageFamily
from pytest_ddpscale.launch import supervisor as supervisor_module
from pytest_ddpscale.launch.gang_state import GangEnd, GangOwner, Limits
from pytest_ddpscale.launch.launcher import Launch
from pytest_ddpscale.launch.slurm import SlurmLauncher
from pytest_ddpscale.launch.supervisor import Supervisor
from pytest_ddpscale.node.protocol import SILENCE_S, Task
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.report.words.reasons import say
from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.record_lines import AnyRecord, line_of
from pytest_ddpscale.run.records import GpuErrors, RankGpuError, StudyEnd, StudyStart
from pytest_ddpscale.run.run_directory import RunDirectory
from tests.builders.json_types import read_as
from tests.builders.launches import slurm
from tests.tables import assert_approved, each_block

ON_A_NODE, TOO = (
    Study("weak", Workload(name, ImageFamily("resnet18"), "fp32", 4), (Arm("ddp", 2, 4),), 5, 1.0, 1.0)
    for name in ("r", "v")
)
ON_ALL = Study("strong", Workload("r", ImageFamily("resnet18"), "fp32", 4), (Arm("ddp", 6, 4),), 5, 1.0, 1.0)
PLAN = Plan("cpu", "cpu", (ON_A_NODE, ON_ALL, TOO), nodes=3, ranks_per_node=2)
IDS = list(PLAN.study_ids)
HOSTS = ("n1", "n2", "n3")
DIED = GangEnd(None, "rank 3 on n2 was killed by SIGKILL")


@dataclass
class Act:
    """What a gang does: studies it measures, the one it dies in, and its end."""

    measures: tuple[str, ...]
    end: GangEnd | BaseException = GangEnd(0)  # noqa: RUF009 (frozen)
    dies_in: str | None = None


class Stage:
    """Plays gangs, one after the other."""

    def __init__(self, run: RunDirectory) -> None:
        self.run = run
        self.acts: list[Act] = []
        self.started: list[tuple[Task, Launch, Path]] = []

    def supervise(self, *acts: Act, hosts: tuple[str, ...] = HOSTS, limits: Limits | None = None) -> dict[str, Any]:
        """Measure the plan. Returns each study's end: reason and message."""
        self.acts = list(acts)
        Supervisor(Launch(slurm(), {}, hosts), self.run, limits or Limits()).measure(PLAN)
        assert not self.acts, "all gangs were started"
        return self.ends

    @property
    def ends(self) -> dict[str, Any]:
        ends = [record for record in self.run.read_records() if isinstance(record, StudyEnd)]
        assert len({end.study for end in ends}) == len(ends), "a study ends once"
        return {end.study: (end.reason, say(end.message)) for end in ends}

    def gang(self, task: Task, launch: Launch, limits: Limits, log: Path, owner: GangOwner) -> Any:
        """In place of `Gang`."""
        stage = self

        def measures(record: AnyRecord) -> None:
            for kept in owner.keep(line_of(record)):
                owner.hear(kept)

        class Scripted:
            def run(self) -> GangEnd:
                act = stage.acts.pop(0)
                stage.started.append((task, launch, log))
                log.touch()
                for study in act.measures:
                    measures(StudyStart(study=study, unix_s=1.0))
                    measures(StudyEnd(study, "rounds"))
                if act.dies_in:
                    measures(StudyStart(study=act.dies_in, unix_s=1.0))
                if isinstance(act.end, BaseException):
                    raise act.end
                return act.end

        return Scripted()

    @property
    def tasks(self) -> list[Task]:
        """What the gangs' agents were told."""
        return [task for task, _, _ in self.started]

    def studies(self, gang: int) -> list[str]:
        """What a gang was asked to measure."""
        return list(self.tasks[gang].assignment.studies)


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    run = RunDirectory.create(tmp_path / "run")
    found = Stage(run)
    monkeypatch.setattr(supervisor_module, "Gang", found.gang)
    return found


def test_one_gang_is_enough_if_nothing_goes_wrong(stage: Stage) -> None:
    ends = stage.supervise(Act(tuple(IDS)))
    assert ends == dict.fromkeys(IDS, ("rounds", ""))
    [(task, launch, log)] = stage.started
    assert (task.nodes, task.ranks_per_node, launch.nodes, launch.hosts) == (3, 2, 3, HOSTS)
    assert task.gang_id == launch.gang_id
    assert log == stage.run.logs / "gang-0.log"
    assert read_as(Plan, json.loads(bytes(task.assignment.plan))) == PLAN


TABLE = Path(__file__).with_name("relaunches.txt")


def acted(text: str) -> Act:
    """``weak/r weak/v dies=strong/r lost=n2: why``: studies a gang measures, and how it ends."""
    does, _, why = text.partition(": ")
    studies, given = [word for word in does.split() if "=" not in word], dict(re.findall(r"(\w+)=(\S*)", does))
    if "signal" in given:
        return Act(tuple(studies), KeyboardInterrupt(given["signal"]), given.get("dies"))
    errors: tuple[RankGpuError, ...] = ()
    if "gpu" in given or "peer" in given:
        study, _, arm = given.get("gpu", "").partition(",")
        place = Place("n2", 1, "GPU-7")
        errors = (RankGpuError(place, "unknown error", False, study or None, arm or None, peer=given.get("peer", "")),)
    lost, interrupted = tuple(filter(None, [given.get("lost")])), "the job was preempted" * ("preempted" in given)
    end = GangEnd(None if why else 0, why, interrupted, lost, gpu_errors=errors)
    return Act(tuple(studies), end, given.get("dies"))


@each_block(TABLE)
def test_another_gang_goes_on(block: str, stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A case of relaunches.txt: what each gang does, one after the other."""
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)

    def told(case: str) -> Iterator[str]:
        stage.run, stage.started = RunDirectory.create(tmp_path / str(zlib.crc32(case.encode()))), []
        with suppress(KeyboardInterrupt):
            stage.supervise(*map(acted, case.split(" > ")))
        assert len({task.gang_id for task in stage.tasks}) == len(stage.started)
        for task, launch, log in stage.started:
            assert task.nodes == launch.nodes
            yield f"{log.name}: {' '.join(task.assignment.studies)} on {' '.join(launch.hosts)}, {task.nodes} nodes"
        yield from (f"{study} {reason}{why and ': '}{why}" for study, (reason, why) in stage.ends.items())
        for one in stage.run.read_records():
            if isinstance(one, GpuErrors):
                peers = [(error.place.uuid, error.peers) for error in one.errors]
                yield f"gang {one.gang} of {one.ranks} ranks, in {' '.join(one.studies)}: {peers}"

    assert_approved(TABLE, block, told)


def test_a_signal_is_explained_by_slurm_if_it_can(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SlurmLauncher, "why_signalled", lambda self: "the job reached its time limit of 1:00")
    with pytest.raises(KeyboardInterrupt):
        stage.supervise(Act((), KeyboardInterrupt(signal.SIGTERM.name)))
    assert set(stage.ends.values()) == {("interrupted", "the job reached its time limit of 1:00")}


def test_a_torn_record_is_cut_before_others_follow(stage: Stage) -> None:
    stage.run.append_record(StudyStart(study="x", unix_s=1.0))
    with stage.run.measurements_jsonl.open("a") as file:
        file.write('{"kind": "measure')
    assert stage.supervise(Act((), DIED)) == dict.fromkeys(IDS, ("error", say(DIED.why)))


def test_agents_of_many_nodes_speak_less_often(stage: Stage) -> None:
    stage.supervise(Act(tuple(IDS)))
    assert stage.tasks[0].beat_s == 1.0
    for nodes, beat_s in ((128, 128 * 8 / 200), (1024, SILENCE_S / 3)):  # and not as seldom as lost ones
        plan = Plan("cpu", "cpu", PLAN.studies, nodes=nodes, ranks_per_node=8)
        stage.acts = [Act(tuple(IDS))]
        Supervisor(Launch(slurm(), {}), stage.run, Limits()).measure(plan)
        assert stage.tasks[-1].beat_s == pytest.approx(beat_s)


def test_what_is_no_record_is_kept_and_passed_over(stage: Stage) -> None:
    """The judge refuses it later, and says which line it is."""
    supervisor = Supervisor(Launch(slurm(), {}), stage.run, Limits())
    end = StudyEnd("weak/r", "rounds")
    lines = b'garbage\n{"kind":"telemetry"}\n[1]\n' + line_of(end)
    assert supervisor.keep(lines) == [end]
    assert stage.run.measurements_jsonl.read_bytes() == lines


def test_only_agents_that_do_not_share_our_environment_are_told_of_it(stage: Stage, monkeypatch: Any) -> None:
    environment = {"NCCL_IB_HCA": "mlx5", "HOME": "/root", "OMP_NUM_THREADS": "2"}
    for shares, told in ((True, {}), (False, {"NCCL_IB_HCA": "mlx5", "OMP_NUM_THREADS": "2"})):
        monkeypatch.setattr(SlurmLauncher, "shares_environment", shares)
        stage.acts = [Act(tuple(IDS))]
        Supervisor(Launch(slurm(), environment, HOSTS), stage.run, Limits()).measure(PLAN)
        assert stage.tasks[-1].environment == told


def test_a_gang_that_dies_while_it_profiles_costs_the_profile_and_nothing_else(stage: Stage) -> None:
    launch = Launch(slurm(profile="2"), {}, HOSTS)
    supervisor = Supervisor(launch, stage.run, Limits(), isolate=True)
    stage.acts = [Act((IDS[0],), DIED), Act((IDS[1],)), Act((IDS[2],))]
    supervisor.measure(PLAN)
    assert stage.ends == dict.fromkeys(IDS, ("rounds", ""))
    assert [task.assignment.profile_steps for task in stage.tasks] == [2, 2, 2]
