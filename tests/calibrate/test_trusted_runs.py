"""What is no common ground for a site's numbers is refused, in a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace as altered

from pytest_ddpscale.calibrate.trusted_runs import read_trusted_run, refuse_unlike_runs
from pytest_ddpscale.errors import BadInput
from pytest_ddpscale.history.past_run import PastRun
from pytest_ddpscale.run.records import StudyEnd
from tests.builders.nights import VERSIONS as RANKS_VERSIONS
from tests.builders.nights import at, conclude, judged_run
from tests.builders.trusted import VERSIONS, launch, nodes, written


@pytest.fixture(scope="module")
def runs() -> list[PastRun]:
    cluster = nodes(4)
    return [launch(number, cluster) for number in (1, 2)]


def test_a_run_is_read_with_its_gpus_and_versions(tmp_path: Path) -> None:
    run = judged_run(tmp_path / "run", 3, {"n2": [100.0, 100.0], "n1": [100.0, 100.0]}, driver="580.65")
    found = read_trusted_run(run.path)
    assert found.hosts == ["n1", "n2"]
    assert found.gpus["n1"] == ("GPU-n1-0", "GPU-n1-1")
    assert found.versions["n2"]["driver"] == "580.65"
    assert found.versions["n2"]["torch"] == RANKS_VERSIONS["torch"]
    assert (found.path, found.record.started_at, found.is_simulated) == (str(run.path), at(3), False)


def test_a_run_that_tells_too_little_is_refused(tmp_path: Path) -> None:
    changes: Sequence[tuple[dict[str, Any], str]] = (
        ({"status": "interrupted"}, "is interrupted; expected a finished run"),
        ({"status": "running", "finished_at": None}, "is running"),
        ({"status": "imported"}, "was imported: another tool measured it"),
        ({}, "did not complete weak/r"),  # without the end of its study
    )
    for number, (change, said) in enumerate(changes):
        run = judged_run(tmp_path / str(number))
        run.write_json(run.run_json, altered(run.read_run(), **change))
        kept = [one for one in run.read_records() if change or not isinstance(one, StudyEnd)]
        run.measurements_jsonl.unlink()
        run.append_records(kept)
        conclude(run, "accepted", at(0))
        with pytest.raises(BadInput, match=said):
            read_trusted_run(run.path)


def test_what_validation_refuses_is_refused(tmp_path: Path) -> None:
    run = written(tmp_path / "run", nodes(2), 1)
    lines = run.measurements_jsonl.read_bytes().splitlines(keepends=True)
    run.measurements_jsonl.write_bytes(b"".join(lines).replace(b'"is_correct":true', b'"is_correct":7'))
    with pytest.raises(BadInput):
        read_trusted_run(run.path)


def other_versions(run: PastRun, host: str, **changed: str) -> PastRun:
    return replace(run, versions={**run.versions, host: VERSIONS | changed})


def simulated(run: PastRun) -> PastRun:
    return replace(run, record=altered(run.record, simulated=True))


def test_what_is_unlike_is_refused(runs: list[PastRun]) -> None:
    first, second = runs
    host = first.hosts[0]
    three_gpus = replace(second.evidence, plan=replace(second.evidence.plan, ranks_per_node=1, nodes=8))
    for pair, said in (
        ([first, simulated(second)], "launch-2: was simulated: no machine was measured"),
        ([first, replace(second, digest=first.digest)], "launch-2: has the same measurements as launch-1"),
        ([first, replace(second, record=altered(second.record, sku="h100"))],
         "mixed: SKU h100 on launch-2; SKU rtx-pro-6000-server on launch-1"),
        ([first, replace(second, evidence=three_gpus)], "mixed: GPUs per node 1 on launch-2"),
        ([first, other_versions(second, host, torch="2.15.0")], f"torch 2.15.0 on {host}"),
        ([other_versions(one, host, driver="570.1") for one in runs], f"mixed: driver 570.1 on {host}; driver 580.1"),
        ([replace(one, gpus={host: one.gpus[host]}) for one in runs], "the runs have 1 node ("),
    ):  # fmt: skip
        with pytest.raises(BadInput) as refused:
            refuse_unlike_runs(pair)
        assert said in str(refused.value)
        assert "\n" not in str(refused.value)


def test_runs_of_one_kind_are_taken(runs: list[PastRun]) -> None:
    refuse_unlike_runs(runs)
    refuse_unlike_runs([runs[0], replace(runs[1], versions={})])  # what nobody says is not compared
    refuse_unlike_runs([simulated(run) for run in runs], simulated_too=True)
    with pytest.raises(BadInput, match="mixed: kind measured on launch-1; kind simulated on launch-2"):
        refuse_unlike_runs([runs[0], simulated(runs[1])], simulated_too=True)
