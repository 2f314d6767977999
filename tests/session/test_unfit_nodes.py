"""Nodes that fail a check before anything is launched: measured all the same, left out, or a reason to stop."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpscale.judge.checks import unfit_nodes
from pytest_ddpscale.launch.launcher import Cluster, Launch
from pytest_ddpscale.launch.supervisor import PreflightFailed
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.run.record_lines import Unfit
from pytest_ddpscale.run.records import StudyEnd
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.survey_record import Survey, surveys_of
from pytest_ddpscale.run.verdicts import Judgement
from pytest_ddpscale.session import evidence
from pytest_ddpscale.session.open import THIS_MACHINE, Machine
from pytest_ddpscale.session.session import AcceptanceSession
from pytest_ddpscale.settings import UNFIT
from tests.approved import assert_approved, masked
from tests.builders.sessions import THRESHOLDS, InstantGang, Open
from tests.session.conftest import told

PER_NODE = 2
THREE = ("n1", "n2", "n3")
THREE_NODES = Cluster(3, THREE, launcher="slurm")
TOGETHER = "throughput_per_gpu[r-3nodes]"
CHECKED = THRESHOLDS.replace("    requirements: []\n", "    requirements: [{check: gpus, severity: fail}]\n").replace(
    "    - {strong_scaling_speedup: {8: 6.5}", "    - {throughput_per_gpu: {3 nodes: 500}"
)


class SurveyedGang(InstantGang):
    """Nodes are what their surveys say, and those that are admitted measure at once."""

    launches: list[Any] = []  # noqa: RUF012 (each test has a list of its own)
    cores: dict[str, int] = {}  # noqa: RUF012 (likewise; of a node that is not there: as many as ranks)
    problem = ""

    def __init__(self, launch: Launch, *given: Any, **named: Any) -> None:
        super().__init__(launch, *given, **named)
        self.launch: Launch = launch
        self.measured: tuple[str, ...] = ()

    def measure(self, plan: Plan) -> None:
        self.plan, hosts = plan, self.launch.hosts or THREE[: plan.nodes]
        if plan.survey:
            found = [Survey(host, 1.7e9, self.problem, cores=self.cores.get(host, PER_NODE)) for host in hosts]
            self.run.append_records(found)
            if (refused := self.named["preflight"](found)) and plan.study_ids:
                raise PreflightFailed(refused)
        self.hosts = self.measured = hosts
        super().measure(plan)
        if plan.pairs is not None:
            self.run.append_record(StudyEnd(plan.pairs.id, "decided"))


class Stage:
    """Sessions on nodes of two ranks, of which n2 has one core only.

    Attributes:
        gangs: every launch.
        heard: what listeners were told.
    """

    def __init__(self, opened: Open, gangs: list[SurveyedGang]) -> None:
        self._opened = opened
        self.gangs = gangs
        self.heard: list[Any] = []

    def session(self, unfit: str | None, cluster: Cluster = THREE_NODES, **options: str | None) -> AcceptanceSession:
        """A session about to measure everything."""
        session = self._opened(**{"ddp_unfit": unfit, "ddp_nodes": str(cluster.nodes), **options})
        vars(session.interim)["hear"] = self.heard.append
        session.source.machine = Machine(cluster, PER_NODE)
        session.source.select(session.source.cases)
        session.source.open_run()
        return session

    def judged(self, session: AcceptanceSession) -> Judgement:
        """What a session comes to in which every test asks."""
        for case in session.source.selected:
            session.judge(case)
        session.source.close("finished")
        judgement = session.conclude(interrupted=False, spoiled=())
        session.source.release()
        return judgement

    def run(self, unfit: str | None, cluster: Cluster = THREE_NODES) -> Judgement:
        """A whole session."""
        return self.judged(self.session(unfit, cluster))

    @property
    def told_unfit(self) -> list[dict[str, str]]:
        return [dict(record.nodes) for record in self.heard if isinstance(record, Unfit)]


@pytest.fixture
def stage(opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "srun").symlink_to("/bin/true")  # which a machine without Slurm lacks; nothing is started with it
    monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)
    (tmp_path / "thresholds.yaml").write_text(CHECKED, encoding="utf-8")
    gangs: list[SurveyedGang] = []
    monkeypatch.setattr(SurveyedGang, "launches", gangs)
    monkeypatch.setattr(SurveyedGang, "cores", {"n2": 1})
    monkeypatch.setattr(evidence, "Supervisor", SurveyedGang)
    return Stage(opened, gangs)


ELSEWHERE = Cluster(3, (), launcher="slurm", is_elsewhere=True)
TWO_NODES = Cluster(2, ("n1", "n2"), launcher="slurm")
UNHEARD = {"problem": "nvmlInit did not return"}


def told_of(stage: Stage, judgement: Judgement, run: RunDirectory) -> Iterator[str]:
    """What was measured by each launch, and what came of it."""
    record, plan = run.read_run(), run.read_plan()
    for gang in stage.gangs:
        yield f"  launched on {gang.launch.hosts}, {gang.plan.nodes} nodes, survey: {gang.plan.survey}: {gang.measured}"
    yield f"  left out {record.left_out}, told {stage.told_unfit}"
    surveys = len(surveys_of(run.read_records()))
    yield f"  {record.devices_present} devices, {surveys} surveys, {plan.nodes} nodes planned, survey: {plan.survey}"
    yield from told(judgement)


SCENES: Mapping[str, tuple[str | None, Cluster, Mapping[str, Any]]] = {
    # Fit nodes are measured by one launch, whatever is to become of others.
    **{f"all nodes are fit, {unfit}": (unfit, THREE_NODES, {"cores": {}}) for unfit in UNFIT},
    # Unfit nodes are measured unless something else is asked.
    **{f"n2 is unfit, {unfit}": (unfit, THREE_NODES, {}) for unfit in (None, "measure", "stop", "leave-out")},
    "n2 of two is unfit": ("leave-out", TWO_NODES, {}),
    "another one breaks": ("leave-out", THREE_NODES, {"breaks": "rank 1 on n3 died"}),
    # Where a scheduler chooses nodes, or none is left, that is a reason to stop.
    "a scheduler chooses the nodes": ("leave-out", ELSEWHERE, {}),
    "no node answers": ("leave-out", THREE_NODES, UNHEARD),
    "this machine does not answer": ("leave-out", THIS_MACHINE, UNHEARD),
    "no rank can run": ("measure", THREE_NODES, {}),
    "no GPU answers": ("measure", THREE_NODES, {}),
}


def test_unfit_nodes_are_measured_left_out_or_a_reason_to_stop(
    opened: Open, stage: Stage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said = list[str]()
    for name, (unfit, cluster, gang) in SCENES.items():
        with monkeypatch.context() as patch:
            for key, value in gang.items():
                patch.setattr(SurveyedGang, key, value)
            if "no rank" in name:  # nothing is launched though unfit nodes are to be measured
                patch.setattr(evidence, "unfit_nodes", lambda *given, hopeless: unfit_nodes(*given))
            one = Stage(opened, stage.gangs)
            stage.gangs.clear()
            session = one.session(unfit, cluster, ddp_run_dir=str(tmp_path / name))
            session.source.machine = replace(session.source.machine, lacks_gpus=name == "no GPU answers")
            said += [name, *told_of(one, one.judged(session), session.source.measured_run)]
    assert_approved("unfit-nodes.txt", masked("\n".join(said), tmp_path))


def outcomes(judgement: Judgement) -> dict[str, str]:
    return {verdict.id: verdict.outcome for verdict in judgement.verdicts}


class TestLeaveOut:
    @pytest.mark.parametrize("first", [0, -1])
    def test_asks_the_ranks_that_are_left_for_what_all_are_asked_whichever_test_comes_first(
        self, stage: Stage, tmp_path: Path, first: int
    ) -> None:
        in_words = CHECKED.replace("3 nodes", "all")
        (tmp_path / "thresholds.yaml").write_text(in_words, encoding="utf-8")
        session = stage.session("leave-out", ddp_nodes="3")
        assert [case.world_size for case in session.source.selected if case.name == "r-all"] == [6]
        session.judge(session.source.selected[first])
        judgement = stage.judged(session)
        assert [study.world_size for study in stage.gangs[-1].plan.studies] == [4]
        (verdict,) = (verdict for verdict in judgement.verdicts if verdict.id == "throughput_per_gpu[r-all]")
        assert (verdict.outcome, verdict.world_size) == ("passed", 4)

    def test_is_judged_alike_again(self, stage: Stage, opened: Open, tmp_path: Path) -> None:
        first = stage.run("leave-out")
        again = opened(gpu_sku="auto", ddp_judge=str(tmp_path / "run"), ddp_run_dir=None)
        again.source.select(again.source.cases)
        again.source.open_run()
        second = stage.judged(again)
        assert second.notes[1:] == first.notes
        assert outcomes(second) | {TOGETHER: "not_measured"} == outcomes(first)
        assert (second.outcome, [culprit.host for culprit in second.verdicts[0].culprits]) == ("rejected", ["n2"])


class TestResumed:
    @pytest.mark.parametrize("unfit", ["leave-out", "stop"])
    def test_unfit_nodes_stop_it_and_once_they_are_mended_it_is_measured(
        self, stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unfit: str
    ) -> None:
        """Studies of other nodes are never accepted together with those that there are."""
        said = list[str]()
        for cores, breaks in (({}, "n3 was lost"), ({"n2": 1}, ""), ({}, "")):
            monkeypatch.setattr(SurveyedGang, "cores", cores)
            monkeypatch.setattr(SurveyedGang, "breaks", breaks)
            session = self.resumed(stage, unfit, tmp_path) if stage.gangs else stage.session(unfit)
            stage.heard.clear()
            said += told_of(stage, stage.judged(session), session.source.measured_run)
        assert_approved("unfit-resumed.txt", masked("\n".join(said), tmp_path))

    def resumed(self, stage: Stage, unfit: str, tmp_path: Path) -> AcceptanceSession:
        return stage.session(unfit, ddp_resume=str(tmp_path / "run"), ddp_run_dir=None)
