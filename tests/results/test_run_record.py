"""run.json says who measured, when, on what and by which thresholds, before and after."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpscale import __version__
from pytest_ddpscale.errors import RunDirectoryError
from pytest_ddpscale.results import run_record
from pytest_ddpscale.results.records import StudyEnd
from pytest_ddpscale.results.run_directory import RunDirectory
from pytest_ddpscale.results.run_record import errors_of, finish_run, new_run_directory, now_iso, start_run


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """A run that has just begun."""
    run = RunDirectory.create(tmp_path / "run")
    start_run(run, "a100", ("pytest", "--gpu-sku=a100"), Path("thresholds.yaml"), "ab" * 32)
    return run


def startup(host: str, local_rank: int, **changes: Any) -> dict[str, Any]:
    return {
        "kind": "startup", "host": host, "local_rank": local_rank, "device": f"GPU-{host}-{local_rank}",
        "device_name": "NVIDIA A100", "import_s": 4.0, "rendezvous_s": 1.0,
        "versions": {"torch": "2.9.0", "cuda": "12.8", "nccl": None}, "environment": {"NCCL_DEBUG": "WARN"},
    } | changes  # fmt: skip


class TestNewRunDirectory:
    @pytest.fixture(autouse=True)
    def in_an_empty_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)

    def test_the_directory_asked_for_is_made_and_no_other(self, tmp_path: Path) -> None:
        assert new_run_directory(tmp_path / "mine", "cpu").path == tmp_path / "mine"
        assert [path.name for path in tmp_path.iterdir()] == ["mine"]

    def test_a_directory_with_a_run_is_never_reused(self, run: RunDirectory) -> None:
        with pytest.raises(RunDirectoryError, match="already holds a run"):
            new_run_directory(run.path, "cpu")

    def test_the_default_is_named_by_time_and_sku_and_linked_as_the_latest(self) -> None:
        run = new_run_directory(None, "cpu")
        assert run.path.parent == Path("ddpscale-runs")
        assert re.fullmatch(r"\d{8}T\d{6}-cpu", run.path.name)
        assert Path("ddpscale-runs/latest").resolve() == run.path.resolve()

    def test_runs_of_the_same_second_are_kept_apart(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Noon(datetime):
            @classmethod
            def now(cls, tz: Any = None) -> Noon:
                return cls(2026, 3, 1, 12, tzinfo=tz)

        monkeypatch.setattr(run_record, "datetime", Noon)
        names = [new_run_directory(None, "cpu").path.name for _ in range(3)]
        assert names == ["20260301T120000-cpu", "20260301T120000-cpu-2", "20260301T120000-cpu-3"]
        assert Path("ddpscale-runs/latest").readlink() == Path(names[-1])

    def test_a_folder_in_the_links_place_is_left_alone(self) -> None:
        Path("ddpscale-runs/latest/kept").mkdir(parents=True)
        run = new_run_directory(None, "cpu")
        assert sorted(path.name for path in run.path.parent.iterdir()) == sorted([run.path.name, "latest"])
        assert Path("ddpscale-runs/latest/kept").is_dir()


class TestRunJson:
    def test_what_is_about_to_happen_is_recorded_before_it_happens(self, run: RunDirectory) -> None:
        record = run.read_run()
        assert (record["sku"], record["status"], record["hosts"]) == ("a100", "running", [])
        assert record["argv"] == ["pytest", "--gpu-sku=a100"]
        assert record["thresholds"] == {"path": "thresholds.yaml", "sha256": "ab" * 32}
        assert record["versions"]["pytest_ddpscale"] == __version__
        assert record["versions"]["pytest"] == pytest.__version__
        assert "finished_at" not in record

    def test_how_it_ended_is_added(self, run: RunDirectory) -> None:
        before = run.read_run()
        finish_run(run, "interrupted")
        record = run.read_run()
        assert record["status"] == "interrupted"
        assert datetime.fromisoformat(record["finished_at"]) >= datetime.fromisoformat(before["started_at"])
        assert {key: record[key] for key in before if key != "status"} == {
            key: before[key] for key in before if key != "status"
        }

    def test_hosts_are_listed_once_with_their_devices_in_order(self, run: RunDirectory) -> None:
        for host, local_rank in (("node2", 0), ("node1", 1), ("node1", 0), ("node1", 1)):
            run.append_record(startup(host, local_rank))
        finish_run(run, "finished")
        hosts = run.read_run()["hosts"]
        assert [(h["host"], [d["index"] for d in h["devices"]]) for h in hosts] == [("node1", [0, 1]), ("node2", [0])]
        assert hosts[0]["devices"][1] == {"index": 1, "uuid": "GPU-node1-1", "name": "NVIDIA A100"}

    def test_versions_and_environment_are_what_the_ranks_say(self, run: RunDirectory) -> None:
        run.append_record(startup("node1", 0))
        finish_run(run, "finished")
        record = run.read_run()
        assert (record["versions"]["torch"], record["versions"]["cuda"]) == ("2.9.0", "12.8")
        assert record["versions"]["pytest"] == pytest.__version__
        assert "nccl" not in record["versions"], "what a rank does not have is left out"
        assert record["environment"] == {"NCCL_DEBUG": "WARN"}

    def test_start_up_is_the_slowest_ranks(self, run: RunDirectory) -> None:
        run.append_record(startup("node1", 0, import_s=4.0, rendezvous_s=9.0))
        run.append_record(startup("node1", 1, import_s=7.0, rendezvous_s=1.0))
        finish_run(run, "finished")
        assert run.read_run()["startup"] == {"import_s": 7.0, "rendezvous_s": 9.0}
        for first_block_s in (2.5, 0.5):
            run.append_record({"kind": "warm_up", "study": "weak/r", "arm": "alone", "first_block_s": first_block_s})
        finish_run(run, "finished")
        assert run.read_run()["startup"]["first_step_s"] == 2.5


class TestErrorsOf:
    def test_only_studies_that_broke_have_a_message(self) -> None:
        ends = [StudyEnd("a", "rounds"), StudyEnd("b", "error", "no memory"), StudyEnd("c", "budget")]
        assert errors_of([end.as_json() for end in ends]) == {"b": "no memory"}

    def test_a_study_that_was_measured_again_is_no_error(self) -> None:
        ends = [StudyEnd("a", "error", "no memory"), StudyEnd("a", "rounds")]
        assert errors_of([end.as_json() for end in ends]) == {}
        assert errors_of([end.as_json() for end in reversed(ends)]) == {"a": "no memory"}

    def test_other_records_and_no_records_break_nothing(self) -> None:
        assert errors_of([]) == {}
        assert errors_of([{"kind": "study_start", "study": "a", "reason": "error"}, {"reason": "error"}]) == {}


def test_now_is_utc_to_the_second() -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", now_iso())
