"""Telemetry counts where its block was measured; what cannot have been watched is refused, with the line."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpscale.errors import RunDirectoryError
from pytest_ddpscale.evidence.evidence import Evidence, read_evidence
from pytest_ddpscale.plan.probe import Probe, ProbeStudy
from pytest_ddpscale.results.probe_record import ProbeMeasurement
from pytest_ddpscale.results.records import Measurement, StudyEnd
from pytest_ddpscale.results.run_directory import RunDirectory
from pytest_ddpscale.results.run_record import start_run
from pytest_ddpscale.results.telemetry_record import Telemetry
from tests.verdict.probed import measure_probe, steady
from tests.verdict.sample import make_case, measure, plan_of

Change = Callable[[list[dict[str, Any]]], list[dict[str, Any]]]
PROBE = Probe("all-reduce-32mib", 2)
PLAN = replace(plan_of([make_case("weak_scaling_efficiency", 0.5)]), probes=ProbeStudy((PROBE,), 16, 0.5))
(STUDY,) = PLAN.studies
ROUNDS = 5


def watched(one: Measurement | ProbeMeasurement) -> Telemetry:
    arm, seconds = (PROBE.id, one.seconds) if isinstance(one, ProbeMeasurement) else (one.arm, one.block_s)
    start_s = one.started_unix_s
    return Telemetry(
        one.study, arm, one.round, one.rank, one.local_rank, one.host, one.device, start_s, start_s + seconds
    )


def blocks() -> list[Measurement | ProbeMeasurement]:
    """All of one host."""
    trained = [replace(one, host="n0", local_rank=one.rank) for one in measure(STUDY, ROUNDS)]
    return [*measure_probe(PLAN, PROBE, steady(100.0), ROUNDS), *trained]


def read(
    path: Path, change: Change = list, *, reason: str = "decided", without: Callable[[Any], bool] = lambda one: False
) -> Evidence:
    """The evidence of a run whose studies ended so, without the records of some blocks, after a change to telemetry."""
    run = RunDirectory.create(path / "run")
    start_run(run, PLAN.sku, (), path, "ab" * 32)
    run.write_json(run.plan_json, PLAN.as_json())
    run.append_records(
        [{"kind": "startup", "rank": r, "local_rank": r, "host": "n0", "device": f"GPU-{r}"} for r in (0, 1)]
    )
    run.append_records([one.as_json() for one in blocks() if not without(one)])
    run.append_records([StudyEnd(study, reason).as_json() for study in PLAN.study_ids])
    run.append_telemetry(change([json.loads(json.dumps(watched(one).as_json())) for one in blocks()]))
    return read_evidence(run)


def test_what_was_measured_was_watched(tmp_path: Path) -> None:
    assert read(tmp_path).telemetry == [watched(one) for one in blocks()]


def test_identical_lines_count_once(tmp_path: Path) -> None:
    assert read(tmp_path, lambda lines: [*lines, *lines[::-1]]).telemetry == [watched(one) for one in blocks()]


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"study": "weak/other"}, "telemetry of weak/other, {arm}, round 4, rank 1, which was not measured"),
        ({"arm": "ddp@64"}, "ddp@64, round 4, rank 1, which was not measured"),
        ({"round": 99}, "round 99, rank 1, which was not measured"),
        ({"rank": 7, "local_rank": 7}, "rank 7, which was not measured"),
        ({"started_unix_s": 1.0}, "rank 1, which was not measured"),
        ({"host": "n9"}, "on GPU-1 of n9, but it was measured as local rank 1 of n0, on GPU-1"),
        ({"device": "GPU-x"}, "on GPU-x of n0, but it was measured as local rank 1 of n0, on GPU-1"),
        ({"local_rank": 0}, "on GPU-1 of n0, but it was measured as local rank 1 of n0, on GPU-1"),
        ({"polls": 77}, "of which an earlier line says something else"),
    ],
)
def test_of_anything_else_is_refused(tmp_path: Path, changes: dict[str, Any], found: str) -> None:
    lines = len(blocks())
    with pytest.raises(RunDirectoryError) as refused:
        read(tmp_path, lambda told: [*told, told[-1] | changes])
    assert f"telemetry.jsonl: line {lines + 1} is telemetry of" in str(refused.value)
    assert found.format(arm=blocks()[-1].arm) in str(refused.value)  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", [Measurement, ProbeMeasurement])
def test_of_a_block_that_a_kill_kept_from_being_written_is_left_out(tmp_path: Path, kind: type) -> None:
    """It is written first; maybe some of the block's ranks were written as well."""

    def lost(one: Measurement | ProbeMeasurement) -> bool:
        return isinstance(one, kind) and one.round == ROUNDS - 1 and one.rank == 1

    told = read(tmp_path, reason="error", without=lost).telemetry
    assert told == [watched(one) for one in blocks() if not lost(one)]
    assert len(told) < len(blocks())
    with pytest.raises(RunDirectoryError, match="which was not measured"):
        read(tmp_path / "ended", without=lost)


def test_of_an_arm_that_nobody_planned_is_refused_of_a_study_that_broke_too(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match=r"weak/r, x, .* which was not measured"):
        read(tmp_path, lambda told: [*told, told[-1] | {"arm": "x"}], reason="error")
