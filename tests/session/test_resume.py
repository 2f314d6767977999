"""What an earlier run lacks is found, its old records are set aside without losing any, and unfit runs are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpscale.errors import OptionError, RunDirectoryError
from pytest_ddpscale.families.image import ImageFamily
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.pairing import PairStudy
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.plan.study import Plan, ProbeStudy, Study
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.record_lines import AnyRecord, OfDevices
from pytest_ddpscale.run.records import (
    ArmProfile,
    EndReason,
    GangTransport,
    GpuErrors,
    RankGpuError,
    RankTransport,
    StudyEnd,
    StudyStart,
)
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.run_json import ThresholdsUsed
from pytest_ddpscale.run.run_record import ended
from pytest_ddpscale.run.survey_record import Survey, surveys_of
from pytest_ddpscale.run.telemetry import GpuReadings, joined_readings
from pytest_ddpscale.session.resume import ResumeSource, read_resumption, refuse_other_devices
from pytest_ddpscale.session.session import AcceptanceSession
from pytest_ddpscale.session.sources import measured_layout
from tests.builders.json_types import begin
from tests.builders.records import gang_on, steady_block
from tests.builders.sessions import Open

NAMES = ("decided", "rounds", "budget", "error", "interrupted", "unended", "unbegun")
MISSING = NAMES[2:]
USED = ThresholdsUsed("thresholds.yaml", "ab" * 32)


def study(name: str) -> Study:
    return Study(
        "weak", Workload(name, ImageFamily("resnet18"), "fp32", 4), (Arm("alone", 1, 4), Arm("ddp", 2, 4)), 7, 1.0, 1.0
    )


def records_of(name: str) -> list[AnyRecord]:
    """What a study left behind that ended as it is named."""
    id_ = f"weak/{name}"
    records: list[AnyRecord] = [
        StudyStart(study=id_, unix_s=1.0), steady_block(id_, Arm("alone", 1, 4), 0, (0,), 100.0)
    ]  # fmt: skip
    return records if name == "unended" else [*records, StudyEnd(id_, name)]  # type: ignore[arg-type]


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """A run with a study for each way to end, and not to end."""
    run = RunDirectory.create(tmp_path / "run")
    run.write_json(run.plan_json, Plan("cpu", "cpu", tuple(map(study, NAMES)), ranks_per_node=2))
    begin(run, devices_present=2)
    run.append_record(gang_on(["nöde"], 1))
    for name in NAMES[:-1]:
        run.append_records(records_of(name))
    return run


def texts(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def test_what_did_not_come_to_its_own_end_is_missing(run: RunDirectory) -> None:
    resumption = read_resumption(run)
    assert resumption.missing == {
        "weak/budget": "budget", "weak/error": "error", "weak/interrupted": "interrupted",
        "weak/unended": "no end", "weak/unbegun": "no end",
    }  # fmt: skip
    plan = resumption.missing_plan
    assert [one.id for one in plan.studies] == [f"weak/{name}" for name in MISSING]
    assert plan.layout == resumption.plan.layout, "the same ranks, whatever is left"


def test_a_study_that_broke_after_a_good_end_is_missing(run: RunDirectory) -> None:
    """As a further launch of the same study leaves it."""
    run.append_record(StudyEnd("weak/rounds", "error", "broke"))
    assert read_resumption(run).missing["weak/rounds"] == "error"


def test_a_run_of_several_launches_is_refused(run: RunDirectory) -> None:
    studies = tuple(replace(study("decided"), launch=launch) for launch in (1, 2, 3))
    run.write_json(run.plan_json, Plan("cpu", "cpu", studies, ranks_per_node=2, launches=3))
    with pytest.raises(RunDirectoryError, match=r"plan\.json: has studies of several launches; expected one launch"):
        measured_layout(run)


@pytest.mark.parametrize("end", ["decided", "interrupted"])
def test_the_search_for_a_slow_link_is_a_study_too(run: RunDirectory, end: EndReason) -> None:
    pairs = PairStudy((Arm("all-reduce-4kib", 2),), 5)
    run.write_json(run.plan_json, replace(run.read_plan(), nodes=2, ranks_per_node=1, pairs=pairs))
    run.append_record(StudyEnd(pairs.id, end))
    resumption = read_resumption(run)
    assert (pairs.id in resumption.missing) == (end == "interrupted")
    assert resumption.missing_plan.pairs == (pairs if end == "interrupted" else None)


@pytest.mark.parametrize("end", ["decided", "interrupted"])
def test_probes_are_a_study_too(run: RunDirectory, end: EndReason) -> None:
    probes = ProbeStudy((Arm("matmul-fp32"), Arm("all-reduce-32mib", 2)), 16, 0.1)
    run.write_json(run.plan_json, replace(run.read_plan(), probes=probes, survey=True))
    run.append_record(StudyEnd(probes.id, end))
    resumption = read_resumption(run)
    assert (probes.id in resumption.missing) == (end == "interrupted")
    assert resumption.missing_plan.probes == (probes if end == "interrupted" else None)
    assert resumption.missing_plan.survey, "nodes may have changed since then"


def transport(problem: str = "") -> GangTransport:
    return GangTransport(study="weak/r", gang=0, ranks=(RankTransport(rank=0, problem=problem),))


@pytest.mark.parametrize(("bound", "needed"), [(0.5, []), (0.7, ["alone", "ddp@2"]), ("half", None)])
def test_what_is_measured_anew_is_decided_by_the_bounds_of_the_plan(
    opened: Open, measuring: AcceptanceSession, bound: Any, needed: list[str] | None
) -> None:
    measuring.source.release()
    run = measuring.source.measured_run
    plan = run.read_plan()
    plan.requirements[1]["requirement"]["bound"] = bound
    run.write_json(run.plan_json, plan)
    if needed is None:
        with pytest.raises(RunDirectoryError, match=r"plan\.json: has invalid content \(.*bound"):
            opened(ddp_resume=str(run.path), ddp_run_dir=None)
        return
    source = opened(ddp_resume=str(run.path), ddp_run_dir=None).source
    assert isinstance(source, ResumeSource)
    source.select(source.cases)
    decider, study = source.judge_of(plan), plan.studies[0]
    decider.hear(gang_on(["here"], 2))
    for number in range(FEWEST_ROUNDS):
        for arm in study.arms:
            pace = 100.0 if arm.kind == "alone" else 70.0 + (-1.0) ** number
            decider.hear(steady_block(study.id, arm, number, plan.layout.ranks([arm]), pace))
    assert decider.needed_arms(study.id) == needed


class TestSetAside:
    def test_moves_what_is_missing_and_nothing_else(self, run: RunDirectory) -> None:
        before = texts(run.measurements_jsonl)
        read_resumption(run).set_aside()
        kept, aside = texts(run.measurements_jsonl), texts(run.superseded_jsonl)
        assert sorted(kept + aside) == sorted(before)
        assert [line for line in before if line in kept] == kept, "in their order"
        assert [line for line in before if line in aside] == aside
        assert {getattr(record, "study", None) for record in run.read_records()} == {
            None,
            "weak/decided",
            "weak/rounds",
        }

    def test_moves_errors_of_gpus_which_may_have_been_replaced(self, run: RunDirectory) -> None:
        error = RankGpuError(place=Place("n1", 0), error="CUDA error: unspecified launch failure")
        run.append_record(GpuErrors(gang=0, ranks=2, errors=(error,), studies=("weak/missing",)))
        read_resumption(run).set_aside()
        assert not any(isinstance(record, GpuErrors) for record in run.read_records())
        assert any("gpu_errors" in line for line in texts(run.superseded_jsonl))

    def test_leaves_what_was_set_aside_before(self, run: RunDirectory) -> None:
        read_resumption(run).set_aside()
        first = texts(run.superseded_jsonl)
        run.append_records(records_of("error"))
        read_resumption(run).set_aside()
        assert texts(run.superseded_jsonl)[: len(first)] == first
        assert len(texts(run.superseded_jsonl)) == len(first) + len(records_of("error"))

    def test_a_crash_on_the_way_loses_nothing_and_can_be_repeated(
        self, run: RunDirectory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def crash(path: Path, content: bytes) -> None:
            raise OSError(28, "No space left on device")

        before = texts(run.measurements_jsonl)
        with monkeypatch.context() as patch:
            patch.setattr("pytest_ddpscale.run.run_directory.write_atomically", crash)
            with pytest.raises(OSError, match="No space left"):
                read_resumption(run).set_aside()
        assert texts(run.measurements_jsonl) == before
        with run.superseded_jsonl.open("a", encoding="utf-8") as file:
            file.write('{"torn')
        read_resumption(run).set_aside()
        kept, aside = texts(run.measurements_jsonl), texts(run.superseded_jsonl)
        assert set(kept + aside) == set(before)
        assert not set(kept) & set(aside)

    def test_leaves_out_the_line_that_a_kill_tore(self, run: RunDirectory) -> None:
        with run.measurements_jsonl.open("a", encoding="utf-8") as file:
            file.write('{"kind": "to')
        resumption = read_resumption(run)
        resumption.set_aside()
        run.append_record(gang_on(["new"], 1, number=1))
        assert run.read_records()[-1] == gang_on(["new"], 1, number=1)

    def test_moves_telemetry_and_profiles_of_what_is_missing_too(self, run: RunDirectory) -> None:
        readings = [GpuReadings(started_unix_s=1000.0, ended_unix_s=1002.0)]
        told = [
            joined_readings(readings, study=f"weak/{name}", arm="ddp@2", round=n, gang=0, ranks=(0,))
            for name in NAMES
            for n in range(2)
        ]
        profiles = [ArmProfile(study=f"weak/{name}", arm="ddp@2", gang=0, rank=0, problem="p") for name in NAMES]
        run.append_records([*told, *profiles])
        read_resumption(run).set_aside()
        left = [one.study for one in run.read_records() if isinstance(one, OfDevices)]
        assert left == [*2 * ["weak/decided"], *2 * ["weak/rounds"], "weak/decided", "weak/rounds"]

    def test_moves_what_nodes_were_and_how_ranks_were_connected(self, run: RunDirectory) -> None:
        """An old survey may be another node's: it would fail a good run, or stand in for a node nobody looked at."""
        told: list[AnyRecord] = [Survey("old", 1.0), transport("old")]
        run.append_records([*told, StudyEnd("survey", "error", "no answer")])
        read_resumption(run).set_aside()
        assert surveys_of(run.read_records()) == {}
        assert not any(isinstance(one, GangTransport) for one in run.read_records())
        assert "survey" not in ended(run.read_records(), "error")
        assert sum('"old"' in line for line in texts(run.superseded_jsonl)) == len(told)
        run.append_record(Survey("new", 2.0))
        assert list(surveys_of(run.read_records())) == ["new"]

    def test_leaves_what_a_node_was_that_was_left_out(self, run: RunDirectory) -> None:
        """Nobody will look at it anew, and what was asked for had it."""
        run.note(left_out={"n3": "ecc: GPU 2: it was left out: twice"})
        run.append_records([Survey(host, 1.0) for host in ("n2", "n3", "n30")])
        read_resumption(run).set_aside()
        assert list(surveys_of(run.read_records())) == ["n3"]

    def test_leaves_all_where_nothing_is_measured_anew(self, run: RunDirectory) -> None:
        run.append_records([Survey("n1", 1.0), transport()])
        before = texts(run.measurements_jsonl)
        replace(read_resumption(run), missing={}).set_aside()
        assert texts(run.measurements_jsonl) == before


class TestBegin:
    def test_keeps_earlier_conclusions_together(self, run: RunDirectory) -> None:
        for number in (1, 2):
            for name in ("verdicts.json", "baseline.json", "report.md", "plots/a.png", "mine.txt"):
                (run.path / name).parent.mkdir(exist_ok=True)
                (run.path / name).write_text(str(number), encoding="utf-8")
            read_resumption(run).begin((), {}, USED)
            folder = run.path / f"before-resume-{number}"
            assert sorted(path.name for path in folder.iterdir()) == [
                "baseline.json", "plots", "report.md", "verdicts.json",
            ]  # fmt: skip
            assert (folder / "plots" / "a.png").read_text(encoding="utf-8") == str(number)
            assert not run.verdicts_json.exists()
        assert (run.path / "mine.txt").exists()

    def test_says_when_by_whom_and_from_what(self, run: RunDirectory) -> None:
        run.note(status="interrupted", noted={"operator": "Ann", "site": "Hall 1", "ticket": "T-1"})
        for noted in ({"operator": "Bob", "ticket": "T-2", "rack": "B 7"}, {"operator": "Cy"}):
            read_resumption(run).begin(("pytest", "--password", "hunter2"), noted, USED)
        record = run.read_run()
        assert (record.status, record.finished_at) == ("running", None)
        assert [one.status_before for one in record.resumed] == ["interrupted", "running"]
        assert record.resumed[0].argv == ("pytest", "--password", "***")
        assert record.operators == ("Ann", "Bob", "Cy")
        assert record.noted == {"operator": "Ann", "site": "Hall 1", "ticket": "T-2", "rack": "B 7"}

    def test_makes_no_folder_where_nothing_was_concluded(self, run: RunDirectory) -> None:
        read_resumption(run).begin((), {}, USED)
        assert not (run.path / "before-resume-1").exists()
        assert run.read_run().resumed[0].measured_anew == read_resumption(run).missing

    def test_a_file_system_that_became_read_only_is_refused(
        self, run: RunDirectory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def read_only(self: Path, *_: Any, **__: Any) -> None:
            raise OSError(30, "Read-only file system")

        run.write_json(run.verdicts_json, {})
        resumption = read_resumption(run)
        monkeypatch.setattr(Path, "mkdir", read_only)
        with pytest.raises(RunDirectoryError, match="Read-only file system"):
            resumption.begin((), {}, USED)


class TestRefused:
    def test_a_run_whose_devices_were_simulated(self, run: RunDirectory) -> None:
        run.append_record(gang_on(["node"], 1, "SIM-{}", number=1))
        with pytest.raises(RunDirectoryError, match=r"was simulated.*--ddp-judge="):
            read_resumption(run)

    @pytest.mark.parametrize(
        ("devices", "fresh"),
        [
            (3, Plan("cpu", "cpu", (), ranks_per_node=3)),
            (2, Plan("cpu", "cpu", (), nodes=2, ranks_per_node=1)),
            (4, Plan("cpu", "cpu", (), nodes=2, ranks_per_node=2)),
        ],
    )
    def test_other_devices(self, run: RunDirectory, devices: int, fresh: Plan) -> None:
        with pytest.raises(OptionError, match=r"--ddp-nodes=1 --ddp-gpus-per-node=2") as refused:
            refuse_other_devices(run, devices, fresh)
        assert f"{devices} devices on {fresh.nodes} nodes can be used here" in refused.value.found

    @pytest.mark.parametrize("devices", [None, 2])
    def test_not_the_same_devices_nor_a_laptop_that_only_plans(self, run: RunDirectory, devices: int | None) -> None:
        refuse_other_devices(run, devices, Plan("cpu", "cpu", (), ranks_per_node=devices))
