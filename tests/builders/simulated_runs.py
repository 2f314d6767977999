"""Simulated runs on disk, judged as a session judges them."""

from __future__ import annotations

import json
from pathlib import Path

from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.verdicts import Judgement
from pytest_ddpscale.session.evidence import find_source
from pytest_ddpscale.session.open import Site
from pytest_ddpscale.session.session import AcceptanceSession
from pytest_ddpscale.settings import settings_from
from pytest_ddpscale.simulate.cluster import SimulatedCluster
from pytest_ddpscale.simulate.measuring import SimulatedRun
from pytest_ddpscale.simulate.writing import write_simulated_run
from tests.builders.clusters import a100, faults

# What the simulator writes of a machine, and what stands there of a real one: only those are accepted.
AS_IF_MEASURED = {"SIM-": "GPU-0000000", "simulated-": "node", "simulated a100-sxm4-80gb": "NVIDIA A100-SXM4-80GB"}


def judged_run(
    folder: Path,
    *texts: str,
    gpus: int = 8,
    rounds: int = 8,
    cluster: SimulatedCluster | None = None,
    again: tuple[str, ...] = (),
    studies: int | None = None,
) -> tuple[RunDirectory, Judgement]:
    """A run of a cluster with these faults, all that its GPUs can be judged by; by default of A100s.

    With `again`, the command that repeats it, it looks like a measured run; with `studies` like one that was
    interrupted in the study of that number.
    """
    cluster = cluster or a100(gpus)
    plan = cluster.plan(rounds=rounds, short_blocks=True)
    run = RunDirectory.create(folder / "run")
    simulated = SimulatedRun(plan, cluster.performance, faults(*texts, gpus=gpus), seed=1)
    write_simulated_run(run, cluster, simulated, ["pytest"])
    if again:
        _as_if_measured(run, again, studies)
    options = {"ddp_judge": str(run.path), "thresholds": str(cluster.thresholds.path)}
    session = AcceptanceSession(find_source(Site(settings_from(options, {}, {}), Path(), Path())))
    measured = {case.id for case in cluster.cases}
    session.source.select([case for case in session.source.cases if case.id in measured])
    return run, session.conclude(interrupted=False, spoiled=())


def _as_if_measured(run: RunDirectory, again: tuple[str, ...], studies: int | None) -> None:
    record = json.loads(run.run_json.read_text(encoding="utf-8"))
    record |= {"simulated": False, "again": again, "status": "finished" if studies is None else "interrupted"}
    texts = {run.run_json: json.dumps({key: record[key] for key in record if key not in ("simulation", "notes")})}
    lines = run.measurements_jsonl.read_text(encoding="utf-8").splitlines(keepends=True)
    ends = [number for number, line in enumerate(lines) if json.loads(line)["kind"] == "study_end"]
    if studies is not None:
        last = ends[studies - 1]
        lines = [*lines[:last], lines[last].replace('"rounds"', '"interrupted"')]
    texts[run.measurements_jsonl] = "".join(lines)
    for file, text in texts.items():
        for of_simulated, of_measured in AS_IF_MEASURED.items():
            text = text.replace(of_simulated, of_measured)
        file.write_text(text, encoding="utf-8")
