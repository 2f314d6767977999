"""What an earlier run lacks is found, its old records are set aside without losing any, and unfit runs are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpscale.errors import OptionError, RunDirectoryError
from pytest_ddpscale.families.image import ImageFamily
from pytest_ddpscale.launch.launcher import Cluster
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.pairing import PairStudy
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.plan.study import Plan, ProbeStudy, Study
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.record_lines import AnyRecord, line_of
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
from pytest_ddpscale.run.run_directory import RunDirectory, RunLock
from pytest_ddpscale.run.survey_record import Survey
from pytest_ddpscale.run.telemetry import GpuReadings, joined_readings
from pytest_ddpscale.session.evidence import EvidenceSource, measured_layout
from pytest_ddpscale.session.open import THIS_MACHINE
from pytest_ddpscale.session.session import AcceptanceSession
from tests.builders.json_types import begin
from tests.builders.records import gang_on, steady_block
from tests.builders.sessions import InstantGang, Open, nothing, planning

NAMES = ("decided", "rounds", "budget", "error", "interrupted", "unended", "unbegun")
CONCLUDED = ("baseline.json", "plots/a.png", "report.md", "verdicts.json")


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


def resumed(
    run: RunDirectory, devices: int | None = None, cluster: Cluster = THIS_MACHINE, **options: Any
) -> EvidenceSource:
    """About to go on with a run, of whose requirements none is selected."""
    source = planning(devices, cluster, "cpu", run, ddp_resume=str(run.path), **options)
    source.select([])
    return source


def texts(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def test_what_did_not_come_to_its_own_end_is_missing(run: RunDirectory) -> None:
    source = resumed(run)
    assert source.missing == {
        "weak/budget": "budget", "weak/error": "error", "weak/interrupted": "interrupted",
        "weak/unended": "no end", "weak/unbegun": "no end",
    }  # fmt: skip
    plan, whole = source.plan_to_measure, run.read_plan()
    assert plan == replace(whole, studies=whole.studies[2:]), "the same ranks, whatever is left"
    run.append_record(StudyEnd("weak/rounds", "error", "broke"))  # as a further launch of the same study leaves it
    assert resumed(run).missing["weak/rounds"] == "error"


@pytest.mark.parametrize("end", ["decided", "interrupted"])
def test_probes_and_the_search_for_a_slow_link_are_studies_too(run: RunDirectory, end: EndReason) -> None:
    probes, pairs = ProbeStudy((Arm("matmul-fp32"),), 16, 0.1), PairStudy((Arm("all-reduce-4kib", 2),), 5)
    plan = replace(run.read_plan(), nodes=2, ranks_per_node=1, probes=probes, pairs=pairs, survey=True)
    run.write_json(run.plan_json, plan)
    run.append_records([StudyEnd(one.id, end) for one in (probes, pairs)])
    source = resumed(run)
    assert source.plan_to_measure is not None
    assert source.plan_to_measure.survey, "nodes may have changed since then"
    assert {probes.id, pairs.id} <= source.missing.keys() or end == "decided"
    left = (probes, pairs) if end == "interrupted" else (None, None)
    assert (source.plan_to_measure.probes, source.plan_to_measure.pairs) == left


def test_what_is_measured_anew_is_decided_by_the_bounds_of_the_plan(opened: Open, measuring: AcceptanceSession) -> None:
    measuring.source.release()
    run = measuring.source.measured_run
    plan = run.read_plan()
    [study], options = plan.studies, {"ddp_resume": str(run.path), "ddp_run_dir": None}
    for bound, needed in ((0.5, []), (0.7, ["alone", "ddp@2"])):
        plan.requirements[1]["requirement"]["bound"] = bound
        run.write_json(run.plan_json, plan)
        source = opened(**options).source
        source.select(source.cases)
        decider: Any = source.judge_of(plan)
        decider.hear(gang_on(["here"], 2))
        for number in range(FEWEST_ROUNDS):
            for arm in study.arms:
                pace = 100.0 if arm.kind == "alone" else 70.0 + (-1.0) ** number
                decider.hear(steady_block(study.id, arm, number, plan.layout.ranks([arm]), pace))
        assert decider.needed_arms(study.id) == needed
    plan.requirements[1]["requirement"]["bound"] = "half"
    run.write_json(run.plan_json, plan)
    with pytest.raises(RunDirectoryError, match=r"plan\.json: has invalid content \(.*bound"):
        opened(**options)


def _of(study: str) -> list[AnyRecord]:
    """Telemetry and a profile of a study."""
    readings = [GpuReadings(started_unix_s=1000.0, ended_unix_s=1002.0)]
    told = [joined_readings(readings, study=study, arm="ddp@2", round=n, gang=0, ranks=(0,)) for n in range(2)]
    return [*told, ArmProfile(study=study, arm="ddp@2", gang=0, rank=0, problem="p")]


def test_what_is_missing_and_what_may_have_changed_is_set_aside_and_nothing_else(run: RunDirectory) -> None:
    run.note(left_out={"n3": "ecc: GPU 2: it was left out: twice"})
    good = texts(run.measurements_jsonl)[: 1 + 2 * 3]
    error = RankGpuError(place=Place("n1", 0), error="CUDA error: unspecified launch failure")
    # A GPU with errors may have been replaced. An old survey may be another node's: it would fail a good run, or stand
    # in for a node nobody looked at. Nobody will look anew at a node that was left out, and what was asked for had it.
    run.append_records([
        GpuErrors(gang=0, ranks=2, errors=(error,), studies=("weak/missing",)),
        *_of("weak/decided"), *_of("weak/error"), *_of("weak/unended"),
        StudyEnd("survey", "error", "no answer"),
        GangTransport(study="weak/rounds", gang=0, ranks=(RankTransport(rank=0),)),
        *(Survey(host, 1.0) for host in ("old", "n2", "n3", "n30")),
    ])  # fmt: skip
    before = texts(run.measurements_jsonl)
    resumed(run).set_aside()
    left, aside = texts(run.measurements_jsonl), texts(run.superseded_jsonl)
    assert left == [*good, *(line_of(one).decode().strip() for one in (*_of("weak/decided"), Survey("n3", 1.0)))]
    assert sorted(left + aside) == sorted(before)
    assert [line for line in before if line in aside] == aside, "in their order"
    again = [line_of(one).decode().strip() for one in records_of("error")]
    run.append_records(records_of("error"))
    resumed(run).set_aside()
    assert texts(run.superseded_jsonl) == aside + again, "beside what was set aside before"


def test_a_crash_on_the_way_loses_nothing_and_can_be_repeated(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(path: Path, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    before = texts(run.measurements_jsonl)
    with monkeypatch.context() as patch:
        patch.setattr("pytest_ddpscale.run.run_directory.write_atomically", crash)
        with pytest.raises(OSError, match="No space left"):
            resumed(run).set_aside()
    assert texts(run.measurements_jsonl) == before
    with run.superseded_jsonl.open("a", encoding="utf-8") as file:
        file.write('{"torn')
    resumed(run).set_aside()
    kept, aside = texts(run.measurements_jsonl), texts(run.superseded_jsonl)
    assert set(kept + aside) == set(before)
    assert not set(kept) & set(aside)


@pytest.mark.parametrize("begins", [False, True])
def test_the_line_that_a_kill_tore_is_left_out(run: RunDirectory, begins: bool) -> None:
    with run.measurements_jsonl.open("a", encoding="utf-8") as file:
        file.write('{"kind": "to')
    if begins:
        resumed(run).begin_again()
    else:
        resumed(run).set_aside()
    run.append_record(gang_on(["new"], 1, number=1))
    assert run.read_records()[-1] == gang_on(["new"], 1, number=1)


def test_what_another_session_measured_until_the_run_was_locked_is_kept(
    opened: Open, measuring: AcceptanceSession, gangs: list[InstantGang], monkeypatch: pytest.MonkeyPatch
) -> None:
    def acquire_late(path: Path) -> RunLock:
        measuring.source.measured_run.append_record(StudyEnd("weak/r", "rounds"))
        return acquire(path)

    monkeypatch.setattr(InstantGang, "ends", False)
    measuring.judge(measuring.source.cases[0], nothing)
    measuring.source.release()
    source = opened(ddp_resume=str(measuring.source.measured_run.path), ddp_run_dir=None).source
    source.select(source.cases)
    acquire = RunLock.acquire
    monkeypatch.setattr(RunLock, "acquire", acquire_late)
    assert source.missing == {"weak/r": "no end"}
    source.open_run()
    assert (source.missing, source.plan_to_measure) == ({}, None)
    assert source.evidence is not None
    assert source.evidence.errors == {}


def test_earlier_conclusions_are_kept_together(run: RunDirectory) -> None:
    for number in (1, 2):
        for name in (*CONCLUDED, "mine.txt"):
            (run.path / name).parent.mkdir(exist_ok=True)
            (run.path / name).write_text(str(number), encoding="utf-8")
        resumed(run).begin_again()
        folder = run.path / f"before-resume-{number}"
        found = {str(one.relative_to(folder)): one.read_text("utf-8") for one in folder.rglob("*.*")}
        assert found == dict.fromkeys(CONCLUDED, str(number))
        assert not run.verdicts_json.exists()
    assert (run.path / "mine.txt").exists()


def test_a_run_says_when_by_whom_and_from_what_it_was_resumed(run: RunDirectory) -> None:
    run.note(status="interrupted", noted={"operator": "Ann", "site": "Hall 1", "ticket": "T-1"})
    for noted in (["operator=Bob", "ticket=T-2", "rack=B 7"], ["operator=Cy"]):
        resumed(run, ddp_note=noted).begin_again()
    record = run.read_run()
    assert (record.status, record.finished_at) == ("running", None)
    assert [one.status_before for one in record.resumed] == ["interrupted", "running"]
    assert record.resumed[0].argv == ("pytest", "--password", "***")
    assert record.resumed[0].measured_anew == resumed(run).missing
    assert record.operators == ("Ann", "Bob", "Cy")
    assert record.noted == {"operator": "Ann", "site": "Hall 1", "ticket": "T-2", "rack": "B 7"}
    assert not (run.path / "before-resume-1").exists(), "nothing was concluded"


def test_a_file_system_that_became_read_only_is_refused(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only(self: Path, *_: Any, **__: Any) -> None:
        raise OSError(30, "Read-only file system")

    run.write_json(run.verdicts_json, {})
    source = resumed(run)
    monkeypatch.setattr(Path, "mkdir", read_only)
    with pytest.raises(RunDirectoryError, match="Read-only file system"):
        source.begin_again()


def test_a_run_whose_devices_were_simulated_is_refused(run: RunDirectory) -> None:
    run.append_record(gang_on(["node"], 1, "SIM-{}", number=1))
    with pytest.raises(RunDirectoryError, match=r"was simulated.*--ddp-judge="):
        resumed(run)


def test_a_run_of_several_launches_is_refused(run: RunDirectory) -> None:
    studies = tuple(replace(study("decided"), launch=launch) for launch in (1, 2, 3))
    run.write_json(run.plan_json, Plan("cpu", "cpu", studies, ranks_per_node=2, launches=3))
    with pytest.raises(RunDirectoryError, match=r"plan\.json: has studies of several launches; expected one launch"):
        measured_layout(run)


def test_other_devices_are_refused_and_not_the_same_nor_a_laptop_that_only_plans(run: RunDirectory) -> None:
    for devices, nodes in ((3, 1), (2, 2), (4, 2)):
        with pytest.raises(OptionError, match=r"--ddp-nodes=1 --ddp-gpus-per-node=2") as refused:
            resumed(run, devices, Cluster(nodes))
        assert f"{devices} devices on {nodes} nodes are here" in refused.value.found
    assert resumed(run, None).plan == resumed(run, 2).plan == run.read_plan()
