"""Whole runs on the two nodes of a real Slurm: one node, then both, each size by a gang of its own."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from pytest_ddpscale.run.records import gangs_by_number
from pytest_ddpscale.run.run_directory import RunDirectory
from tests.slurm_lab.lab import SlurmLab

pytestmark = pytest.mark.lab

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
    assert [(one["run"], one["is_complete"]) for one in runs] == [("train/made-64@1", True), ("train/made-64@2", True)]
    assert all(abs(one["unexplained"]) < 0.2 for one in runs), runs
