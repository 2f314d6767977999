"""Nodes that fail a check before anything is launched: measured all the same, left out, or a reason to stop."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.judge.checks import unfit_nodes
from pytest_ddpscale.launch.launcher import Cluster, Launch
from pytest_ddpscale.launch.supervisor import NotAdmitted
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.run.record_lines import Unfit
from pytest_ddpscale.run.records import StudyEnd, gangs_by_number
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.survey_record import Survey, surveys_of
from pytest_ddpscale.run.verdicts import Judgement
from pytest_ddpscale.session import evidence
from pytest_ddpscale.session.open import THIS_MACHINE, Machine
from pytest_ddpscale.session.session import AcceptanceSession
from pytest_ddpscale.settings import UNFIT
from tests.builders.records import gang_on, steady_block
from tests.builders.sessions import SAMPLES_PER_S, THRESHOLDS, Open

PER_NODE = 2
THREE = ("n1", "n2", "n3")
THREE_NODES = Cluster(3, THREE, launcher="slurm")
TOO_SMALL = "gpus: 1 CPU core for 2 ranks"
CHECK, PACE, TOGETHER = "node_check[gpus]", "throughput_per_gpu[r-1rank]", "throughput_per_gpu[r-3nodes]"
WEAK = "weak_scaling_efficiency[r-2rank]"
CHECKED = THRESHOLDS.replace("    requirements: []\n", "    requirements: [{check: gpus, severity: fail}]\n").replace(
    "    - {strong_scaling_speedup: {8: 6.5}", "    - {throughput_per_gpu: {3 nodes: 500}"
)


class SurveyedGang:
    """In place of the supervisor: nodes are what their surveys say, and those that are admitted measure at once."""

    launches: list[SurveyedGang] = []  # noqa: RUF012 (each test has a list of its own)
    cores: dict[str, int] = {}  # noqa: RUF012 (likewise; of a node that is not there: as many as ranks)
    problem = ""
    breaks = ""

    def __init__(
        self, launch: Launch, run: RunDirectory, limits: object, listener: object, *, isolate: bool, judge: object,
        admit: Callable[[Sequence[Survey]], str],
    ) -> None:  # fmt: skip
        self.launch, self.run, self.admit = launch, run, admit
        self.measured: tuple[str, ...] = ()

    def measure(self, plan: Plan) -> None:
        self.plan = plan
        self.launches.append(self)
        hosts = self.launch.hosts or THREE[: plan.nodes]
        if plan.survey:
            found = [Survey(host, 1.7e9, self.problem, cores=self.cores.get(host, PER_NODE)) for host in hosts]
            self.run.append_records(found)
            refused = self.admit(found)
            if refused and plan.study_ids:
                raise NotAdmitted(refused)
        number = len(gangs_by_number(self.run.read_records()))
        if plan.study_ids:
            self.run.append_record(gang_on(hosts, PER_NODE, number=number))
        for study in plan.studies:
            for arm in study.arms:
                for round_ in range(study.rounds):
                    ranks = plan.layout.ranks([arm], study.turn(plan.seed, round_))
                    self.run.append_record(steady_block(study.id, arm, round_, ranks, SAMPLES_PER_S, number))
            self.run.append_record(StudyEnd(study.id, "error" if self.breaks else "rounds", self.breaks))
        if plan.pairs is not None:
            self.run.append_record(StudyEnd(plan.pairs.id, "decided"))
        self.measured = hosts


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
        session.source.machine = Machine(cluster, PER_NODE * cluster.nodes)
        session.source.select(session.source.cases)
        session.source.open_run()
        return session

    def judged(self, session: AcceptanceSession) -> Judgement:
        """What a session comes to in which every test asks."""
        for case in session.source.selected:
            session.judge(case, self.heard.append)
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


ALL_PASS = dict.fromkeys((PACE, WEAK, TOGETHER), "passed")
NONE_MEASURED = {CHECK: "failed"} | dict.fromkeys((PACE, WEAK, TOGETHER), "error")
LEFT_OUT, STOPPED = f"n2 was left out: {TOO_SMALL}", f"nothing was measured: n2: {TOO_SMALL}"
UNHEARD = "survey failed: nvmlInit did not return"
ELSEWHERE = Cluster(3, (), launcher="slurm", is_elsewhere=True)
TWO_NODES = Cluster(2, ("n1", "n2"), launcher="slurm")
NO_GPUS_CHECKED = {CHECK: "not_measured"} | dict.fromkeys((PACE, WEAK, TOGETHER), "error")


def outcomes(judgement: Judgement) -> dict[str, str]:
    return {verdict.id: verdict.outcome for verdict in judgement.verdicts}


def assert_check_names_n2(judgement: Judgement, share: float = 2 / 3) -> None:
    (check,) = [verdict for verdict in judgement.verdicts if verdict.id == CHECK]
    assert check.outcome == "failed"
    assert check.value == pytest.approx(share)
    assert [(culprit.kind, culprit.host, culprit.is_certain) for culprit in check.culprits] == [("node", "n2", True)]
    assert judgement.outcome == "rejected"


@pytest.mark.parametrize(
    ("unfit", "cluster", "gang", "measured", "found", "why"),
    [
        # Fit nodes are measured by one launch, whatever is to become of others.
        *((unfit, THREE_NODES, {"cores": {}}, [THREE], {CHECK: "passed"} | ALL_PASS, {}) for unfit in UNFIT),
        # Unfit nodes are measured unless something else is asked.
        *((unfit, THREE_NODES, {}, [THREE], {CHECK: "failed"} | ALL_PASS, {}) for unfit in (None, "measure")),
        ("stop", THREE_NODES, {}, [()], NONE_MEASURED, dict.fromkeys((PACE, WEAK, TOGETHER), STOPPED)),
        (
            "leave-out", THREE_NODES, {}, [(), ("n1", "n3")],
            {CHECK: "failed"} | ALL_PASS | {TOGETHER: "not_measured"},
            {TOGETHER: "needs 6 ranks; 4 can be used here"},
        ),
        ("leave-out", TWO_NODES, {}, [(), ("n1",)], {CHECK: "failed", PACE: "passed", WEAK: "passed"}, {}),
        (
            "leave-out", THREE_NODES, {"breaks": "rank 1 on n3 died"}, [(), ("n1", "n3")],
            NONE_MEASURED | {TOGETHER: "not_measured"}, {PACE: "rank 1 on n3 died"},
        ),
        # Where a scheduler chooses nodes, or none is left, that is a reason to stop.
        ("leave-out", ELSEWHERE, {}, [()], NONE_MEASURED, {PACE: STOPPED}),
        *(
            (
                "leave-out", cluster, {"problem": "nvmlInit did not return"}, [()],
                {one: outcome for one, outcome in NO_GPUS_CHECKED.items() if one != TOGETHER or cluster.nodes > 1},
                {PACE: f"nothing was measured: {who}: {UNHEARD}"},
            )
            for cluster, who in ((THREE_NODES, "n[1-3]"), (THIS_MACHINE, "n1"))
        ),
    ],
)  # fmt: skip
def test_unfit_nodes_are_measured_left_out_or_a_reason_to_stop(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, unfit: str | None, cluster: Cluster, gang: dict[str, Any],
    measured: list[tuple[str, ...]], found: dict[str, str], why: dict[str, str],
) -> None:  # fmt: skip
    for name, value in gang.items():
        monkeypatch.setattr(SurveyedGang, name, value)
    session = stage.session(unfit, cluster)
    judgement = stage.judged(session)
    assert outcomes(judgement) == found
    assert [one.measured for one in stage.gangs] == measured
    said = {verdict.id: verdict.reason for verdict in judgement.verdicts}
    assert {which: said[which] for which in why} == why
    run, left = session.source.measured_run, [host for host in cluster.hosts if host != "n2"] * (len(measured) > 1)
    assert run.read_run().left_out == ({"n2": TOO_SMALL} if left else {})
    assert run.read_run().devices_present == PER_NODE * (len(left) or cluster.nodes)
    assert (run.read_plan().nodes, run.read_plan().survey) == (len(left) or cluster.nodes, True)
    assert len(surveys_of(run.read_records())) == cluster.nodes
    assert judgement.notes == ((LEFT_OUT,) if left else ())
    if found[CHECK] == "failed":
        assert_check_names_n2(judgement, 1 - 1 / cluster.nodes)
        assert stage.told_unfit == [{"n2": TOO_SMALL}]
    else:
        assert len(stage.told_unfit) == ("problem" in gang)
        assert judgement.outcome == "incomplete" or "problem" not in gang


def test_where_no_rank_can_run_nothing_is_launched_though_unfit_nodes_are_to_be_measured(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence, "unfit_nodes", lambda *given, hopeless: unfit_nodes(*given))
    assert outcomes(stage.run("measure")) == NONE_MEASURED
    assert [one.measured for one in stage.gangs] == [()]


class TestLeaveOut:
    def test_measures_the_others_by_a_plan_of_their_own(self, stage: Stage) -> None:
        stage.run("leave-out")
        first, second = stage.gangs
        assert second.launch.hosts == ("n1", "n3")
        assert (first.plan.nodes, second.plan.nodes, second.plan.survey) == (3, 2, False)

    @pytest.mark.parametrize("first", [0, -1])
    def test_asks_the_ranks_that_are_left_for_what_all_are_asked_whichever_test_comes_first(
        self, stage: Stage, tmp_path: Path, first: int
    ) -> None:
        in_words = CHECKED.replace("3 nodes", "all")
        (tmp_path / "thresholds.yaml").write_text(in_words, encoding="utf-8")
        session = stage.session("leave-out", ddp_nodes="3")
        assert [case.world_size for case in session.source.selected if case.name == "r-all"] == [6]
        session.judge(session.source.selected[first], stage.heard.append)
        judgement = stage.judged(session)
        assert [study.world_size for study in stage.gangs[-1].plan.studies] == [4]
        (verdict,) = (one for one in judgement.verdicts if one.id == "throughput_per_gpu[r-all]")
        assert (verdict.outcome, verdict.world_size) == ("passed", 4)

    def test_is_judged_alike_again(self, stage: Stage, opened: Open, tmp_path: Path) -> None:
        first = stage.run("leave-out")
        again = opened(gpu_sku="auto", ddp_judge=str(tmp_path / "run"), ddp_run_dir=None)
        again.source.select(again.source.cases)
        again.source.open_run()
        second = stage.judged(again)
        assert second.notes[1:] == first.notes
        assert outcomes(second) | {TOGETHER: "not_measured"} == outcomes(first)
        assert_check_names_n2(second)


class TestResumed:
    @pytest.mark.parametrize("unfit", ["leave-out", "stop"])
    def test_unfit_nodes_stop_it(
        self, stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unfit: str
    ) -> None:
        """Studies of other nodes are never accepted together with those that there are."""
        monkeypatch.setattr(SurveyedGang, "cores", {})
        monkeypatch.setattr(SurveyedGang, "breaks", "n3 was lost")
        stage.run(unfit)
        monkeypatch.setattr(SurveyedGang, "breaks", "")
        monkeypatch.setattr(SurveyedGang, "cores", {"n2": 1})
        judgement = stage.judged(self.resumed(stage, unfit, tmp_path))
        assert [gang.measured for gang in stage.gangs] == [THREE, ()]
        assert outcomes(judgement) == NONE_MEASURED
        assert_check_names_n2(judgement)

    def test_what_was_stopped_is_measured_once_the_node_is_mended(
        self, stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stage.run("stop")
        monkeypatch.setattr(SurveyedGang, "cores", {})
        judgement = stage.judged(self.resumed(stage, "stop", tmp_path))
        assert [gang.measured for gang in stage.gangs] == [(), THREE]
        assert set(outcomes(judgement).values()) == {"passed"}

    def test_nodes_that_were_left_out_do_not_come_back(self, stage: Stage, tmp_path: Path) -> None:
        stage.run("leave-out")
        with pytest.raises(OptionError, match=r"6 devices on 3 nodes can be used here, but .* was started with 4 on 2"):
            self.resumed(stage, "leave-out", tmp_path)

    def resumed(self, stage: Stage, unfit: str, tmp_path: Path) -> AcceptanceSession:
        return stage.session(unfit, ddp_resume=str(tmp_path / "run"), ddp_run_dir=None)
