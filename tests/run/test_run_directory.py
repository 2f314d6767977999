"""One process writes a run directory, and what it has written survives a kill and a full disk."""

from __future__ import annotations

import errno
import fcntl
import math
import os
import re
import resource
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ddpscale.calibrate.trusted_runs import read_trusted_run
from pytest_ddpscale.compare.comparing import read_judged_run
from pytest_ddpscale.errors import RunDirectoryError, WritingError
from pytest_ddpscale.history.store import add_run
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.report.culprits import read_findings
from pytest_ddpscale.run import run_directory
from pytest_ddpscale.run.record_lines import line_of
from pytest_ddpscale.run.records import StudyEnd
from pytest_ddpscale.run.run_directory import RunDirectory, RunLock, append_whole, judging_directory, new_run_directory
from pytest_ddpscale.run.run_json import ThresholdsUsed
from pytest_ddpscale.run.strict_json import column, each, parse_strict_json, strict_json
from pytest_ddpscale.run.verdicts import read_judged, read_judgement
from tests.builders.json_types import as_json, run_record
from tests.builders.nights import judged_run
from tests.builders.records import gang_on, steady_block
from tests.rows import rows
from tests.small_disk import SmallDisk, small_disk

RACES = 40
RACER = """
import sys
from pathlib import Path
from pytest_ddpscale.errors import RunDirectoryError
from pytest_ddpscale.run.run_directory import new_run_directory

print("ready", flush=True)
sys.stdin.readline()
held = []
for number in range({races}):
    try:
        run, lock = new_run_directory(Path(f"run-{{number}}"), "cpu")
        run.write_json(run.run_json, {{"schema_version": 3, "sku": "cpu"}})
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
from pytest_ddpscale.run.run_directory import RunLock

lock = RunLock.acquire(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.readline()
"""

BEGUN = strict_json(run_record(status="running"))
PLAN = Plan("cpu", "cpu", (), ranks_per_node=1)
A, B = StudyEnd("a", "error", "so many words that a small disk is soon full of them"), StudyEnd("b", "rounds")
ARM = Arm("alone", 1, 4)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """A run that somebody measured."""
    run = RunDirectory.create(tmp_path / "runs" / "one")
    run.write_json(run.run_json, run_record())
    return run


def names_in(path: Path) -> list[str]:
    return sorted(one.name for one in path.iterdir())


def test_what_is_written_is_read(run: RunDirectory) -> None:
    run.write_json(run.plan_json, PLAN)
    opened = RunDirectory.open(run.path)
    assert (opened.read_run(), opened.read_plan(), opened.read_records()) == (run_record(), PLAN, [])
    assert run.run_json.read_text() == strict_json(run_record()) + "\n"
    with pytest.raises(ValueError):
        run.write_json(run.run_json, {"load": math.nan})
    assert run.read_run() == run_record()


FINISH = r"which this version reads: finish it with the version that began it\.$"


@rows(
    ("name", "content", "found"),
    [
        ("run.json", None, "has no run.json; expected a run directory"),
        *[("run.json", text, "has no schema_version") for text in ("{}", "[]", "3", '{"schema_version":true}')],
        *[("run.json", text, r"run\.json: cannot be read") for text in ("", "{", '{"schema_version":NaN}', '"\xff"')],
        ("run.json", "[" * 100_000, "nested too deeply"),
        # As an older version wrote it: told before any field that this one does not know.
        ("run.json", '{"schema_version":2,"hosts":[]}', rf"run\.json: has schema_version 2; expected 3, {FINISH}"),
        ("run.json", '{"schema_version":99}', rf"run\.json: has schema_version 99; expected 3, {FINISH}"),
        ("plan.json", '{"schema_version":5}', rf"plan\.json: has schema_version 5; expected \d+, {FINISH}"),
        *[
            ("plan.json", strict_json(as_json(PLAN) | change), r"plan\.json: has invalid content .* at `\$")
            for change in list[dict[str, Any]]([{"studies": 3}, {"studies": [{}]}, {"sku": None}])
        ],
    ],
)  # fmt: skip
def test_what_no_run_is_read_from_is_refused(run: RunDirectory, name: str, content: str | None, found: str) -> None:
    run.write_json(run.run_json, run_record())
    if content is None:
        (run.path / name).unlink()
    else:
        (run.path / name).write_text(content, "latin-1")
    with pytest.raises(RunDirectoryError, match=found):
        RunDirectory.open(run.path)


def test_a_run_without_a_plan_or_a_directory_is_refused(run: RunDirectory, tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match=r"plan\.json: cannot be read"):
        run.read_plan()
    with pytest.raises(RunDirectoryError, match="nowhere: does not exist"):
        RunDirectory.open(tmp_path / "nowhere")


@given(JSON_VALUES)
def test_json_is_one_line_that_reads_back_the_same(value: Any) -> None:
    text = strict_json(value)
    assert "\n" not in text
    assert parse_strict_json(text) == value


@given(st.lists(st.integers(0, 2) | st.none(), min_size=1, max_size=5))
def test_a_column_has_what_it_was_made_of(values: list[int | None]) -> None:
    assert each(column(values), len(values)) == tuple(values)


class TestRecords:
    def test_appended_together_are_what_they_are_one_by_one(self, run: RunDirectory, tmp_path: Path) -> None:
        together = RunDirectory.create(tmp_path / "all")
        together.append_records([])
        assert not together.measurements_jsonl.exists()
        together.append_records([A, B])
        for record in (A, B):
            run.append_record(record)
        assert together.measurements_jsonl.read_bytes() == run.measurements_jsonl.read_bytes()

    def test_of_several_none_is_written_if_one_could_not_be_read(self, run: RunDirectory) -> None:
        block = steady_block("weak/r", ARM, 0, (0,), 100.0)
        run.append_records([gang_on(["n1"], 1), block])
        made = run.measurements_jsonl.read_bytes()
        for impossible in (math.nan, math.inf, -1.0):
            with pytest.raises(ValueError):
                run.append_records([block, msgspec.structs.replace(block, seconds=impossible)])
        assert run.measurements_jsonl.read_bytes() == made

    def test_are_read_once_until_there_are_more(self, run: RunDirectory) -> None:
        run.append_record(A)
        first = run.read_records()
        assert run.read_records() is first
        run.append_record(B)
        assert run.read_records() == [A, B]

    @settings(deadline=None)  # a busy disk is no failure
    @given(share=st.floats(0, 1))
    def test_of_a_killed_run_keep_every_finished_one(self, share: float) -> None:
        with tempfile.TemporaryDirectory() as directory:
            run = RunDirectory(Path(directory))
            run.append_records([A, B, A])
            content = run.measurements_jsonl.read_bytes()
            kept = content[: round(share * len(content))]
            run.measurements_jsonl.write_bytes(kept)
            lines = kept.count(b"\n")
            assert run.read_records() == [A, B, A][:lines]
            run.cut_torn_line()
            run.append_record(B)
            assert run.read_records() == [*[A, B, A][:lines], B]

    @rows("damage", ["", "{", "\0\0\0", "3", "[]", '{"kind": NaN}', '{"kind":"measurement"'])
    @rows("number", [1, 2])
    def test_that_are_broken_are_refused_with_the_number_of_the_line(
        self, run: RunDirectory, damage: str, number: int
    ) -> None:
        lines = [line_of(A).decode(), line_of(B).decode()]
        lines[number - 1] = damage + "\n"
        run.measurements_jsonl.write_text("".join(lines))
        with pytest.raises(RunDirectoryError, match=rf"measurements\.jsonl: line {number} is not a record"):
            run.read_records()


class TestNewRunDirectory:
    @pytest.fixture(autouse=True)
    def in_an_empty_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)

    @pytest.mark.parametrize("asked", [Path("mine"), Path("deep/mine"), None])
    def test_it_is_made_and_others_may_not_read_it(self, asked: Path | None) -> None:
        run, lock = new_run_directory(asked, "cpu")
        assert stat.S_IMODE(run.path.stat().st_mode) == 0o750
        assert RunDirectory.create(Path("another")).path.stat().st_mode == run.path.stat().st_mode
        lock.release()
        assert names_in(run.path) == ["logs", "run.lock"]
        if asked is None:
            assert re.fullmatch(r"ddpscale-runs/\d{8}T\d{6}-cpu", str(run.path))
        else:
            assert run.path == asked

    def test_runs_of_the_same_second_are_kept_apart(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Noon(datetime):
            @classmethod
            def now(cls, tz: Any = None) -> Noon:
                return cls(2026, 3, 1, 12, tzinfo=tz)

        monkeypatch.setattr(run_directory, "datetime", Noon)
        names = [new_run_directory(None, "cpu")[0].path.name for _ in range(3)]
        assert names == ["20260301T120000-cpu", "20260301T120000-cpu-2", "20260301T120000-cpu-3"]
        assert Path("ddpscale-runs/latest").readlink() == Path(names[-1])

    def test_a_folder_in_the_links_place_is_left_alone(self) -> None:
        Path("ddpscale-runs/latest/kept").mkdir(parents=True)
        run, _ = new_run_directory(None, "cpu")
        assert names_in(run.path.parent) == sorted([run.path.name, "latest"])
        assert Path("ddpscale-runs/latest/kept").is_dir()

    def test_a_directory_with_a_run_is_left_as_it_is(self, run: RunDirectory) -> None:
        before = names_in(run.path)
        with pytest.raises(RunDirectoryError, match=f"--ddp-resume={run.path}"):
            new_run_directory(run.path, "cpu")
        assert names_in(run.path) == before

    @pytest.mark.parametrize("left", [[], ["run.json"], [".run.json.x1"], ["run.json", ".plan.json.x1", "run.lock"]])
    def test_a_run_killed_before_it_had_a_plan_is_begun_anew(self, left: list[str]) -> None:
        run = RunDirectory.create(Path("killed"))
        for name in left:
            (run.path / name).write_text(BEGUN, encoding="utf-8")
        assert run.is_only_begun == ("run.json" in left)
        assert new_run_directory(run.path, "cpu")[0] == run

    @pytest.mark.parametrize("also", ["plan.json", "measurements.jsonl", "verdicts.json", "notes.txt"])
    def test_a_run_that_has_come_further_is_not(self, also: str) -> None:
        run = RunDirectory.create(Path("killed"))
        for name in ("run.json", also):
            (run.path / name).write_text(BEGUN, encoding="utf-8")
        with pytest.raises(RunDirectoryError, match=r"already holds|is not empty"):
            new_run_directory(run.path, "cpu")

    def test_a_run_that_another_process_began_and_ended_meanwhile_is_left_alone(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        acquire, mine = RunLock.acquire, RunDirectory(Path("mine"))

        def late(directory: Path) -> RunLock:
            mine.write_json(mine.run_json, run_record())
            return acquire(directory)

        monkeypatch.setattr(RunLock, "acquire", late)
        with pytest.raises(RunDirectoryError, match="already holds a run"):
            new_run_directory(mine.path, "cpu")
        acquire(mine.path).release()  # the lock was given back

    @pytest.mark.parametrize("below", ["", "sub"])
    def test_a_file_in_the_way_is_left_as_it_is(self, below: str) -> None:
        Path("file").write_text("in the way")
        with pytest.raises(RunDirectoryError, match=r"cannot be written .*a writable directory"):
            new_run_directory(Path("file") / below, "cpu")
        assert Path("file").read_text() == "in the way"


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
    assert "Wait until it has ended" in refused.value.action
    lock.release()


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


def test_a_file_system_without_locks_is_used_without_one_and_said_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    lock = RunLock.acquire(tmp_path)
    assert lock.note == f"{tmp_path} is on a file system without locks: another run could have written to it"
    lock.release()


def test_a_lock_that_fails_for_another_reason_is_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(descriptor: int, operation: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(fcntl, "flock", breaks)
    with pytest.raises(RunDirectoryError, match=r"cannot be written \(Input/output error\)"):
        RunLock.acquire(tmp_path)


def test_a_lock_that_is_a_link_leaves_what_it_leads_to(run: RunDirectory, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("content")
    (run.path / "run.lock").symlink_to(tmp_path / "precious")
    with pytest.raises(RunDirectoryError, match="cannot be written"):
        RunLock.acquire(run.path)
    assert (tmp_path / "precious").read_text() == "content"


READERS: dict[str, Callable[[Path], object]] = {
    "culprits": read_findings,
    "report": lambda path: read_judged(RunDirectory(path), RunDirectory(path)),
    "compare": read_judged_run,
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
    assert all(read(run.path) is not None for read in READERS.values())
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


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk", kib=64) as disk:
        yield disk


@pytest.fixture
def on_disk(disk: SmallDisk) -> RunDirectory:
    run = RunDirectory.create(disk.path / "run")
    run.write_json(run.run_json, run_record())
    return run


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """No file of this process may grow beyond so many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def append_until_full(run: RunDirectory) -> WritingError:
    """Fill the disk with records."""
    for _ in range(1000):
        try:
            run.append_record(A)
        except WritingError as full:
            return full
    raise AssertionError("the disk is not full after a thousand records")


def test_a_full_disk_keeps_every_record_and_no_part_of_the_last(disk: SmallDisk, on_disk: RunDirectory) -> None:
    error = append_until_full(on_disk)
    assert str(error).startswith(
        f"{on_disk.measurements_jsonl}: cannot be written (No space left on device); expected "
    )
    assert error.action.startswith("Earlier measurements are kept. Free space ")
    assert f"measure the rest with --ddp-resume={on_disk.path}." in error.action
    kept = len(on_disk.read_records())
    assert kept > 10
    assert on_disk.measurements_jsonl.read_bytes() == line_of(A) * kept


def test_writing_goes_on_when_there_is_room_again(disk: SmallDisk, on_disk: RunDirectory) -> None:
    disk.fill(leave_bytes=8192)
    append_until_full(on_disk)
    kept = len(on_disk.read_records())
    disk.make_room()
    on_disk.append_record(B)
    assert on_disk.read_records() == [A] * kept + [B]


def test_a_file_that_cannot_be_replaced_keeps_its_content(disk: SmallDisk, on_disk: RunDirectory) -> None:
    disk.fill()
    with pytest.raises(WritingError, match=r"run\.json: cannot .*\(No space left on device\).* then try again\.$"):
        on_disk.write_json(on_disk.run_json, run_record(sku="x" * 10_000))
    assert on_disk.read_run().sku == "cpu"
    disk.make_room()
    assert sorted(path.name for path in on_disk.path.iterdir()) == ["logs", "run.json"]


def test_a_full_disk_lets_a_run_be_locked_and_released(disk: SmallDisk, on_disk: RunDirectory) -> None:
    """Judging again where there is no room has to say so when it writes, and not before."""
    disk.fill()
    lock = RunLock.acquire(on_disk.path)
    with pytest.raises(RunDirectoryError, match="is in use"):
        RunLock.acquire(on_disk.path)
    lock.release()


def test_a_read_only_disk_is_refused_and_keeps_what_is_there(disk: SmallDisk, on_disk: RunDirectory) -> None:
    on_disk.append_record(A)
    disk.make_read_only()
    for write in (
        lambda: on_disk.append_record(A),
        lambda: on_disk.write_json(on_disk.run_json, {}),
        on_disk.cut_torn_line,
        lambda: new_run_directory(disk.path / "new", "cpu"),
        lambda: RunLock.acquire(on_disk.path),
    ):
        with pytest.raises(RunDirectoryError, match=r"cannot be written \(Read-only file system\)"):
            write()
    assert on_disk.read_records() == [A]


@pytest.mark.parametrize("limit", [100, 101, 150, 199])
def test_a_line_that_does_not_fit_leaves_no_part(tmp_path: Path, limit: int) -> None:
    """Wherever in it the space ends; without root, by a limit on the size of files."""
    path = tmp_path / "file"
    with largest_file(limit):
        append_whole(path, b"x" * 99 + b"\n")
        with pytest.raises(OSError, match="File too large") as failed:
            append_whole(path, b"y" * 99 + b"\n")
    assert failed.value.errno == errno.EFBIG
    assert path.read_bytes() == b"x" * 99 + b"\n"
