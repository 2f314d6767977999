"""Of several processes that want to write a run directory, one gets it, for as long as it lives."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpscale.calibrate.trusted_runs import read_trusted_run
from pytest_ddpscale.compare.compared_run import read_compared_run
from pytest_ddpscale.errors import RunDirectoryError
from pytest_ddpscale.history.recording import add_run
from pytest_ddpscale.report.culprits_text import read_findings
from pytest_ddpscale.run import run_opening
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.run_json import ThresholdsUsed
from pytest_ddpscale.run.run_opening import RunLock, judging_directory, new_run_directory, read_judged
from pytest_ddpscale.run.strict_json import strict_json
from pytest_ddpscale.run.verdicts import read_judgement
from tests.builders.json_types import run_record
from tests.builders.nights import judged_run
from tests.rows import rows

RACES = 40
RACER = """
import sys
from pathlib import Path
from pytest_ddpscale.errors import RunDirectoryError
from pytest_ddpscale.run.run_opening import new_run_directory

print("ready", flush=True)
sys.stdin.readline()
held = []
for number in range({races}):
    try:
        run, lock = new_run_directory(Path(f"run-{{number}}"), "cpu")
        run.write_json(run.run_json, {{"schema_version": 2, "sku": "cpu"}})
        held.append(lock)
        print(number, "won")
    except RunDirectoryError as error:
        print(number, "lost", error)
print("done", flush=True)
sys.stdin.readline()
"""
HOLDER = """
import sys
from pathlib import Path
from pytest_ddpscale.run.run_opening import RunLock

lock = RunLock.acquire(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.readline()
"""

BEGUN = strict_json(run_record(status="running"))


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """A run that somebody measured."""
    run = RunDirectory.create(tmp_path / "run")
    run.write_json(run.run_json, run_record())
    return run


class TestNewRunDirectory:
    @pytest.fixture(autouse=True)
    def in_an_empty_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)

    def test_the_directory_asked_for_is_made_and_no_other(self, tmp_path: Path) -> None:
        run, lock = new_run_directory(tmp_path / "mine", "cpu")
        assert run.path == tmp_path / "mine"
        assert [path.name for path in tmp_path.iterdir()] == ["mine"]
        lock.release()
        assert [path.name for path in run.path.iterdir()] == ["logs"]

    @pytest.mark.parametrize("asked", [Path("mine"), Path("deep/mine"), None])
    def test_others_may_not_read_it(self, tmp_path: Path, asked: Path | None) -> None:
        run, lock = new_run_directory(asked, "cpu")
        assert stat.S_IMODE(run.path.stat().st_mode) == 0o750
        assert RunDirectory.create(Path("another")).path.stat().st_mode == run.path.stat().st_mode
        lock.release()

    def test_a_directory_that_was_made_for_it_keeps_its_mode(self, tmp_path: Path) -> None:
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine").chmod(0o755)
        _, lock = new_run_directory(Path("mine"), "cpu")
        assert stat.S_IMODE((tmp_path / "mine").stat().st_mode) == 0o755
        lock.release()

    def test_the_default_is_named_by_time_and_sku_and_linked_as_the_latest(self) -> None:
        run, _ = new_run_directory(None, "cpu")
        assert run.path.parent == Path("ddpscale-runs")
        assert re.fullmatch(r"\d{8}T\d{6}-cpu", run.path.name)
        assert Path("ddpscale-runs/latest").resolve() == run.path.resolve()

    def test_runs_of_the_same_second_are_kept_apart(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Noon(datetime):
            @classmethod
            def now(cls, tz: Any = None) -> Noon:
                return cls(2026, 3, 1, 12, tzinfo=tz)

        monkeypatch.setattr(run_opening, "datetime", Noon)
        names = [new_run_directory(None, "cpu")[0].path.name for _ in range(3)]
        assert names == ["20260301T120000-cpu", "20260301T120000-cpu-2", "20260301T120000-cpu-3"]
        assert Path("ddpscale-runs/latest").readlink() == Path(names[-1])

    def test_a_folder_in_the_links_place_is_left_alone(self) -> None:
        Path("ddpscale-runs/latest/kept").mkdir(parents=True)
        run, _ = new_run_directory(None, "cpu")
        assert sorted(path.name for path in run.path.parent.iterdir()) == sorted([run.path.name, "latest"])
        assert Path("ddpscale-runs/latest/kept").is_dir()

    def test_a_directory_with_a_run_is_left_as_it_is(self, run: RunDirectory) -> None:
        before = sorted(path.name for path in run.path.iterdir())
        with pytest.raises(RunDirectoryError, match=f"--ddp-resume={run.path}"):
            new_run_directory(run.path, "cpu")
        assert sorted(path.name for path in run.path.iterdir()) == before

    @pytest.mark.parametrize("left", [[], ["run.json"], [".run.json.x1"], ["run.json", ".plan.json.x1", "run.lock"]])
    def test_a_run_killed_before_it_had_a_plan_is_begun_anew(self, tmp_path: Path, left: list[str]) -> None:
        run = RunDirectory.create(tmp_path / "killed")
        for name in left:
            (run.path / name).write_text(BEGUN, encoding="utf-8")
        assert run.is_only_begun == ("run.json" in left)
        assert new_run_directory(run.path, "cpu")[0] == run

    @pytest.mark.parametrize("also", ["plan.json", "measurements.jsonl", "verdicts.json", "notes.txt"])
    def test_a_run_that_has_come_further_is_not(self, tmp_path: Path, also: str) -> None:
        run = RunDirectory.create(tmp_path / "killed")
        for name in ("run.json", also):
            (run.path / name).write_text(BEGUN, encoding="utf-8")
        with pytest.raises(RunDirectoryError, match=r"already holds|is not empty"):
            new_run_directory(run.path, "cpu")

    def test_a_lock_that_a_killed_run_left_is_no_obstacle(self, tmp_path: Path) -> None:
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "run.lock").write_text('{"host":"node1","pid":1,"since":"2026"}', encoding="utf-8")
        run, lock = new_run_directory(tmp_path / "run", "cpu")
        assert run.path == tmp_path / "run"
        lock.release()


def test_of_two_processes_that_race_for_a_new_directory_exactly_one_wins(tmp_path: Path) -> None:
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER.format(races=RACES)],
            cwd=tmp_path,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    said: list[list[str]] = [[], []]
    try:
        for racer in racers:
            assert racer.stdout is not None
            assert racer.stdout.readline() == "ready\n"
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.write("go\n")
            racer.stdin.flush()
        for lines, racer in zip(said, racers, strict=True):
            assert racer.stdout is not None
            lines += iter(racer.stdout.readline, "done\n")
    finally:
        for racer in racers:
            racer.communicate("end\n", timeout=30)
    for number in range(RACES):
        one, other = sorted((lines[number] for lines in said), key=lambda line: "won" not in line)
        assert one == f"{number} won\n"
        assert other.startswith(f"{number} lost run-{number}: ")
        assert "is in use: " in other or "already holds a run" in other


class TestJudgingDirectory:
    def test_is_the_runs_own_while_it_has_no_verdicts(self, run: RunDirectory) -> None:
        where, lock = judging_directory(run, None)
        assert where == run
        lock.release()

    def test_is_a_new_one_beside_verdicts(self, run: RunDirectory) -> None:
        run.write_json(run.verdicts_json, {})
        names = [judging_directory(run, None)[0].path.name for _ in range(3)]
        assert names == ["judged-1", "judged-2", "judged-3"]

    def test_is_a_new_one_while_the_run_is_being_written(self, run: RunDirectory) -> None:
        lock = RunLock.acquire(run.path)
        where, _ = judging_directory(run, None)
        assert where.path == run.path / "judged-1"
        lock.release()

    def test_is_a_new_one_where_somebody_judged_meanwhile(
        self, run: RunDirectory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Another judge finished between looking for verdicts and locking."""
        acquire = RunLock.acquire

        def late(directory: Path) -> RunLock:
            if directory == run.path:
                run.write_json(run.verdicts_json, {"mine": True})
            return acquire(directory)

        monkeypatch.setattr(RunLock, "acquire", late)
        where, _ = judging_directory(run, None)
        assert where.path == run.path / "judged-1"
        acquire(run.path).release()  # the run's own lock was given back

    def test_is_the_one_asked_for(self, run: RunDirectory, tmp_path: Path) -> None:
        where, lock = judging_directory(run, tmp_path / "opinion")
        assert where.path == tmp_path / "opinion"
        with pytest.raises(RunDirectoryError, match="is in use"):
            judging_directory(run, tmp_path / "opinion")
        lock.release()


def test_a_second_holder_is_told_who_the_first_is(tmp_path: Path) -> None:
    lock = RunLock.acquire(tmp_path)
    with pytest.raises(RunDirectoryError) as refused:
        RunLock.acquire(tmp_path)
    assert f"is in use: process {os.getpid()} on {socket.gethostname()}, since 20" in str(refused.value)
    assert refused.value.where == str(tmp_path)
    assert "Wait until that run has ended" in refused.value.action
    lock.release()


def test_releasing_lets_others_in_and_leaves_nothing(tmp_path: Path) -> None:
    for _ in range(2):
        lock = RunLock.acquire(tmp_path)
        assert (tmp_path / "run.lock").is_file()
        lock.release()
        lock.release()
        assert list(tmp_path.iterdir()) == []


def test_a_killed_holder_keeps_nobody_out(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(RunDirectoryError, match=f"process {holder.pid} on "):
        RunLock.acquire(tmp_path)
    holder.kill()
    holder.communicate(timeout=30)
    assert (tmp_path / "run.lock").is_file(), "it died without cleaning up"
    RunLock.acquire(tmp_path).release()


def test_a_child_process_does_not_keep_the_lock(tmp_path: Path) -> None:
    """Ranks and launchers inherit no file descriptor of it."""
    lock = RunLock.acquire(tmp_path)
    child = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE, close_fds=False
    )
    lock.release()
    RunLock.acquire(tmp_path).release()
    child.communicate(timeout=30)


@rows("content", ["", "{", "3", '{"pid": 4}', "\udcff"])
def test_a_holder_that_does_not_say_who_it_is_is_somebody(tmp_path: Path, content: str) -> None:
    lock = RunLock.acquire(tmp_path)
    lock.path.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(RunDirectoryError, match="is in use: another process is writing it"):
        RunLock.acquire(tmp_path)
    lock.release()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks_is_used_without_one_and_said_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def no_locks(descriptor: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    lock = RunLock.acquire(tmp_path)
    assert lock.note == f"{tmp_path} is on a file system without locks: another run could have written to it"
    lock.release()
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_fails_for_another_reason_is_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(descriptor: int, operation: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(fcntl, "flock", breaks)
    with pytest.raises(RunDirectoryError, match=r"cannot be written \(Input/output error\)"):
        RunLock.acquire(tmp_path)


def test_where_no_file_can_be_made_there_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="cannot be written"):
        RunLock.acquire(tmp_path / "nowhere")


def test_a_lock_removed_while_it_was_being_taken_is_taken_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its holder released it between our opening the file and locking it: the file we hold has no name."""
    first = RunLock.acquire(tmp_path)
    flock = fcntl.flock
    tried: list[int] = []

    def late(descriptor: int, operation: int) -> None:
        if not tried:
            first.release()
        tried.append(descriptor)
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    second = RunLock.acquire(tmp_path)
    assert len(tried) == 2
    with pytest.raises(RunDirectoryError, match="is in use"):
        RunLock.acquire(tmp_path)
    second.release()


READERS: dict[str, Callable[[Path], object]] = {
    "culprits": read_findings,
    "report": lambda path: read_judged(RunDirectory(path), RunDirectory(path)),
    "compare": read_compared_run,
    "calibrate": read_trusted_run,
    "history": lambda path: add_run(path.parent / "history.sqlite", path),
}


@pytest.mark.parametrize(
    ("name", "was", "now"),
    [
        ("measurements.jsonl", r'(?s)\{"kind":"study_end.*', ""),
        ("measurements.jsonl", "(?s).+", ""),
        ("plan.json", '"nodes":1', '"nodes": 1'),
        ("run.json", "abab", "cdcd"),
    ],
)
def test_files_that_changed_since_they_were_judged_are_refused_by_all_who_read_verdicts(
    tmp_path: Path, name: str, was: str, now: str
) -> None:
    run = judged_run(tmp_path / "run", record={"thresholds": ThresholdsUsed("t.yaml", "ab" * 32)})
    assert all(read(run.path) for read in READERS.values())
    file = run.path / name
    before = file.read_text() if file.exists() else ""
    file.write_text(re.sub(was, now, before))
    assert file.read_text() != before
    for read in READERS.values():
        with pytest.raises(RunDirectoryError, match=f"was made from another {name} than"):
            read(run.path)


@pytest.mark.parametrize("status", ["running", "interrupted"])
def test_verdicts_so_far_of_a_run_that_measures_on_or_was_killed_are_read(tmp_path: Path, status: str) -> None:
    run = judged_run(tmp_path / "run", outcome="incomplete", record={"status": status})
    run.write_json(run.verdicts_json, replace(read_judgement(run.verdicts_json), unfinished=True))
    with run.measurements_jsonl.open("a") as file:
        file.write("{")
    assert read_judged(run, run).outcome == "incomplete"
