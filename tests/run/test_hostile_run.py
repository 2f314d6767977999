"""Files of a run directory that are no files, times that cannot be, and texts that would steer a terminal."""

from __future__ import annotations

import json
import os
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpscale.errors import RunDirectoryError
from pytest_ddpscale.run.evidence import read_evidence
from pytest_ddpscale.run.run_directory import MOST_LINE_BYTES
from pytest_ddpscale.run.verdicts import read_judgement
from tests.rows import rows
from tests.run.sound_run import read, refusal, write

FILES = ("run.json", "plan.json", "measurements.jsonl")
KINDS = ("a pipe", "a character device")
NAME = "\x1b[2Jn\n1\u202e"


@rows(("name", "kind"), product(FILES, KINDS))
def test_a_pipe_or_a_device_is_no_file_of_a_run(tmp_path: Path, name: str, kind: str) -> None:
    run = write(tmp_path)
    path = run.path / name
    path.unlink(missing_ok=True)
    os.mkfifo(path) if kind == "a pipe" else path.symlink_to("/dev/zero")
    with pytest.raises(RunDirectoryError) as raised:
        read_evidence(run)
    found = f"{path}: cannot be read (a pipe, socket or device, not a regular file); expected the file as"
    assert str(raised.value).startswith(found)


def test_neither_are_its_results(tmp_path: Path) -> None:
    run = write(tmp_path)
    for path in (run.verdicts_json, run.suite_json):
        os.mkfifo(path)
        with pytest.raises(RunDirectoryError, match="a pipe, socket or device, not a regular file"):
            read_judgement(path) if path == run.verdicts_json else run.read_suite()


def test_a_line_without_an_end_is_refused(tmp_path: Path) -> None:
    run = write(tmp_path)
    os.truncate(run.measurements_jsonl, 0)
    os.truncate(run.measurements_jsonl, 2**40)
    with pytest.raises(RunDirectoryError, match=f"line 1 is longer than {MOST_LINE_BYTES // 2**20} MiB"):
        read_evidence(run)


@rows(
    ("moment", "is_read"),
    [
        ("9999-12-31T23:59:59-12:00", False), ("0001-01-01T00:00:00+14:00", False),
        ("1969-12-31T23:59:59+00:00", False), ("2201-01-01T00:00:00+00:00", False),
        ("1970-01-01T00:00:12+00:00", True), ("2026-11-27T05:08:42-12:00", True),  # of a clock that was never set
    ],
)  # fmt: skip
def test_times_that_no_clock_shows_are_refused(tmp_path: Path, moment: str, is_read: bool) -> None:
    said: Any
    for said in ({"started_at": moment}, {"finished_at": moment}):
        if is_read:
            assert read(tmp_path, **said)
        else:
            assert f"{moment} is outside of the years 1970 to 2200" in refusal(tmp_path, **said)


@pytest.mark.parametrize("name", [NAME, "n\0"])
def test_a_host_may_have_any_name(tmp_path: Path, name: str) -> None:
    """numpy cuts null characters off the end of a text, so that the host was another one here and there."""
    run = write(tmp_path)
    lines = run.measurements_jsonl.read_text(encoding="utf-8")
    run.measurements_jsonl.write_text(lines.replace('"n0"', json.dumps(name)), encoding="utf-8")
    evidence = read_evidence(run)
    assert {*evidence.hosts} == evidence.columns.hosts == {name, "n1"}
