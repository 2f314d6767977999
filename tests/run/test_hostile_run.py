"""Files of a run directory that are no files, times that cannot be, and texts that would steer a terminal."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from pytest_ddpscale.errors import RunDirectoryError
from pytest_ddpscale.run.evidence import read_evidence
from pytest_ddpscale.run.records import GangRecord, StudyEnd
from pytest_ddpscale.run.run_directory import MOST_LINE_BYTES, RunDirectory
from pytest_ddpscale.run.verdicts import read_judgement
from tests.builders.json_types import as_json, run_record
from tests.builders.records import gang_on
from tests.run.sound_run import PLAN, sound

FILES = ("run.json", "plan.json", "measurements.jsonl")
SOON_S = 2.0


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = RunDirectory.create(tmp_path / "run")
    run.write_json(run.run_json, run_record(sku=PLAN.sku))
    run.write_json(run.plan_json, PLAN)
    run.append_records(sound())
    return run


def refusal(run: RunDirectory) -> str:
    began_s = time.monotonic()
    with pytest.raises(RunDirectoryError) as raised:
        read_evidence(run)
    assert time.monotonic() - began_s < SOON_S
    return str(raised.value)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["a pipe", "a character device"])
def test_a_pipe_or_a_device_is_no_file_of_a_run(run: RunDirectory, name: str, kind: str) -> None:
    path = run.path / name
    path.unlink(missing_ok=True)
    if kind == "a pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    said = refusal(run)
    assert said.startswith(f"{path}: cannot be read ({kind}, not a regular file); expected the file as pytest-ddpscale")


@pytest.mark.parametrize("name", ["verdicts.json", "suite.json"])
def test_neither_are_its_results(run: RunDirectory, name: str) -> None:
    os.mkfifo(run.path / name)
    with pytest.raises(RunDirectoryError, match="a pipe, not a regular file"):
        read_judgement(run.verdicts_json) if name == "verdicts.json" else run.read_suite()


def test_a_line_without_an_end_is_refused(run: RunDirectory) -> None:
    with run.measurements_jsonl.open("r+b") as file:
        file.truncate(0)
        file.truncate(2**40)
    assert f"line 1 is longer than {MOST_LINE_BYTES // 2**20} MiB" in refusal(run)


@pytest.mark.parametrize("field", ["started_at", "finished_at"])
@pytest.mark.parametrize(
    "moment",
    [
        "9999-12-31T23:59:59-12:00", "9999-12-31T23:59:59+00:00", "0001-01-01T00:00:00+14:00",
        "0001-01-01T00:00:00+00:00", "1969-12-31T23:59:59+00:00", "2201-01-01T00:00:00+00:00",
    ],
)  # fmt: skip
def test_times_that_no_clock_shows_are_refused(run: RunDirectory, field: str, moment: str) -> None:
    run.write_json(run.run_json, as_json(run_record(sku=PLAN.sku)) | {field: moment})
    assert f"{moment} is outside of the years 1970 to 2200" in refusal(run)


@pytest.mark.parametrize("moment", ["1970-01-01T00:00:12+00:00", "2026-11-27T05:08:42-12:00"])
def test_times_of_a_clock_that_was_never_set_are_read(run: RunDirectory, moment: str) -> None:
    run.write_json(run.run_json, as_json(run_record(sku=PLAN.sku)) | {"started_at": moment})
    assert run.read_run().began.utcoffset() is not None


def test_texts_are_escaped_where_they_are_read(run: RunDirectory) -> None:
    name = "\x1b[2Jn\n1\u202e"
    message = "rank 0 failed\n  stack\x1b[A"
    run.append_records([gang_on([name], 1, "GPU-0", 9, device_name=name), StudyEnd("probes", "error", message)])
    *_, read, end = run.read_records()
    assert isinstance(read, GangRecord)
    assert read.hosts == [read.ranks[0].device_name] == [r"\x1b[2Jn\n1\u202e"]
    assert isinstance(end, StudyEnd)
    assert end.message == "rank 0 failed\n  stack\\x1b[A"
    run.write_json(run.run_json, as_json(run_record(sku=PLAN.sku)) | {"noted": {name: name}, "argv": [name]})
    assert run.read_run().noted == {r"\x1b[2Jn\n1\u202e": r"\x1b[2Jn\n1\u202e"}


def test_a_host_may_be_named_by_a_null_character(run: RunDirectory, tmp_path: Path) -> None:
    """numpy cuts null characters off the end of a text, so that the host was another one here and there."""
    hosts = sorted({host for one in sound() if isinstance(one, GangRecord) for host in one.hosts})
    lines = run.measurements_jsonl.read_bytes().replace(f'"{hosts[0]}"'.encode(), rb'"n\u0000"')
    run.measurements_jsonl.write_bytes(lines)
    evidence = read_evidence(run)
    assert r"n\x00" in {host for one in evidence.columns.arms.values() for host in one.ranks.by_host}
