"""Runs over nodes of a real Slurm: an odd node is named, or left out; whole runs of one node, then of two."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from pathlib import Path

import pytest

from pytest_ddpscale.run.records import gangs_by_number
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.survey_record import surveys_of
from tests.builders.measurements import measurements_in
from tests.integration.lab_runs import CHECKED, LabRun, accept, drain_failed
from tests.slurm_lab.lab import SlurmLab
from tests.slurm_lab.node import Node

pytestmark = pytest.mark.lab

# Two of three nodes are enough for all that is trained, at a bound that no neighbour on these cores can break.
FOR_TWO = CHECKED.replace("3 nodes", "2 nodes").replace("bound: 0.3", "bound: 0.01")
OTHER_VERSION = "2.0.1+other"


def install_another_torch(node: Node, folder: Path) -> None:
    """Have a node's torch call itself another version, as after an upgrade that one node missed."""
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    package = Path(spec.origin).parent
    version, compiled = folder / "version.py", folder / "compiled"
    version.write_text(f"{(package / 'version.py').read_text(encoding='utf-8')}__version__ = {OTHER_VERSION!r}\n")
    node.mount(version, package / "version.py")
    if (package / "__pycache__").is_dir():  # of its own, or it would compile this version for all nodes
        shutil.copytree(package / "__pycache__", compiled)
        node.mount(compiled, package / "__pycache__")


def outcomes(ran: LabRun) -> dict[str, str]:
    return {verdict["id"]: verdict["outcome"] for verdict in ran.judgement["verdicts"]}


def measured_hosts(ran: LabRun) -> set[str]:
    return {one.host for one in measurements_in(ran.run)}


def test_a_node_with_another_torch_is_named_and_left_out(lab: SlurmLab, tmp_path: Path) -> None:
    install_another_torch(lab.node("n3"), tmp_path)
    versions = "node_check[versions]"
    ran = accept(lab, tmp_path, 3, "--ddp-unfit=leave-out", "--ddp-rounds=8", "--ddp-block=0.05s", thresholds=FOR_TWO)
    assert ran.judgement["outcome"] == "rejected", ran.output
    assert [name for name, outcome in outcomes(ran).items() if outcome != "passed"] == [versions], ran.output
    assert ran.accused == {"n3"}, ran.output
    assert set(surveys_of(ran.run.read_records())) == {"n1", "n2", "n3"}
    assert measured_hosts(ran) == {"n1", "n2"}
    [(host, why)] = ran.run.read_run().left_out.items()
    assert (host, why.startswith(f"versions: torch {OTHER_VERSION}")) == ("n3", True), why
    assert "note: n3 was left out: versions: torch" in ran.output
    told = drain_failed(lab, ran.run.path)
    assert f"would drain n3: ddpscale: node n3: torch {OTHER_VERSION}; 2 of 3 nodes have " in told
    assert "n1" not in told
    assert lab.processes() == []


SUITE = (
    f"{sys.prefix}/bin/ddpscale suite whole-run --gpu-sku=cpu --ddp-launcher=slurm --ddp-gpus-per-node=1 "
    "--ddp-run-dir=run --model=shufflenet_v2_x0_5 --image-size=32 --made=64 --batch=8 --epochs=3"
)
RUN_S = 300


def test_whole_runs_of_one_and_two_nodes_are_complete_and_explained(lab: SlurmLab, tmp_path: Path) -> None:
    nodes = ("--nodelist=n1,n2", "--nodes=2")
    job = lab.submit(SUITE, *nodes, cwd=tmp_path, environ={"OMP_NUM_THREADS": "1"})
    assert lab.wait_for_job(job, RUN_S) == "COMPLETED", lab.job_output(job)
    assert lab.processes() == []
    run = RunDirectory(tmp_path / "run")
    gangs = gangs_by_number(run.read_records())
    assert [gang.hosts for gang in gangs.values()] == [["n1"], ["n1", "n2"]]
    runs = json.loads(run.suite_json.read_text(encoding="utf-8"))["tables"]["runs"]
    assert [(run["run"], run["is_complete"]) for run in runs] == [("train/made-64@1", True), ("train/made-64@2", True)]
    assert all(abs(run["unexplained"]) < 0.2 for run in runs), runs
