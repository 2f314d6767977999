"""Before any rank starts it is written down what the nodes are, and they may be refused.

What is started is a small program that says what agents say.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec import to_builtins

from pytest_ddpscale.families.image import ImageFamily
from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.launch import gang as gang_module
from pytest_ddpscale.launch.gang_state import Limits
from pytest_ddpscale.launch.launcher import Launch
from pytest_ddpscale.launch.supervisor import Preflight, PreflightFailed, Supervisor
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.report.words.reasons import say, worded
from pytest_ddpscale.run.evidence import evidence_of
from pytest_ddpscale.run.record_lines import AnyRecord, Idle
from pytest_ddpscale.run.records import StudyEnd
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.survey_record import PostMortem, Survey, surveys_of
from pytest_ddpscale.run.table import Columns
from tests.builders.judged import check_case
from tests.builders.launches import playing

STUDIES = tuple(
    Study("weak", Workload(name, ImageFamily("resnet18"), "fp32", 4), (Arm("ddp", 2, 4),), 5, 1.0, 1.0)
    for name in ("r", "v")
)
IDS = [study.id for study in STUDIES]
PLAN = Plan("cpu", "cpu", STUDIES, nodes=2, ranks_per_node=2, survey=True)
SURVEYS = [Survey(host, 1.0, cores=2) for host in ("n1", "n2")]
SCRIPT = f"""
SURVEYS = {to_builtins(SURVEYS)!r}
def survey(*nodes):
    for node in nodes:
        say("survey", node, survey=SURVEYS[node])
def measure(*studies):
    for study in studies:
        record("study_end", study=study, reason="rounds", message="")
"""


class Stage:
    """Supervises gangs whose agents play a program."""

    def __init__(self, run: RunDirectory) -> None:
        self.run = run
        self.heard: list[Any] = []
        self.admitted: list[Sequence[Survey]] = []

    def measure(self, source: str, reason: str = "", **limits: float) -> None:
        """Measure the plan, of nodes that are refused for this reason."""

        def admit(records: Sequence[Survey]) -> str:
            assert self.surveys, "they are written before anybody is asked"
            self.admitted.append(records)
            return reason

        self.supervise(source, admit, PLAN, **limits)

    def supervise(self, source: str, admit: Preflight, plan: Plan, **limits: float) -> None:
        launch = Launch(playing(f"{SCRIPT}\n{source}", "slurm"), {}, ("n1", "n2"))
        Supervisor(launch, self.run, Limits(**limits), self.heard.append, preflight=admit).measure(plan)

    @property
    def records(self) -> list[AnyRecord]:
        """Of the run, as written."""
        return self.run.read_records()

    @property
    def surveys(self) -> dict[str, Survey]:
        return surveys_of(self.records)

    @property
    def ends(self) -> list[tuple[str, str]]:
        return [(record.study, record.reason) for record in self.records if isinstance(record, StudyEnd)]

    def orders(self, gang: int = 0) -> list[str]:
        """What the agents of a gang were told, in order."""
        lines = (self.run.logs / f"gang-{gang}.log").read_text().splitlines()
        return [json.loads(line.removeprefix("was told "))["say"] for line in lines]


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    seconds = {"GRACE_S": 3.0, "COLLECT_S": 0.1, "FAREWELL_S": 5.0}
    for name, value in seconds.items():
        monkeypatch.setattr(gang_module, name, value)
    return Stage(RunDirectory.create(tmp_path / "run"))


def test_nodes_are_surveyed_before_they_start(stage: Stage) -> None:
    stage.measure(f"up(2); survey(0, 1); order(); measure(*{IDS})")
    assert stage.orders() == ["start"]
    assert [(survey.host, survey.cores, survey.problem) for survey in stage.surveys.values()] == [
        ("n1", 2, ""), ("n2", 2, ""),
    ]  # fmt: skip
    assert [surveys_of(records) for records in stage.admitted] == [stage.surveys]
    assert surveys_of(stage.heard) == stage.surveys
    assert stage.ends == [(study, "rounds") for study in IDS]


def test_nodes_that_are_refused_start_nothing(stage: Stage) -> None:
    with pytest.raises(PreflightFailed, match=r"n2: GPU 3 is lost") as refusal:
        stage.measure("up(2); survey(0, 1); order()", "n2: GPU 3 is lost")
    assert str(refusal.value) == "n2: GPU 3 is lost"
    assert stage.orders() == ["stop"]
    assert set(stage.surveys) == {"n1", "n2"}
    assert stage.ends == []
    assert [record.host for record in stage.heard if isinstance(record, Survey)] == ["n1", "n2"]


def test_a_node_that_does_not_answer_is_written_down_as_that(stage: Stage) -> None:
    stage.measure(f"up(2); survey(0); order(); measure(*{IDS})", survey_s=0.3)
    problems = {host: survey.problem for host, survey in stage.surveys.items()}
    assert problems == {"n1": "", "n2": "its agent sent no survey in time"}
    assert stage.orders() == ["start"]


def test_answers_that_came_while_the_supervisor_did_not_listen_count(stage: Stage) -> None:
    class SlowToTakeNote(list[Any]):
        def append(self, record: object) -> None:
            time.sleep(0.4 if isinstance(record, Idle) and not stage.surveys else 0)
            super().append(record)

    stage.heard = SlowToTakeNote()
    stage.measure(f"up(2); time.sleep(0.1); survey(0, 1); order(); measure(*{IDS})", survey_s=0.25)
    assert [survey.problem for survey in stage.surveys.values()] == ["", ""]


def test_what_gpus_are_after_ranks_have_failed_is_written_down(stage: Stage) -> None:
    source = """up(2); survey(0, 1); order()
say("failed", 1, local_rank=0, rank=2, phase="timed block", type="RuntimeError", message="CUDA error")
order()
say("looked", 1, post_mortem=SURVEYS[1])
say("exit", 0, code=1, exits=[]); say("exit", 1, code=1, exits=[])"""
    stage.measure(source)
    assert [record.survey.host for record in stage.records if isinstance(record, PostMortem)] == ["n2"]
    assert set(stage.surveys) == {"n1", "n2"}, "those are another matter"
    assert {reason for _, reason in stage.ends} == {"error"}


def test_an_agent_that_has_ended_is_not_waited_for(stage: Stage) -> None:
    begun_s = time.monotonic()
    with pytest.raises(PreflightFailed):
        stage.measure("up(2); survey(0); say('exit', 1, code=3); order()", "no", survey_s=20.0)
    assert time.monotonic() - begun_s < 15


def test_a_launcher_that_ends_meanwhile_is_an_error_and_nobody_is_asked(stage: Stage) -> None:
    stage.measure("up(2); survey(0); print('srun: error: oh', file=sys.stderr); sys.exit(1)", survey_s=20.0)
    assert stage.admitted == []
    assert stage.surveys == {}
    assert stage.ends == [(study, "error") for study in IDS]


def test_only_the_first_gang_that_comes_so_far_is_surveyed(stage: Stage) -> None:
    first = f"""
if not os.path.exists({str(stage.run.measurements_jsonl)!r}):
    up(2); survey(0, 1); order()
    record("study_start", study={IDS[0]!r}, unix_s=1.0)
    sys.exit(1)
up(2); order(); measure({IDS[1]!r})"""
    stage.measure(first)
    assert stage.orders(1) == ["start"]
    assert len(stage.admitted) == 1
    assert stage.ends == [(IDS[0], "error"), (IDS[1], "rounds")]


def test_a_plan_without_a_survey_has_none(stage: Stage) -> None:
    plan = Plan("cpu", "cpu", STUDIES, nodes=2, ranks_per_node=2)
    refuse: Preflight = lambda records: "nobody asks"  # noqa: E731
    stage.supervise(f"up(2); order(); measure(*{IDS})", refuse, plan)
    assert stage.orders() == ["start"]
    assert [type(record) for record in stage.records] == [StudyEnd, StudyEnd]


def test_imports_have_the_limit_for_the_start_although_surveys_are_recorded(stage: Stage) -> None:
    source = f"""up(2); survey(0, 1); order()
for _ in range(20): say("beat"); time.sleep(0.02)
measure(*{IDS})"""
    stage.measure(source, inactivity_s=0.2, startup_s=30.0)
    assert stage.ends == [(study, "rounds") for study in IDS]


class TestOnlyASurvey:
    """A plan of checks that need nothing to run."""

    PLAN = Plan("cpu", "cpu", (), nodes=2, ranks_per_node=2, survey=True)
    SOURCE = "up(2); survey(0, 1); order()"

    @pytest.mark.parametrize("reason", ["", "n2: GPU 3 is lost"])
    def test_is_recorded_and_starts_no_rank_whether_nodes_are_fit_or_not(self, stage: Stage, reason: str) -> None:
        asked: list[dict[str, Survey]] = []

        def admit(records: Sequence[Survey]) -> str:
            asked.append(surveys_of(records))
            return reason

        stage.supervise(self.SOURCE, admit, self.PLAN)
        assert stage.orders() == ["stop"]
        assert list(stage.surveys) == ["n1", "n2"]
        assert [type(record) for record in stage.records] == [Survey, Survey]
        assert asked == [stage.surveys], "who is unfit is told, and only once"

    def test_that_nobody_answers_says_why(self, stage: Stage) -> None:
        source = "up(2); survey(0); print('srun: error: oh', file=sys.stderr); sys.exit(1)"
        stage.supervise(source, lambda records: "", self.PLAN, survey_s=20.0)
        (end,) = stage.records
        assert isinstance(end, StudyEnd)
        assert (end.study, end.reason) == ("survey", "error")
        assert "srun: error: oh" in say(end.message)
        assert [record for record in stage.heard if isinstance(record, StudyEnd)] == [end]
        verdict = worded(judge(check_case("gpus"), evidence_of(self.PLAN, Columns(), stage.records), 0.95))
        assert verdict.outcome == "not_measured"
        assert say(end.message) in verdict.reason

    def test_that_slurm_ends_says_so_and_is_no_error(self, stage: Stage) -> None:
        line = "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***"
        stage.supervise(f"up(2); print({line!r}, file=sys.stderr); sys.exit(1)", lambda records: "", self.PLAN)
        (end,) = stage.records
        assert isinstance(end, StudyEnd)
        assert (end.study, end.reason) == ("survey", "interrupted")
        verdict = worded(judge(check_case("gpus"), evidence_of(self.PLAN, Columns(), stage.records), 0.95))
        assert verdict.outcome == "not_measured"
        assert say(end.message) in verdict.reason
