"""After a gang has ended, another goes on with what is left, on the nodes that are left.

The gangs are scripted: each writes the records it is told to, and ends as it is told to.
"""

from __future__ import annotations

import json
import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpscale.families.image import ImageFamily
from pytest_ddpscale.launch import supervisor as supervisor_module
from pytest_ddpscale.launch.gang_owner import GangEnd, GangOwner
from pytest_ddpscale.launch.launcher import Launch
from pytest_ddpscale.launch.limits import Limits
from pytest_ddpscale.launch.slurm import SlurmLauncher
from pytest_ddpscale.launch.supervisor import Supervisor
from pytest_ddpscale.node.protocol import SILENCE_S, Failed, Task
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.record_lines import AnyRecord, line_of
from pytest_ddpscale.run.records import GpuErrors, RankGpuError, StudyEnd, StudyStart
from pytest_ddpscale.run.run_directory import RunDirectory
from tests.builders.json_types import read_as
from tests.builders.launches import slurm

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
        return {end.study: (end.reason, end.message) for end in ends}

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


def test_the_study_in_which_it_died_is_an_error_and_the_next_goes_on(stage: Stage) -> None:
    ends = stage.supervise(Act((IDS[0],), DIED, dies_in=IDS[1]), Act((IDS[2],)))
    assert ends == {IDS[0]: ("rounds", ""), IDS[1]: ("error", DIED.why), IDS[2]: ("rounds", "")}
    assert stage.studies(1) == [IDS[2]]
    assert stage.tasks[0].gang_id != stage.tasks[1].gang_id
    assert stage.started[1][2] == stage.run.logs / "gang-1.log"


def test_one_that_died_before_any_study_is_not_tried_for_every_study(stage: Stage) -> None:
    assert stage.supervise(Act((), DIED)) == dict.fromkeys(IDS, ("error", DIED.why))


def test_once_a_gang_has_measured_one_that_cannot_start_has_another_try(stage: Stage) -> None:
    """A port or a device may not be free again at once."""
    first = Act((), DIED, dies_in=IDS[0])
    ends = stage.supervise(first, Act((), GangEnd(1, "no port")), Act(tuple(IDS[1:])))
    assert ends == {IDS[0]: ("error", DIED.why), IDS[1]: ("rounds", ""), IDS[2]: ("rounds", "")}


def test_and_no_more_than_one(stage: Stage) -> None:
    first = Act((), DIED, dies_in=IDS[0])
    ends = stage.supervise(first, Act((), GangEnd(1, "no port")), Act((), GangEnd(1, "still no port")))
    assert [ends[study] for study in IDS[1:]] == [("error", "still no port")] * 2


def test_a_lost_node_is_left_out_and_what_needs_it_is_an_error(stage: Stage) -> None:
    lost = GangEnd(None, "n2 was silent for 30 s", lost_hosts=("n2",))
    ends = stage.supervise(Act((), lost, dies_in=IDS[0]), Act((IDS[2],)))
    assert ends == {
        IDS[0]: ("error", lost.why),
        IDS[1]: ("error", "needs all 3 nodes, but n2 was lost before"),
        IDS[2]: ("rounds", ""),
    }
    task, launch, _ = stage.started[1]
    assert (task.nodes, launch.nodes, launch.hosts) == (2, 2, ("n1", "n3"))


def test_what_slurm_ends_is_interrupted_and_no_gang_follows(stage: Stage) -> None:
    end = replace(gpu_error(IDS[1]), interrupted="the job was preempted")
    ends = stage.supervise(Act((IDS[0],), end, dies_in=IDS[1]))
    assert ends == {IDS[0]: ("rounds", "")} | dict.fromkeys(IDS[1:], ("interrupted", "the job was preempted"))
    assert not any(isinstance(one, GpuErrors) for one in stage.run.read_records())


@pytest.mark.parametrize(
    ("interrupt", "why"),
    [(KeyboardInterrupt(), "Ctrl-C was pressed"), (KeyboardInterrupt("SIGTERM"), "SIGTERM was received")],
)
def test_what_a_person_ends_is_interrupted_too(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, interrupt: KeyboardInterrupt, why: str
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with pytest.raises(KeyboardInterrupt):
        stage.supervise(Act((IDS[0],), interrupt, dies_in=IDS[1]))
    assert stage.ends == {IDS[0]: ("rounds", "")} | dict.fromkeys(IDS[1:], ("interrupted", why))


def test_a_signal_is_explained_by_slurm_if_it_can(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SlurmLauncher, "why_signalled", lambda self: "the job reached its time limit of 1:00")
    with pytest.raises(KeyboardInterrupt):
        stage.supervise(Act((), KeyboardInterrupt(signal.SIGTERM.name)))
    assert set(stage.ends.values()) == {("interrupted", "the job reached its time limit of 1:00")}


def test_reports_of_ranks_are_kept_beside_their_logs(stage: Stage) -> None:
    report = Failed(node=1, host="n2", local_rank=1, rank=3, type="ValueError")
    end = GangEnd(None, "rank 3 failed", failures=(report, Failed(node=0, host="n1", local_rank=0)))
    stage.supervise(Act((), end))
    folder = stage.run.logs / "gang-0"
    found = json.loads((folder / "rank-3.error.json").read_text())
    assert (found["rank"], found["host"], found["type"]) == (3, "n2", "ValueError")
    assert (folder / "rank--1.error.json").exists()


def test_a_torn_record_is_cut_before_others_follow(stage: Stage) -> None:
    stage.run.append_record(StudyStart(study="x", unix_s=1.0))
    with stage.run.measurements_jsonl.open("a") as file:
        file.write('{"kind": "measure')
    assert stage.supervise(Act((), DIED)) == dict.fromkeys(IDS, ("error", DIED.why))


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


def gpu_error(study: str | None, arm: str | None = None) -> GangEnd:
    place, error = Place("n2", 1, "GPU-7"), "CUDA error: unspecified launch failure"
    ended = RankGpuError(place=place, error=error, study=study, arm=arm)
    return GangEnd(None, "rank 3 on n2, GPU 7 (GPU-7), failed", gpu_errors=(ended,))


def test_an_error_of_a_gpu_is_recorded_with_the_number_of_its_peers(stage: Stage) -> None:
    stage.supervise(
        Act((), gpu_error("weak/r", "ddp@2"), dies_in="weak/r"),
        Act((), gpu_error("strong/r", "ddp@6"), dies_in="strong/r"),
        Act(("weak/v",)),
    )
    found = [one for one in stage.run.read_records() if isinstance(one, GpuErrors)]
    assert [(one.gang, one.ranks, one.studies) for one in found] == [(0, 6, ("weak/r",)), (1, 6, ("strong/r",))]
    assert [(error.place.uuid, error.peers) for one in found for error in one.errors] == [("GPU-7", 5), ("GPU-7", 5)]


def test_a_gang_that_a_link_ends_before_its_first_study_is_not_tried_again(stage: Stage) -> None:
    lost = RankGpuError(Place("n1", 0), "n2 did not answer", peer="10.0.0.2")
    stage.supervise(Act((), GangEnd(None, "n2 did not answer", gpu_errors=(lost,))))
    assert len(stage.started) == 1


def test_a_gang_that_a_gpu_ends_before_its_first_study_is_tried_once_more(stage: Stage) -> None:
    ends = stage.supervise(Act((), gpu_error(None)), Act((), gpu_error(None)))
    assert {reason for reason, _ in ends.values()} == {"error"}
    assert len(stage.started) == 2
    found = [one for one in stage.run.read_records() if isinstance(one, GpuErrors)]
    assert [error.peers for one in found for error in one.errors] == [5, 5]
