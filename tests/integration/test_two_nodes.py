"""Two torchruns on this machine that call themselves two nodes: what a gang of several nodes measures."""

from __future__ import annotations

import os
import socket
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

from pytest_ddpscale import __version__
from pytest_ddpscale.launch.environment import worker_environment
from pytest_ddpscale.node.torchrun_command import torchrun_command
from pytest_ddpscale.plan.study import Arm, Plan, Study
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.results.records import Measurement
from pytest_ddpscale.results.run_directory import RunDirectory

pytestmark = pytest.mark.slow

TINY = Workload("tiny", "shufflenet_v2_x0_5", "fp32", 2, 32, "contiguous", num_classes=10)
ARMS = (Arm("alone", 1, 2), Arm("ddp", 2, 2), Arm("ddp", 4, 2), Arm("ddp", 2, 2, "spread"), Arm("each", 4, 2))
STUDY = Study("weak", TINY, ARMS, rounds=2, block_s=0.05, warmup_s=0.05, turns=2)
HOSTS = {0: "n0", 1: "n0", 2: "n1", 3: "n1"}
LIMIT_S = 300


def measure(tmp_path: Path, plan: Plan) -> tuple[RunDirectory, str]:
    """Have a plan measured; the run, and what the torchruns said if one of them failed."""
    nodes = plan.nodes
    run = RunDirectory.create(tmp_path / "run")
    run.write_json(run.plan_json, plan.as_json())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    worker = [f"--run-dir={run.path}", f"--studies={plan.studies[0].id}", f"--version={__version__}", "--timeout-s=120"]
    processes = []
    try:
        # Started in the wrong order: the first is the one with index 0.
        for index in reversed(range(nodes)):
            said = {"DDPSCALE_NODE_INDEX": str(index), "DDPSCALE_NODES": str(nodes), "DDPSCALE_HOST": f"n{index}"}
            said |= {"DDPSCALE_STORE": f"127.0.0.1:{port}", "GLOO_SOCKET_IFNAME": "lo"}
            environment = worker_environment(os.environ, "cpu") | said
            command = torchrun_command("two-nodes", 2, run.logs / f"n{index}", tmp_path / f"rendezvous-{index}", worker)
            with (tmp_path / f"node-{index}.log").open("wb") as log:
                processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT))
        codes = [process.wait(LIMIT_S) for process in processes]
    finally:
        for process in processes:
            process.terminate()
            process.wait(60)
    logs = "\n".join((tmp_path / f"node-{index}.log").read_text(errors="replace") for index in range(nodes))
    return run, logs if any(codes) else ""


def test_every_node_trains_what_fits_it_and_all_together_what_does_not(tmp_path: Path) -> None:
    plan = Plan("cpu", "cpu", (STUDY,), nodes=2, ranks_per_node=2)
    run, failure = measure(tmp_path, plan)
    assert not failure, failure
    measurements = run.read_measurements()
    for arm in ARMS:
        for number in range(STUDY.rounds):
            blocks = [m for m in measurements if (m.arm, m.round) == (arm.name, number)]
            assert sorted(m.rank for m in blocks) == list(plan.layout.ranks([arm], STUDY.turn(plan.seed, number)))
            assert_groups_agree(plan, arm, number, blocks)
    assert {m.rank: m.host for m in measurements} == HOSTS
    assert {m.rank: m.local_rank for m in measurements} == {0: 0, 1: 1, 2: 0, 3: 1}
    records = run.read_records()
    assert {r["rank"]: r["host"] for r in records if r["kind"] == "startup"} == HOSTS
    assert {r["rank"]: r["host"] for r in records if r["kind"] == "seeded_step"} == HOSTS
    assert len({r["checksum"] for r in records if r["kind"] == "seeded_step"}) == 1


def assert_groups_agree(plan: Plan, arm: Arm, number: int, blocks: list[Measurement]) -> None:
    """DDP keeps the replicas of a group the same; those of two groups train on different images."""
    if arm.kind != "ddp":
        return
    of_rank = {m.rank: m.parameters_checksum for m in blocks}
    checksums = defaultdict(set)
    for group in plan.layout.groups(arm, STUDY.turn(plan.seed, number)):
        checksums[group] = {of_rank[rank] for rank in group}
        assert len(checksums[group]) == 1, f"{arm.name}: {of_rank}"
    assert len(set.union(*checksums.values())) == len(checksums)
