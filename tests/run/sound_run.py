"""A run on two nodes of two GPUs in which all is well, and what becomes of it after a change of its lines."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache, reduce
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

import pytest

from pytest_ddpscale.errors import RunDirectoryError
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.run.evidence import Evidence, read_evidence
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.simulate.cluster import SimulatedCluster
from pytest_ddpscale.simulate.measuring import SimulatedRun
from pytest_ddpscale.simulate.writing import write_simulated_run
from tests.builders.clusters import a100
from tests.builders.json_types import as_json, run_record

Lines = list[Any]
Change = Callable[[Lines], Lines]
GPUS, PER_NODE, ROUNDS = 4, 2, FEWEST_ROUNDS + 2


@cache
def plan_of(gpus: int) -> Plan:
    """For so many GPUs, two on a node."""
    return _cluster(gpus).plan(rounds=ROUNDS)


def _cluster(gpus: int) -> SimulatedCluster:
    return a100(gpus, gpus_per_node=gpus if gpus % 2 else PER_NODE)


PLAN = plan_of(GPUS)
(STUDY,) = PLAN.studies
ARMS = [arm.name for arm in STUDY.arms]


@cache
def _written(gpus: int) -> str:
    with TemporaryDirectory() as folder:
        run, cluster = RunDirectory.create(Path(folder) / "run"), _cluster(gpus)
        write_simulated_run(run, cluster, SimulatedRun(plan_of(gpus), cluster.performance, (), 1))
        return run.measurements_jsonl.read_text("utf-8").replace("SIM-", "GPU-").replace("simulated-", "n")


def lines_of(gpus: int) -> Lines:
    """All that rank 0 writes of so many GPUs."""
    return [json.loads(line) for line in _written(gpus).splitlines()[1:]]


def write(
    folder: Path, change: Change = list, plan: Plan = PLAN, *, is_watched: bool = True, **run_json: Any
) -> RunDirectory:
    """The run after a change to its measurements."""
    folder.mkdir(exist_ok=True)
    run = RunDirectory.create(Path(mkdtemp(dir=folder)) / "run")
    run.write_json(run.run_json, as_json(run_record(sku=plan.sku)) | run_json)
    run.write_json(run.plan_json, plan)
    said = [line for line in change(lines_of(plan.world_size)) if is_watched or not is_line(line, "telemetry")]
    run.measurements_jsonl.write_text("".join(json.dumps(line) + "\n" for line in said), encoding="utf-8")
    return run


def read(folder: Path, change: Change = list, plan: Plan = PLAN, **of_run: Any) -> Evidence:
    """The evidence of the run after a change."""
    return read_evidence(write(folder, change, plan, **of_run))


def refusal(folder: Path, change: Change = list, plan: Plan = PLAN, **of_run: Any) -> str:
    """What is said of it; a test fails if nothing is."""
    with pytest.raises(RunDirectoryError) as raised:
        read(folder, change, plan, **of_run)
    return str(raised.value)


def is_line(line: Any, words: str) -> bool:
    """Whether a line is of that kind, study, arm, round and turn: ``timed ddp@2 0 turn-0``, or some of these."""
    said = {str(line.get(name)) for name in ("kind", "study", "arm", "round")}
    return {*words.split()} <= {*said, f"turn-{line.get('turn', 0)}"}


def changed(words: str, **changes: Any) -> Change:
    """Changes the first such line."""
    return _at_first(words, lambda lines, at: [*lines[:at], lines[at] | changes, *lines[at + 1 :]])


def again(words: str, **changes: Any) -> Change:
    """Adds the first such line once more, changed."""
    return _at_first(words, lambda lines, at: [*lines, lines[at] | changes])


def without(words: str) -> Change:
    """Drops the first such line."""
    return _at_first(words, lambda lines, at: [*lines[:at], *lines[at + 1 :]])


def _at_first(words: str, change: Callable[[Lines, int], Lines]) -> Change:
    return lambda lines: change(lines, next(at for at, line in enumerate(lines) if is_line(line, words)))


def more(*added: Any) -> Change:
    """Adds lines after that of the gang."""
    return _at_first("gang", lambda lines, at: [*lines[: at + 1], *added, *lines[at + 1 :]])


def unable(study: str, arm: str, *ranks: int) -> Change:
    """Says that ranks cannot do an arm."""
    return more({"kind": "unsupported", "study": study, "arm": arm, "gang": 0, "ranks": ranks, "reasons": "too old"})


def after(*changes: Change) -> Change:
    """All these changes, one after the other."""
    return lambda lines: reduce(lambda changed, change: change(changed), changes, lines)


def absent(words: str, *ranks: int) -> Change:
    """Leaves ranks out of the columns of all such lines, which have no series."""

    def cut(line: Any) -> Any:
        told = [one["rank"] if isinstance(one, dict) else one for one in line["ranks"]]

        def kept(said: Any) -> Any:
            if isinstance(said, dict):
                return {name: kept(value) for name, value in said.items()}
            return (
                [one for one, rank in zip(said, told, strict=True) if rank not in ranks]
                if isinstance(said, list)
                else said
            )

        return kept(line)

    return lambda lines: [cut(line) if is_line(line, words) else line for line in lines]
