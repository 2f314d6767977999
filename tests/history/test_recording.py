"""A run is in the history once, with all that it told."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace as altered

from pytest_ddpscale.errors import RunDirectoryError
from pytest_ddpscale.history.database import reading
from pytest_ddpscale.history.reading import HostRun, host_runs, skus_and_hosts
from pytest_ddpscale.history.recording import add_run, record_run
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.run.records import GangRecord, StudyEnd, gangs_by_number
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.survey_record import Survey
from pytest_ddpscale.simulate.measuring import SimulatedRun
from pytest_ddpscale.simulate.writing import write_simulated_run
from tests.builders.clusters import a100, faults
from tests.builders.nights import SKU, STUDY, VERSIONS, at, conclude, judged_run, measurements
from tests.builders.records import blocks_of, gang_at


@pytest.fixture
def history(tmp_path: Path) -> Path:
    return tmp_path / "history.sqlite"


def runs_of(file: Path, host: str = "n1", sku: str = SKU) -> list[HostRun]:
    with reading(file) as connection:
        return host_runs(connection, sku, host)


def rows(file: Path, table: str) -> list[tuple[Any, ...]]:
    with reading(file) as connection:
        return connection.execute(f"SELECT * FROM {table} ORDER BY rowid").fetchall()


def test_a_run_is_kept_with_its_verdicts_values_and_versions(tmp_path: Path, history: Path) -> None:
    run = judged_run(tmp_path / "run", 3, outcome="rejected", driver="580.65")
    assert add_run(history, run.path) == "added"
    [found] = runs_of(history)
    assert (found.path, found.started_at, found.outcome) == (str(run.path), at(3), "rejected")
    assert found.versions == {"python": "3.11.2", **VERSIONS, "driver": "580.65"}
    assert found.failed == ("throughput_per_gpu[r-2gpu]",)
    assert sorted(one.value for one in found.values) == pytest.approx([100.0] * 4)
    assert [row[1:] for row in rows(history, "verdicts")] == [("throughput_per_gpu[r-2gpu]", "failed", "fail")]


def test_a_run_that_was_moved_or_copied_is_the_same_run(tmp_path: Path, history: Path) -> None:
    run = judged_run(tmp_path / "run")
    add_run(history, run.path)
    shutil.copytree(run.path, tmp_path / "archive")
    assert add_run(history, tmp_path / "archive") == "known"
    assert [one.path for one in runs_of(history)] == [str(run.path)]


def test_runs_that_began_in_one_second_are_told_apart(tmp_path: Path, history: Path) -> None:
    for number, keys in enumerate(({"pid": 1}, {"pid": 2}, {"hosts": {"n2": [100.0, 100.0]}})):
        assert add_run(history, judged_run(tmp_path / str(number), **keys).path) == "added"  # type: ignore[arg-type]
    assert len(runs_of(history)) == 2
    assert len(runs_of(history, "n2")) == 1


@pytest.mark.parametrize("order", [range(6, -1, -1), (6, *range(6)), (0, 6, *range(1, 6))], ids=str)
def test_a_slow_night_is_no_baseline_in_whatever_order_nights_are_added(
    tmp_path: Path, history: Path, order: Sequence[int]
) -> None:
    for night in order:
        pace = [100.0 + night % 2, 90.0 if night == 6 else 100.0]
        add_run(history, judged_run(tmp_path / str(night), night, {"n1": pace}).path)
    assert [len(one.worse) for one in runs_of(history)] == [0] * 6 + [2]


def test_a_resumed_run_takes_the_place_of_what_it_had_been(tmp_path: Path, history: Path) -> None:
    run = judged_run(tmp_path / "run", outcome="incomplete")
    earlier = tmp_path / "earlier"
    shutil.copytree(run.path, earlier)
    add_run(history, run.path)
    (who,) = gangs_by_number(run.read_records()).values()
    anew = blocks_of(measurements("n1", [90.0, 90.0]), gang=1)
    run.measurements_jsonl.unlink()
    run.append_records([who, altered(who, gang=1), *anew, StudyEnd(STUDY.id, "rounds")])
    conclude(run, "accepted", judged_at=at(1))
    assert add_run(history, run.path) == "replaced"
    assert add_run(history, earlier) == "known", "what it had been does not come back"
    [found] = runs_of(history)
    assert found.outcome == "accepted"
    assert {round(one.value) for one in found.values} == {90}
    assert len(rows(history, "verdicts")) == 1


def test_hosts_of_a_killed_run_that_measured_nothing_are_known(tmp_path: Path, history: Path) -> None:
    run = judged_run(tmp_path / "run", outcome="incomplete")
    gangs = list(gangs_by_number(run.read_records()).values())
    run.measurements_jsonl.unlink()
    run.append_records(gangs)
    conclude(run, "incomplete", at(0))
    add_run(history, run.path)
    [found] = runs_of(history)
    assert found.values == ()


def test_a_node_that_was_left_out_has_no_part_in_the_run(tmp_path: Path, history: Path) -> None:
    run = judged_run(tmp_path / "run", driver="580.65")
    surveyed = Survey("n9", 0.0)
    run.append_record(surveyed)
    conclude(run, "accepted", at(0))
    add_run(history, run.path)
    assert runs_of(history, "n9") == []
    nobody = judged_run(tmp_path / "nobody", 1, outcome="incomplete")
    nobody.measurements_jsonl.unlink()
    nobody.append_record(surveyed)
    conclude(nobody, "incomplete", at(1))
    add_run(history, nobody.path)
    assert [one.outcome for one in runs_of(history, "n9")] == ["incomplete"]


def test_simulated_runs_have_a_sku_of_their_own(tmp_path: Path, history: Path) -> None:
    cluster = a100(8)
    run = RunDirectory.create(tmp_path / "run")
    simulated = SimulatedRun(cluster.plan(rounds=FEWEST_ROUNDS), cluster.performance, faults(), 0)
    write_simulated_run(run, cluster, simulated)
    judgement = conclude(run, "incomplete", judged_at=at(0))
    record_run(history, run, type(judgement)("a100-sxm4-80gb", "incomplete", "", ()))
    with reading(history) as connection:
        assert skus_and_hosts(connection) == [("simulated a100-sxm4-80gb", "simulated-0")]
    [found] = runs_of(history, "simulated-0", "simulated a100-sxm4-80gb")
    assert {one.gpu_index for one in found.values} == {None, *range(8)}


def test_what_another_tool_measured_is_refused(tmp_path: Path, history: Path) -> None:
    run = judged_run(tmp_path / "run", record={"status": "imported"})
    with pytest.raises(RunDirectoryError, match="was imported"):
        add_run(history, run.path)
    assert not history.exists()


def test_times_of_another_zone_are_kept_in_utc(tmp_path: Path, history: Path) -> None:
    run = judged_run(tmp_path / "run", record={"started_at": "2026-01-01T03:30:00+05:30"})
    add_run(history, run.path)
    assert runs_of(history)[0].started_at == "2025-12-31T22:00:00+00:00"


def test_versions_are_those_of_each_host(tmp_path: Path, history: Path) -> None:
    run = judged_run(tmp_path / "run", hosts={"n1": [100.0, 100.0], "n2": [100.0, 100.0]})
    mine, theirs = {"torch": "2.14.0", "cuda": "13.0"}, {"torch": "2.15.0", "cuda": None}
    records = [
        gang_at(one.places, versions=[mine, None, theirs, theirs]) if isinstance(one, GangRecord) else one
        for one in run.read_records()
    ]
    run.measurements_jsonl.unlink()
    run.append_records(records)
    conclude(run, "accepted", at(0))
    add_run(history, run.path)
    assert runs_of(history, "n1")[0].versions["torch"] == "2.14.0"
    assert runs_of(history, "n2")[0].versions == {"python": "3.11.2", "torch": "2.15.0"}
