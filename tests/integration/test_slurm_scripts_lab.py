"""The scripts of slurm/, executed against a real Slurm."""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpscale.history.store import reading, skus_and_hosts
from pytest_ddpscale.run.evidence import read_evidence
from pytest_ddpscale.run.records import gangs_by_number
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.survey_record import surveys_of
from tests.builders.culprits import gpu, node
from tests.builders.measurements import measurements_in
from tests.forks.agent import site_of_agents
from tests.integration.lab_runs import CHECKED, THRESHOLDS, drain_failed
from tests.integration.sites import HARDLY_WARM_UP
from tests.listening import addresses_listened_on
from tests.report.judged import failed, write_judged_run
from tests.slurm_lab.fixtures import require_lab
from tests.slurm_lab.lab import SlurmLab
from tests.slurm_lab.polling import wait_until
from tests.slurm_scripts.stage import SLURM

pytestmark = pytest.mark.lab

ENVIRON = {"DDPSCALE_VENV": sys.prefix, "DDPSCALE_SKU": "cpu", "OMP_NUM_THREADS": "1"}
SETTLED_S = 120
RUN_S = 240
QUICK = f"--ddp-rounds=8 --ddp-block=0.2s --ddp-gpus-per-node=1 -p no:cacheprovider {' '.join(HARDLY_WARM_UP)}"
# A bound that no machine keeps: each node is rejected, and nobody but the node is there to blame.
IMPOSSIBLE = THRESHOLDS.replace("bound: 0.001", "bound: 1000")
# What such a node passes all the same.
NODE_HEALTH = {f"node_check[{name}]" for name in ("gpus", "versions", "disk")}
NODE_HEALTH |= {"memory_bandwidth_gbps[memory-copy]"}


def scrontab_commands() -> list[list[str]]:
    """What the example has Slurm run every night; Debian's packages have no scrontab to enter it with."""
    lines = (SLURM / "scrontab.example").read_text(encoding="utf-8").splitlines()
    return [line.split()[5:] for line in lines if re.match(r"\d+ \d+ \* \* \* ", line)]


def asked_every_night() -> str:
    """What a nightly check asks for by default."""
    [default] = re.findall(r"DDPSCALE_NIGHTLY_ARGS:=(.*?)}", (SLURM / "nightly_health.sbatch").read_text("utf-8"))
    return str(default)


def wait_for_states(lab: SlurmLab, **states: str) -> None:
    """Wait until these nodes are in these states."""
    wait_until(
        lambda: states.items() <= lab.node_states().items(), SETTLED_S, f"{states}", seen=lambda: f"{lab.node_states()}"
    )


def tasks(lab: SlurmLab, array: int) -> dict[str, str]:
    """Node → state of the task that was given it."""
    return {task["ReqNodeList"]: task["JobState"] for task in lab.job(array)}


def test_nodes_are_drained_and_resumed_and_those_of_others_left_alone(lab: SlurmLab, tmp_path: Path) -> None:
    lab.drain("n3", "bad fan")
    verdicts = [failed(gpu("n1"), node("n3"), node("elsewhere")), failed(node("n2"), severity="warn")]
    rejected = write_judged_run(tmp_path / "rejected", "rejected", ["n1", "n2", "n3"], verdicts)

    assert "would drain n1: ddpscale: GPU 3" in drain_failed(lab, rejected)
    assert lab.node_states()["n1"] == "idle"

    told = drain_failed(lab, "--apply", rejected)
    assert "leave n3: it is drained (bad fan)" in told
    assert "inspect n2: node n2" in told
    assert "skip elsewhere: Slurm has no such node" in told
    wait_for_states(lab, n1="drained", n2="idle", n3="drained")
    reason = lab.drain_reason("n1")
    assert reason is not None
    assert reason.startswith("ddpscale: GPU 3 (GPU-00000003...) on n1: 1.31x the median of 15 peers")
    assert lab.drain_reason("n3") == "bad fan"
    assert "leave n1: it is drained" in drain_failed(lab, "--apply", rejected)

    now = int(time.time())
    earlier = write_judged_run(tmp_path / "earlier", "accepted", ["n1", "n3"], started_unix_s=now - 3600)
    partial = write_judged_run(tmp_path / "partial", "partial", ["n1", "n3"], started_unix_s=now + 3600)
    assert "began before it was drained" in drain_failed(lab, "--apply", "--resume", earlier)
    drain_failed(lab, "--apply", "--resume", partial)
    assert lab.node_states()["n1"] == "drained"

    accepted = write_judged_run(tmp_path / "accepted", "accepted", ["n1", "n3"], started_unix_s=now + 3600)
    assert "would resume n1" in drain_failed(lab, "--resume", accepted)
    assert "leave n3: ddpscale did not drain it (bad fan)" in drain_failed(lab, "--apply", "--resume", accepted)
    wait_for_states(lab, n1="idle", n3="drained")


def edited(script: str, settings: dict[str, str], into: Path) -> Path:
    """A site's copy of a script: its settings changed in the file."""
    text = (SLURM / script).read_text(encoding="utf-8")
    for name, value in settings.items():
        text, found = re.subn(rf'^: "\$\{{{name}:=.*?\}}"', f': "${{{name}:={value}}}"', text, flags=re.MULTILINE)
        assert found == 1, name
    into.write_text(text, encoding="utf-8")
    into.chmod(0o755)
    return into


def wait_for_next_look(lock: Path) -> None:
    """Wait until the health check takes its lock again."""
    before_ns = lock.stat().st_mtime_ns
    wait_until(lambda: lock.stat().st_mtime_ns > before_ns, SETTLED_S, "the next health check")


@pytest.mark.lab
def test_slurmd_runs_the_health_check_which_drains_its_own_node_once(tmp_path: Path) -> None:
    require_lab()
    state, directory = tmp_path / "state", tmp_path / "lab"
    settings = {
        "DDPSCALE_VENV": sys.prefix,
        "DDPSCALE_SCRIPTS": str(SLURM),
        "DDPSCALE_RUNS": str(tmp_path / "runs"),
        "DDPSCALE_HEALTH_STATE": f"{state}-$SLURMD_NODENAME",  # the lab's nodes share this machine's disk
        "SLURM_CONF": str(directory / "slurm.conf"),
    }
    check = edited("health_check.sh", settings, tmp_path / "health_check.sh")
    # Every 3 s: more often, and slurmctld never comes to ask whether a resumed node answers.
    program = [f"HealthCheckProgram={check}", "HealthCheckInterval=3", "HealthCheckNodeState=ANY"]
    with SlurmLab(directory, nodes=2, slurm_conf=program) as lab:
        write_judged_run(tmp_path / "runs" / "nightly" / "2026-01-31" / "n2", "rejected", ["n2"], [failed()])
        wait_for_states(lab, n1="idle", n2="drained")
        assert str(lab.drain_reason("n2")).startswith("ddpscale: weak_scaling_efficiency")

        lab.resume("n2")
        wait_for_states(lab, n2="idle")
        for _ in range(2):  # the first may have begun before
            wait_for_next_look(tmp_path / "state-n2" / "lock")
        wait_for_states(lab, n1="idle", n2="idle")


def test_each_idle_node_is_checked_by_itself_and_busy_ones_are_not_waited_for(lab: SlurmLab, tmp_path: Path) -> None:
    for name in ("n4", "n5", "n6"):
        lab.drain(name, "not tonight")
    busy = lab.submit("sleep 600", "--exclusive", "--nodelist=n3")
    lab.wait_for_state(busy, "RUNNING")
    (tmp_path / "thresholds.yaml").write_text(IMPOSSIBLE, encoding="utf-8")
    settings = ENVIRON | {
        "DDPSCALE_NIGHTLY_ARGS": f"{asked_every_night()} {QUICK}",
        "DDPSCALE_NIGHTLY_GPUS": "1",
        "DDPSCALE_NIGHTLY_TIME_MIN": "5",
        "PYTHONPATH": str(site_of_agents(tmp_path / "site", surveys=True)),
    }
    (tmp_path / "slurm").symlink_to(SLURM)
    (submitter,), drainer = scrontab_commands()
    told = lab.run([submitter, "--dry-run"], cwd=tmp_path, environ=settings).stdout
    assert told.startswith("ddpscale: checking 2 idle nodes of partition main")
    assert told.endswith(": n1 n2\n")

    checking = int(lab.run([submitter], cwd=tmp_path, environ=settings).stdout.split()[-1])

    # n3 was idle when this submitter looked, and was taken before its check could start.
    outdated = tmp_path / "bin" / "sinfo"
    outdated.parent.mkdir()
    outdated.write_text('#!/bin/sh\n[ "$2" = --Node ] && echo n3 idle || echo "main*"\n', encoding="utf-8")
    outdated.chmod(0o755)
    late = settings | {"PATH": f"{outdated.parent}:{lab.environ['PATH']}", "DDPSCALE_NIGHTLY_WAIT_S": "1"}
    dropped = int(lab.run([submitter], cwd=tmp_path, environ=late).stdout.split()[-1])

    lab.wait_for_job(dropped, RUN_S)
    assert tasks(lab, dropped) == {"n3": "DEADLINE"}
    lab.wait_for_job(checking, RUN_S)
    assert tasks(lab, checking) == {"n1": "FAILED", "n2": "FAILED"}  # pytest's exit code: they were rejected
    assert lab.job_state(busy) == "RUNNING"

    [night] = (tmp_path / "ddpscale-runs" / "nightly").iterdir()
    for name in ("n1", "n2"):
        log = (night / f"{name}.log").read_text(encoding="utf-8")
        assert "REJECTED" in log
        assert read_evidence(RunDirectory(night / name)).hosts == [name]
        verdicts = json.loads((night / name / "verdicts.json").read_text())["verdicts"]
        assert [verdict["id"] for verdict in verdicts if verdict["outcome"] == "failed"] == [
            "matmul_tflops[matmul-fp32]"
        ], log
        assert {verdict["id"] for verdict in verdicts if verdict["outcome"] == "passed"} == NODE_HEALTH, log
    assert not (night / "n3").exists()
    with reading(tmp_path / "ddpscale-runs" / "history.sqlite") as history:
        assert skus_and_hosts(history) == [("cpu", "n1"), ("cpu", "n2")]

    again = lab.run([submitter], cwd=tmp_path, environ=settings).stdout
    assert "no idle node that was not checked tonight" in again
    assert "2 runs" in lab.run(drainer, cwd=tmp_path, environ=ENVIRON).stdout
    wait_for_states(lab, n1="drained", n2="drained", n3="allocated")
    assert lab.drain_reason("n4") == "not tonight"


def assert_listening_on_the_cable(lab: SlurmLab, hosts: list[str]) -> None:
    """Ranks listen on their node's address in the lab's network, and else at most on loopback."""
    expected = {host: {lab.node(host).address} for host in hosts}

    def found() -> dict[str, set[str]]:
        # srun, in the job on the first node, is Slurm's own, and knows who connects.
        pids = {host: [one.pid for one in lab.node(host).processes() if one.name() != "srun"] for host in hosts}
        return {host: addresses_listened_on(pids[host]) - {"127.0.0.1"} for host in hosts}

    wait_until(lambda: all(found().values()), SETTLED_S, "ranks to listen")
    assert found() == expected


def assert_both_nodes_were_measured_and_nobody_is_accused(run: RunDirectory, judgement: dict[str, Any]) -> None:
    records, names = run.read_records(), ["n1", "n2"]
    # The requirement on one rank was measured on all nodes at once, in the same rounds.
    alone = {(one.host, one.round) for one in measurements_in(run) if one.arm == "alone"}
    assert {host for host, _ in alone} == set(names)
    assert len({number for host, number in alone if host == "n2"}) >= 5
    assert list(surveys_of(records)) == names
    hosts = {tuple(gang.hosts) for gang in gangs_by_number(records).values()}
    assert hosts == {tuple(names)}, "ranks come in Slurm's order"
    assert [one["culprits"] for one in judgement["verdicts"] if one["culprits"]] == []
    coverage = judgement["coverage"]
    assert [path[:2] for path in coverage["paths"]] == [[0, 1]]
    assert coverage["over_all_nodes"] == ["weak_scaling_efficiency[tiny-2nodes]"]
    assert [node["tested_by"] for node in coverage["nodes"]] == [["survey", "training", "pairs"]] * 2


def test_an_acceptance_that_is_preempted_goes_on_in_its_run_to_the_end(lab: SlurmLab, tmp_path: Path) -> None:
    thresholds = tmp_path / "thresholds.yaml"  # with a bound that no neighbour on these cores can break
    thresholds.write_text(CHECKED.replace("bound: 0.3", "bound: 0.01").replace("3 nodes", "2 nodes"))
    settings = ENVIRON | {
        "DDPSCALE_THRESHOLDS": str(thresholds),
        "DDPSCALE_ARGS": QUICK,
    }
    job = lab.submit(SLURM / "acceptance.sbatch", "--nodelist=n1,n2", "--nodes=2", cwd=tmp_path, environ=settings)
    run = RunDirectory(tmp_path / "ddpscale-runs" / f"job-{job}")
    wait_until(lambda: bool(gangs_by_number(run.read_records())), RUN_S, "ranks", seen=lambda: lab.job_output(job))
    assert_listening_on_the_cable(lab, ["n1", "n2"])
    wait_until(lambda: bool(measurements_in(run)), RUN_S, "a measurement", seen=lambda: lab.job_output(job))
    lab.submit("true", "--partition=urgent", "--nodes=6")
    assert lab.wait_for_job(job, RUN_S) == "COMPLETED", lab.job_output(job)
    told = lab.job_output(job)
    assert f"continues ddpscale-runs/job-{job}" in told
    record = run.read_run()
    assert [list(one.measured_anew) for one in record.resumed] == [["weak/tiny", "pairs"]], told
    assert (run.path / "superseded.jsonl").read_text(encoding="utf-8").count('"kind":"timed"') > 0, "nothing is lost"
    judgement = json.loads(run.verdicts_json.read_text(encoding="utf-8"))
    assert judgement["outcome"] == "accepted", told
    assert {verdict["world_size"] for verdict in judgement["verdicts"]} == {1, 2}
    assert read_evidence(run).hosts == ["n1", "n2"]
    assert_both_nodes_were_measured_and_nobody_is_accused(run, judgement)
    assert lab.processes() == []
    assert (run.path / "report.md").exists()
