"""Runs of earlier versions, recorded by them: what is read is what their lines say."""

from __future__ import annotations

import base64
import json
import shutil
import tarfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_ddpscale.errors import RunDirectoryError
from pytest_ddpscale.judge.probes import probed_values
from pytest_ddpscale.judge.slow_links import rails_of
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.run.block import Unsupported
from pytest_ddpscale.run.evidence import Evidence, read_evidence
from pytest_ddpscale.run.readings import SERIES
from pytest_ddpscale.run.record_lines import AnyRecord, RecordReader
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.session.resume import Resumption
from tests.rows import rows

RECORDED = Path(__file__).parents[2] / "benchmarks" / "oracle" / "runs"
# A real one of a CPU; of two nodes, with probes, pairs and a lost GPU; of three launches.
CPU, NODES, LAUNCHES = "recorded-cpu", "recorded-h100-slow-link", "recorded-a6000-3-launches"
READINGS = ("utilization", "energy_j", "peak_memory_bytes", "skipped_steps")
Line = dict[str, Any]
SHARED: Line = {"seconds": 1.0, "started_unix_s": 1.7e9, "is_correct": True, "work": 1.0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All of them, unpacked."""
    folder = tmp_path_factory.mktemp("recorded")
    for name in (CPU, NODES, LAUNCHES):
        with tarfile.open(RECORDED / f"{name}.tar.xz") as packed:
            packed.extractall(folder / name, filter="data")
    return folder


@cache
def recorded(folder: Path, name: str) -> tuple[Evidence, list[Line]]:
    (measured,) = (folder / name).rglob("measurements.jsonl")
    lines = [json.loads(line) for line in measured.read_text().splitlines()]
    return read_evidence(RunDirectory(measured.parent)), lines


def of_kind(lines: list[Line], kind: str) -> Iterator[Line]:
    found = [line for line in lines if line["kind"] == kind]
    assert found, kind
    return iter(found)


def each(said: Any, line: Line) -> list[Any]:
    """A column, NaN where nothing was known."""
    column = said if isinstance(said, list) else [said] * len(line["ranks"])
    return [float("nan") if one is None else one for one in column]


@rows("name", [CPU, NODES, LAUNCHES])
def test_blocks_of_training_are_as_they_were(folder: Path, name: str) -> None:
    evidence, lines = recorded(folder, name)
    for line in of_kind(lines, "block"):
        arm = evidence.columns.arms[line["study"], line["arm"]]
        (row,) = np.flatnonzero(arm.numbers == line["round"])
        at = np.searchsorted(arm.ranks.numbers, np.array(line["ranks"]))
        assert np.flatnonzero(arm.present[row]).tolist() == sorted(at.tolist())
        for array, said in (
            (arm.count, line["steps"]), (arm.work, line["batch_size"]), (arm.seconds, line["block_s"]),
            (arm.began_unix_s, line["started_unix_s"]),
            *((arm.reading(one), line.get(one, 0 if one == "skipped_steps" else None)) for one in READINGS),
        ):  # fmt: skip
            np.testing.assert_array_equal(array[row, at], each(said, line))
        for one in SERIES:
            packed = np.frombuffer(base64.b64decode(line.get(one, "")), "<f4").reshape(len(at), -1)
            np.testing.assert_array_equal(arm.of_steps(one)[row, at][:, : packed.shape[1]], packed)
        digits = line.get("parameters_checksum", "0" * 16)
        checksums = [f"{one & (2**64 - 1):016x}" for one in arm.digest[row, at].tolist()]
        assert checksums == [digits[16 * i :][:16] or digits for i in range(len(at))]


@rows("name", [CPU, NODES])
def test_probes_are_as_they_were_pair_by_pair(folder: Path, name: str) -> None:
    evidence, lines = recorded(folder, name)
    for line in of_kind(lines, "probe"):
        probe = Arm(line["probe"], line["world_size"])
        arm = evidence.probed(probe)
        assert arm is not None
        columns = [each(line[one], line) for one in ("work", "seconds", "started_unix_s", "is_correct")]
        peers = each(line.get("peers", -1), line)
        for rank, peer, work, seconds, began, is_correct in zip(line["ranks"], peers, *columns, strict=True):
            ends = [rank] if peer < 0 else [rank, peer]
            at = np.searchsorted(arm.ranks.numbers, ends)
            here = (arm.numbers == line["round"]) & arm.present[:, at].all(axis=1)
            (row,) = np.flatnonzero(here & (arm.groups[:, at] == arm.groups[:, at[:1]]).all(axis=1))
            cell = row, at[0]
            found = arm.work[cell], arm.count[cell], arm.seconds[cell], arm.began_unix_s[cell], not arm.wrong[cell]
            assert found == (work, line["iterations"], seconds, began, is_correct)
        assert len(probed_values(arm, probe, evidence.plan.layout).places), probe.name


def test_pairs_of_nodes_are_as_fast_as_they_were(folder: Path) -> None:
    evidence, lines = recorded(folder, NODES)
    said = {
        (line["round"], *pair): gbps
        for line in of_kind(lines, "pair")
        for pair, gbps in zip(line["ranks"], each(line["busbw_gbps"], line), strict=True)
    }
    found = {(rail.round, *rail.ranks): rail.gbps for rail in rails_of(evidence)}
    assert found == pytest.approx(said, rel=1e-12)


def read(lines: list[Line], line: Line) -> list[AnyRecord]:
    """One line behind that of its gang."""
    reader = RecordReader()
    reader.read(json.dumps(next(of_kind(lines, "gang"))).encode())
    return reader.read_any(json.dumps(line).encode())


def test_what_stands_in_no_block_is_as_it_was(folder: Path) -> None:
    evidence, lines = recorded(folder, NODES)
    assert evidence.flops_per_sample == {
        line["study"]: line["flops_per_image"] for line in of_kind(lines, "workload_flops")
    }
    said = {"study": "probes", "gang": 0, "ranks": [3, 4], "reasons": ["too old", "too cold"]}
    (found,) = read(lines, {"kind": "probe_unsupported", "probe": "matmul-fp8", **said})
    assert found == Unsupported(study="probes", arm="matmul-fp8", gang=0, ranks=(3, 4), reasons=("too old", "too cold"))


@rows(
    ("kind", "changes", "found"),
    [
        ("block", {"ranks": [0, 1, 2, 99]}, "rank 99 is named, but gang 0 has"),
        ("block", {"gang": 7}, "gang 7 was not announced before"),
        ("block", {"colour": "red"}, "unknown field `colour`"),
        ("block", {"utilization": 5.0}, "utilization of a rank is out of range"),
        ("block", {"steps": 0}, "Expected `int` >= 1"),
        ("probe", {"probe": "sleep"}, "unknown arm 'sleep'"),
        ("probe", {"peers": None}, "no peers; expected peers for send-recv, none for other probes"),
        ("probe", {"seconds": 0.0}, "Expected `float` > 0.0"),
        ("probe", {"started_unix_s": None}, "Expected `float | array`, got `null`"),
        ("probe", {"seconds": [1.0]}, "seconds has 1 values; expected"),
        ("probe", {"peers": [1]}, "peers has 1 values; expected"),
        ("probe", {"ranks": [0, 1], "peers": [1, 1], **SHARED}, "rank 1 is its own peer; expected another rank"),
        ("probe", {"ranks": [0, 1], "peers": [1, 99], **SHARED}, "rank 99 is named, but gang 0 has"),
        ("pair", {"busbw_gbps": 0.0}, "Expected `float` > 0.0"),
        ("pair", {"ranks": [[0, 4], [1, 5]], "busbw_gbps": [1.0, 0.0]}, "Expected `float` > 0.0"),
        ("pair", {"ranks": [[0, 4], [1, 5]], "busbw_gbps": [1.0]}, "busbw_gbps has 1 values; expected 2"),
        ("pair", {"message_bytes": 10**400}, "Expected `int` <="),
        ("pair", {"ranks": [[0, 1], [1, 2]], "busbw_gbps": 1.0}, "expected each rank once"),
        ("pair", {"message_bytes": 6}, "messages of 6 bytes"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(folder: Path, kind: str, changes: Line, found: str) -> None:
    _, lines = recorded(folder, NODES)
    *_, last = of_kind(lines, kind)
    with pytest.raises(ValueError) as raised:
        read(lines, last | changes)
    assert found in str(raised.value)


def test_what_a_session_measures_again_is_set_aside_as_it_was_written(folder: Path, tmp_path: Path) -> None:
    """Lines with several turns stand before those of training."""
    evidence, lines = recorded(folder, NODES)
    run = RunDirectory(Path(shutil.copytree(folder / NODES, tmp_path / "run")))
    again = evidence.plan.studies[-1].id
    written = run.measurements_jsonl.read_bytes().splitlines()
    Resumption(run, evidence.plan, {again: "interrupted"}).set_aside()
    kept = run.measurements_jsonl.read_bytes().splitlines()
    aside = run.superseded_jsonl.read_bytes().splitlines()
    assert sorted([*kept, *(one for one in aside if b'"kind"' in one)]) == sorted(written)
    assert {json.loads(one).get("study") for one in kept if b'"kind":"block"' in one} == {
        line["study"] for line in of_kind(lines, "block")
    } - {again}


@rows(("changes", "found"), [({"arm": "x"}, "has x of"), ({"steps": 0}, "is not a record")])
def test_lines_of_several_turns_do_not_shift_those_behind_them(folder: Path, changes: Line, found: str) -> None:
    _, lines = recorded(folder, NODES)
    (measured,) = (folder / NODES).rglob("measurements.jsonl")
    before, number = measured.read_text(), max(i for i, line in enumerate(lines) if line["kind"] == "block")
    changed = [*lines[:number], lines[number] | changes, *lines[number + 1 :]]
    try:
        measured.write_text("".join(json.dumps(line) + "\n" for line in changed))
        with pytest.raises(RunDirectoryError, match=f"line {number + 1} {found}"):
            read_evidence(RunDirectory(measured.parent))
    finally:
        measured.write_text(before)
