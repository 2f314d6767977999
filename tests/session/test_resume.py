"""What an earlier run lacks is found, its old records are set aside without losing any, and unfit runs are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpscale.errors import BadInput, RunDirectoryError
from pytest_ddpscale.families.image import ImageFamily
from pytest_ddpscale.history.regression import Baseline
from pytest_ddpscale.launch.launcher import Cluster
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.pairing import PairStudy
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.plan.study import Plan, ProbeStudy, Study
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.record_lines import AnyRecord
from pytest_ddpscale.run.records import (
    ArmProfile,
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
from tests.approved import assert_approved, masked
from tests.builders.json_types import begin
from tests.builders.records import gang_on, steady_block
from tests.builders.sessions import InstantGang, Open, planning

NAMES = ("decided", "rounds", "budget", "error", "interrupted", "unended", "unbegun")
CONCLUDED = ("plots/a.png", "report.md", "verdicts.json")


def study(name: str) -> Study:
    return Study(
        "weak", Workload(name, ImageFamily("resnet18"), "fp32", 4), (Arm("alone", 1, 4), Arm("ddp", 2, 4)), 7, 1.0, 1.0
    )


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """A run with a study for each way to end, and not to end."""
    run = RunDirectory.create(tmp_path / "run")
    run.write_json(run.plan_json, Plan("cpu", "cpu", tuple(map(study, NAMES)), ranks_per_node=2, survey=True))
    begin(run, devices_present=2)
    run.append_record(gang_on(["nöde"], 1))
    for id_, name in ((f"weak/{name}", name) for name in NAMES[:-1]):
        run.append_records([StudyStart(study=id_, unix_s=1.0), steady_block(id_, Arm("alone", 1, 4), 0, (0,), 100.0)])
        if name != "unended":
            run.append_record(StudyEnd(id_, name))  # type: ignore[arg-type]
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
        opened(**options).source.select([])


def _of(study: str) -> list[AnyRecord]:
    """Telemetry and a profile of a study."""
    readings = [GpuReadings(started_unix_s=1000.0, ended_unix_s=1002.0)]
    told = [joined_readings(readings, study=study, arm="ddp@2", round=n, gang=0, ranks=(0,)) for n in range(2)]
    return [*told, ArmProfile(study=study, arm="ddp@2", gang=0, rank=0, problem="p")]


PROBED, PAIRED = ProbeStudy((Arm("matmul-fp32"),), 16, 0.1), PairStudy((Arm("all-reduce-4kib", 2),), 5)
BROKEN = RankGpuError(place=Place("n1", 0), error="CUDA error: unspecified launch failure")
# What else a run holds when it is resumed.
HOLDS: dict[str, list[AnyRecord]] = {
    "a study for each way to end": [],
    "a further launch of a study that broke": [StudyEnd("weak/rounds", "error", "broke")],
    # A GPU with errors may have been replaced. An old survey may be another node's: it would fail a good run, or stand
    # in for a node nobody looked at. Nobody will look anew at a node that was left out, and what was asked for had it.
    "what may have changed": [
        GpuErrors(gang=0, ranks=2, errors=(BROKEN,), studies=("weak/missing",)),
        *_of("weak/decided"), *_of("weak/error"), *_of("weak/unended"), StudyEnd("survey", "error", "no answer"),
        GangTransport(study="weak/decided", gang=0, ranks=(RankTransport(rank=0),)),
        *(Survey(host, 1.0) for host in ("old", "n2", "n3", "n30")),
    ],
    "probes and pairs that were decided": [StudyEnd(one.id, "decided") for one in (PROBED, PAIRED)],
    "probes and pairs that were interrupted": [StudyEnd(one.id, "interrupted") for one in (PROBED, PAIRED)],
}  # fmt: skip


def lines_told(lines: list[str]) -> list[str]:
    read = map(json.loads, lines)
    return [" ".join(str(one[key]) for key in ("kind", "study", "arm", "host") if key in one) for one in read]


def test_what_is_missing_and_what_may_have_changed_is_set_aside_and_nothing_else(run: RunDirectory) -> None:
    """The same ranks measure what is left; time and again, as a second attempt may break as well."""
    said, planned, first = list[str](), run.read_plan(), run.measurements_jsonl.read_bytes()
    run.note(left_out={"n3": "ecc: GPU 2: it was left out: twice"}, status="interrupted",
             noted={"operator": "Ann", "site": "Hall 1", "ticket": "T-1"})  # fmt: skip
    for name, records in HOLDS.items():
        if "probes" in name:
            run.write_json(run.plan_json, replace(planned, probes=PROBED, pairs=PAIRED, nodes=2, ranks_per_node=1))
        run.append_records(records)
        before, earlier, source = texts(run.measurements_jsonl), texts(run.superseded_jsonl), resumed(run)
        plan = source.plan_to_measure
        assert plan is not None
        source.set_aside()
        left, aside = texts(run.measurements_jsonl), texts(run.superseded_jsonl)
        new = aside[len(earlier) :]
        assert (sorted(left + new), earlier + new) == (sorted(before), aside), "beside what was set aside before"
        assert [line for line in before if line in new] == new, "in their order"
        said += [f"{name}: {source.missing}", f"to measure: {plan.study_ids} on {plan.layout}, survey: {plan.survey}"]
        said += [*lines_told(left), "set aside:", *lines_told(new)]
    run.write_json(run.plan_json, planned)
    run.measurements_jsonl.write_bytes(first)
    for number, noted in enumerate((["operator=Bob", "ticket=T-2", "rack=B 7"], ["operator=Cy"], []), 1):
        for file in (*CONCLUDED, "mine.txt") if number > 1 else ():
            (run.path / file).parent.mkdir(exist_ok=True)
            (run.path / file).write_text(str(number))
            run.write_json(run.baseline_json, Baseline("cpu", f"2026-01-31T12:00:0{number}+00:00"))
        with run.measurements_jsonl.open("a", encoding="utf-8") as torn:  # by a kill
            torn.write('{"kind": "to')
        source = resumed(run, ddp_note=noted)
        source.open_run()
        source.release()
        run.append_record(gang_on(["new"], 1, number=number))
        assert run.read_records()[-1] == gang_on(["new"], 1, number=number)
        record = run.read_run()
        said += [f"{record.status} {record.finished_at} {record.operators} {record.noted}", *map(str, record.resumed)]
        said += sorted(str(one.relative_to(run.path)) for one in run.path.rglob("*.*"))
        said += sorted(f"{one.name}: {one.read_text()}" for one in run.path.glob(f"before-resume-{number}/*.*"))
    assert_approved("set-aside.txt", masked("\n".join(said), run.path, Path(__file__).parents[2]))


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


def test_what_another_session_measured_until_the_run_was_locked_is_kept(
    opened: Open, measuring: AcceptanceSession, gangs: list[InstantGang], monkeypatch: pytest.MonkeyPatch
) -> None:
    def acquire_late(path: Path) -> RunLock:
        measuring.source.measured_run.append_record(StudyEnd("weak/r", "rounds"))
        return acquire(path)

    monkeypatch.setattr(InstantGang, "ends", False)
    measuring.judge(measuring.source.cases[0])
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


def test_what_cannot_be_resumed_is_refused_as_approved(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    said = list[str]()

    def tried(name: str, attempt: Callable[[], object]) -> None:
        try:
            said.append(f"{name}: {attempt()}")
        except BadInput as error:
            said.append(f"{name}: {error}")

    def read_only(self: Path, *_: Any, **__: Any) -> None:
        raise OSError(30, "Read-only file system")

    plan, source = run.read_plan(), resumed(run)
    run.write_json(run.verdicts_json, {})
    with monkeypatch.context() as patch:
        patch.setattr(Path, "mkdir", read_only)
        tried("read-only", source.open_run)
    for devices, nodes in ((3, 1), (2, 2), (4, 2), (2, 1), (None, 1)):
        tried(f"{devices} on {nodes} nodes", lambda: resumed(run, devices, Cluster(nodes)).plan == plan)  # noqa: B023
    run.append_record(gang_on(["node"], 1, "SIM-{}", number=1))
    tried("simulated", lambda: resumed(run))
    studies = tuple(replace(study("decided"), launch=launch) for launch in (1, 2, 3))
    run.write_json(run.plan_json, Plan("cpu", "cpu", studies, ranks_per_node=2, launches=3))
    tried("launches", lambda: measured_layout(run))
    assert_approved("resumed-refused.txt", masked("\n".join(said), run.path))
