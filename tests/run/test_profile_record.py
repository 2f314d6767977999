"""Profiles are read as strictly as other records, and refused where they contradict themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpscale.errors import RunDirectoryError
from pytest_ddpscale.run.profile_record import ArmProfile, ProfiledBucket, latest_profiles
from pytest_ddpscale.run.rank_folder import lines_by_file
from pytest_ddpscale.run.record_lines import line_of
from pytest_ddpscale.run.run_directory import PROFILES, RunDirectory
from tests.builders.profiles import profile
from tests.builders.records import gang_on
from tests.rows import rows

DDP = profile("weak/r", "ddp@2", [(100, 60, 30)], [(40, 10)])
LINE: dict[str, Any] = json.loads(line_of(DDP))


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = RunDirectory.create(tmp_path / "run")
    run.append_record(gang_on(["n1"], 2))
    return run


def test_profiles_lie_in_a_file_of_their_own(run: RunDirectory) -> None:
    assert run.read_profiles() == []
    run.append_records([DDP])
    assert (len(run.read_records()), run.read_profiles()) == (1, [DDP])
    assert lines_by_file(f"{PROFILES} ".encode() + line_of(DDP)) == {"profiles.jsonl": line_of(DDP)}


@rows(
    ("change", "why"),
    [
        ({"speed": 1}, "unknown field"),
        ({"gang": 1}, "gang 1 was not announced before"),
        ({"rank": 2}, "rank 2 is named, but gang 0 has 2 ranks"),
        ({"compute_ms": [1.0, 2.0]}, "compute_ms has 2 values"),
        ({"compute_ms": [70.0]}, "expected them to add up"),
        ({"hidden_ms": [41.0]}, "expected no more"),
        ({"step_ms": [-1.0]}, ">= 0"),
        ({"problem": "none"}, "expected one of the two"),
        ({"buckets": [{"bytes": 0, "begins_ms": 1, "took_ms": 1, "hidden_ms": 1}]}, ">= 1"),
    ],
)
def test_a_line_that_contradicts_itself_is_refused(run: RunDirectory, change: dict[str, Any], why: str) -> None:
    run.profiles_jsonl.write_text(json.dumps(LINE | change) + "\n")
    with pytest.raises(RunDirectoryError, match=f"line 1 is not a record.*{why}"):
        run.read_profiles()


def test_the_latest_profile_of_an_arm_counts() -> None:
    again = profile("weak/r", "ddp@2", [(90, 60, 20)], [(40, 20)])
    other = ArmProfile(study="weak/r", arm="alone", gang=0, rank=0, problem="no Kineto")
    assert latest_profiles([DDP, other, again]) == (again, other)
    assert DDP.buckets == (ProfiledBucket(bytes=2**20, begins_ms=50, took_ms=40, hidden_ms=10),)
