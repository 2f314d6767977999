"""What a session cost is counted from rank 0's blocks, and compared per timed second."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_ddpscale.results.run_directory import RunDirectory
from tests.benchmarks.scripts import benchmark
from tests.builders.json_types import run_record
from tests.builders.measurements import Measurement
from tests.builders.records import blocks_of, gang_on

gang_reuse = benchmark("gang_reuse")

STUDY = "weak/r"


def _measurement(rank: int, block_s: float, steps: int = 10) -> Measurement:
    return Measurement(STUDY, "ddp@2", 0, rank, rank, "host", "cpu", 16, steps, block_s, started_unix_s=0.0)


def _session(path: Path, **changes: Any) -> RunDirectory:
    run = RunDirectory.create(path)
    run.write_json(run.run_json, run_record(argv=["pytest"], **changes))
    return run


def test_only_rank_0_counts() -> None:
    further = _measurement(0, 3.0)
    blocks = [*blocks_of([_measurement(0, 2.0), _measurement(1, 2.1)]), *blocks_of([further])]
    cost = gang_reuse.cost_of(blocks, 1, 10.0)
    assert (cost.timed_s, cost.timed_steps, cost.session_yield) == (5.0, 20, 0.5)


def test_costs_add_up() -> None:
    cost = gang_reuse.Cost
    assert cost(1, 10.0, 4.0, 7) + cost(2, 20.0, 1.0, 3) == cost(3, 30.0, 5.0, 10)


def test_the_ratio_does_not_reward_timing_less() -> None:
    gang, fresh = gang_reuse.Cost(1, 20.0, 10.0, 100), gang_reuse.Cost(10, 60.0, 10.0, 100)
    half_as_much = gang_reuse.Cost(10, 30.0, 5.0, 50)
    assert gang_reuse.wall_ratio(gang, fresh) == gang_reuse.wall_ratio(gang, half_as_much) == 3.0


def test_fresh_launches_time_and_warm_up_as_much_as_one_gang() -> None:
    whole = gang_reuse.whole_study(rounds=3, block_s=2.0, warmup_s=5.0)
    parts = list(gang_reuse.single_blocks(whole))
    assert [part.arms for part in parts] == [(arm,) for arm in whole.arms] * 3
    assert {(part.rounds, part.block_s, part.warmup_s, part.workload) for part in parts} == {
        (1, 2.0, 2.5, whole.workload)
    }
    assert [part.world_size for part in parts] == [1, 2] * 3


def test_yield_of_a_finished_session(tmp_path: Path) -> None:
    run = _session(tmp_path, finished_at="2026-01-31T12:01:40+00:00")
    for number, pid in enumerate((11, 12)):
        run.append_record(gang_on(["n1"], 2, number=number, pids=(pid, pid + 100)))
        run.append_records(blocks_of([_measurement(0, 40.0), _measurement(1, 41.0)], number))
    cost = gang_reuse.session_cost(run)
    assert (cost.launches, cost.wall_s, cost.session_yield) == (2, 100.0, 0.8)


def test_a_session_that_did_not_finish_has_no_yield(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no finished_at"):
        gang_reuse.session_cost(_session(tmp_path))


def test_a_session_without_a_measurement_has_no_yield(tmp_path: Path) -> None:
    run = _session(tmp_path, finished_at="2026-01-31T12:01:40+00:00")
    with pytest.raises(SystemExit, match="holds no measurement"):
        gang_reuse.session_cost(run)
