"""What is no common ground for a site's numbers is refused, in a sentence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace as altered

from pytest_ddpscale.calibrate.trusted_runs import read_trusted_run, refuse_unlike_runs
from pytest_ddpscale.errors import BadInput
from pytest_ddpscale.history.past_run import PastRun
from pytest_ddpscale.run.records import StudyEnd
from tests.approved import assert_approved, masked
from tests.builders.nights import VERSIONS as RANKS_VERSIONS
from tests.builders.nights import at, conclude, judged_run
from tests.builders.trusted import VERSIONS, launch, nodes, written


def test_a_run_is_read_with_its_gpus_and_versions(tmp_path: Path) -> None:
    run = judged_run(tmp_path / "run", 0, {"n2": [100.0, 100.0], "n1": [100.0, 100.0]}, driver="580.65")
    found = read_trusted_run(run.path)
    assert found.gpus == {"n1": ("GPU-n1-0", "GPU-n1-1"), "n2": ("GPU-n2-0", "GPU-n2-1")}
    assert found.versions["n2"] == {"python": "3.11.2", "driver": "580.65", **RANKS_VERSIONS}
    assert (found.hosts, found.is_simulated) == (["n1", "n2"], False)


def said(use: Callable[[Any], object], of: Any) -> str:
    try:
        use(of)
    except BadInput as error:
        return str(error)
    return "taken"


def simulated(run: PastRun) -> PastRun:
    return replace(run, record=altered(run.record, simulated=True))


def test_what_is_no_ground_for_bounds_is_refused(tmp_path: Path) -> None:
    told = []
    changes: Sequence[dict[str, Any]] = (
        {"status": "interrupted"}, {"status": "running", "finished_at": None}, {"status": "imported"}, {},
    )  # fmt: skip
    for number, change in enumerate(changes):
        run = judged_run(tmp_path / str(number))
        run.write_json(run.run_json, altered(run.read_run(), **change))
        kept = [one for one in run.read_records() if change or not isinstance(one, StudyEnd)]  # a study without an end
        run.measurements_jsonl.unlink()
        run.append_records(kept)
        conclude(run, "accepted", at(0))
        told.append(said(read_trusted_run, run.path))
    run, cluster = written(tmp_path / "spoilt", nodes(2), 1), nodes(4)
    lines = run.measurements_jsonl.read_bytes()
    run.measurements_jsonl.write_bytes(lines.replace(b'"is_correct":true', b'"is_correct":7'))
    told.append(said(read_trusted_run, run.path))
    runs = first, second = [launch(number, cluster) for number in (1, 2)]
    host = first.hosts[0]
    three_gpus = replace(second.evidence, plan=replace(second.evidence.plan, ranks_per_node=1, nodes=8))
    other_torch, *other_drivers = (
        replace(one, versions={**one.versions, host: VERSIONS | changed})
        for one, changed in ((second, {"torch": "2.15.0"}), (first, {"driver": "570.1"}), (second, {"driver": "570.1"}))
    )
    of_runs: Sequence[Sequence[PastRun]] = (
        runs, [first, replace(second, versions={})],  # what nobody says is not compared
        [first, simulated(second)], [first, replace(second, digest=first.digest)],
        [first, replace(second, record=altered(second.record, sku="h100"))],
        [first, replace(second, evidence=three_gpus)], [first, other_torch], other_drivers,
        [replace(run, gpus={host: run.gpus[host]}) for run in runs],
    )  # fmt: skip
    told += [said(refuse_unlike_runs, of) for of in of_runs]
    rehearsals = [first, simulated(second)], [simulated(run) for run in runs]
    told += [said(partial(refuse_unlike_runs, simulated_too=True), of) for of in rehearsals]
    assert_approved("calibrate-refused.txt", masked("\n".join(told), tmp_path))
