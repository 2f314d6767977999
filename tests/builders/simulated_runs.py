"""Simulated runs on disk, judged as a session judges them."""

from __future__ import annotations

from pathlib import Path

from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.verdicts import Judgement
from pytest_ddpscale.session.open import find_source
from pytest_ddpscale.session.session import AcceptanceSession
from pytest_ddpscale.session.sources import Site
from pytest_ddpscale.settings import settings_from
from pytest_ddpscale.simulate.measuring import SimulatedRun
from pytest_ddpscale.simulate.simulated_cluster import SimulatedCluster
from pytest_ddpscale.simulate.writing import write_simulated_run
from tests.builders.clusters import a100, faults


def judged_run(
    folder: Path, *texts: str, gpus: int = 8, rounds: int = 8, cluster: SimulatedCluster | None = None
) -> tuple[RunDirectory, Judgement]:
    """A run of a cluster with these faults, all that its GPUs can be judged by; by default of A100s."""
    cluster = cluster or a100(gpus)
    plan = cluster.plan(rounds=rounds, short_blocks=True)
    run = RunDirectory.create(folder / "run")
    simulated = SimulatedRun(plan, cluster.performance, faults(*texts, gpus=gpus), seed=1)
    write_simulated_run(run, cluster, simulated, ["pytest"])
    options = {"ddp_judge": str(run.path), "thresholds": str(cluster.thresholds.path)}
    session = AcceptanceSession(find_source(Site(settings_from(options, {}, {}), Path(), Path())))
    measured = {case.id for case in cluster.cases}
    session.source.select([case for case in session.source.cases if case.id in measured])
    return run, session.conclude(interrupted=False, spoiled=())
