"""Nodes, links and jobs of a real Slurm that fail while a run goes on: what was measured stays, and nobody is left."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from pytest_ddpscale.report.words.reasons import say
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.run_record import ends_of
from tests.builders.measurements import measurements_in
from tests.integration.lab_runs import DEADLINE_S, TRAINING, LabRun, pytest_command
from tests.slurm_lab.lab import SlurmLab
from tests.slurm_lab.polling import wait_until

# Two studies: one over all nodes, which fails with any of them, and one that each node measures by itself.
ON_SMALL = "      - {throughput_per_gpu: {1: 500}, of: small, published: lab, bound: 0.5, because: made up}\n"
# Undecided for as long as a fault takes to be noticed.
ENDLESS = ("--ddp-rounds=5000", "--ddp-confidence=0.9999", "--ddp-block=1s")
SHORT = "--ddp-block=0.2s"
# From a fault until no process is left: Slurm notices a dead node after 13 s here, agents let go after 30 s.
GONE_S = 60


def two_studies(folder: Path, nodes: int = 3) -> Path:
    path = folder / "thresholds.yaml"
    text = TRAINING.replace("3 nodes", f"{nodes} nodes")
    path.write_text(text + ON_SMALL, encoding="utf-8")
    return path


def measuring(run: RunDirectory, from_round: int = 1) -> bool:
    return run.measurements_jsonl.exists() and any(one.round >= from_round for one in measurements_in(run))


def wait_until_measuring(run: RunDirectory) -> None:
    wait_until(lambda: measuring(run), DEADLINE_S, "the second round")


def ends(run: RunDirectory) -> dict[str, tuple[str, str]]:
    return {study: (end.reason, say(end.message)) for study, end in ends_of(run.read_records()).items()}


def wait_until_nobody_is_left(lab: SlurmLab) -> None:
    wait_until(lambda: not lab.processes(), GONE_S, "no process", seen=lambda: f"{lab.processes()}")


@pytest.mark.lab
def test_a_node_is_lost_and_named_and_the_others_go_on(lab: SlurmLab, tmp_path: Path) -> None:
    """Its link goes down; for the rest it is the same when its slurmd dies, which is up to Slurm to notice."""
    run = RunDirectory(tmp_path / "run")
    # Undecided for twelve rounds, of which two are waited for. With 5,000 to come, as below, the second study would go
    # on for more than a hundred, until no trend within its noise could still reach the bound.
    command = pytest_command(run.path, two_studies(tmp_path), "--ddp-confidence=0.9999", SHORT)
    job = lab.submit(" ".join(["exec", *command]), "--nodes=3", "--nodelist=n1,n2,n3", "--no-kill", cwd=tmp_path)
    wait_until_measuring(run)
    lab.node("n3").link_down()
    ran = LabRun(lab.wait_for_job(job, DEADLINE_S), lab.job_output(job), run)
    reason, message = ends(run)["weak/tiny"]
    assert reason == "error"
    assert message.startswith("n3 was "), message
    assert "the node, its link, its slurmd or its agent is down" in message
    assert measuring(run), "what was measured before stays"
    assert ends(run)["weak/small"][0] in ("decided", "rounds")
    assert {one.host for one in measurements_in(run) if one.study == "weak/small"} == {"n1", "n2"}
    assert ran.judgement["outcome"] == "incomplete"
    reasons = {one["workload"]: one["reason"] for one in ran.judgement["verdicts"]}
    assert reasons["small"].startswith("measured on 2 of 3 nodes (n[1-2]); missing: n3"), reasons
    wait_until_nobody_is_left(lab)


@pytest.mark.lab
def test_a_job_that_hits_its_time_limit_is_no_failure_and_can_be_finished(lab: SlurmLab, tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    # Nothing is decided in the half minute until Slurm looks at time limits: ranks wait for each other's gradients,
    # which costs no CPU time, as computing until then would.
    command = pytest_command(run.path, two_studies(tmp_path, nodes=2), "--ddp-inactivity-limit=200s")
    job = lab.submit(" ".join(["exec", *command]), "--nodes=2", "--signal=B:TERM@60", cwd=tmp_path)
    wait_until(lambda: measuring(run, 0), DEADLINE_S, "the first block")
    lab.node("n2").slow_link("4mbit")
    lab.end_at_time_limit(job, after_s=20)
    lab.wait_for_job(job, DEADLINE_S)
    assert run.read_run().status == "interrupted"
    assert {reason for reason, _ in ends(run).values()} == {"interrupted"}
    assert "time limit" in ends(run)["weak/tiny"][1]
    ran = LabRun("", lab.job_output(job), run)
    assert {one["outcome"] for one in ran.judgement["verdicts"]} == {"not_measured"}
    assert "--ddp-resume=" in ran.output
    wait_until_nobody_is_left(lab)


@pytest.mark.lab
def test_a_srun_that_is_killed_is_named_and_no_gang_starts_beside_what_it_left(lab: SlurmLab, tmp_path: Path) -> None:
    """And the job, cancelled in its next study, says so, and has its verdicts before Slurm kills it.

    Which it does 5 s after it has asked processes to end, here: pytest is still waiting for its agents then.
    """
    run = RunDirectory(tmp_path / "run")
    command = pytest_command(run.path, two_studies(tmp_path, nodes=2), *ENDLESS)
    job = lab.submit(" ".join(["exec", *command]), "--nodes=2", "--nodelist=n1,n2", "--time=5", cwd=tmp_path)
    wait_until_measuring(run)
    [srun] = [one for one in lab.node("n1").processes() if Path(one.cmdline()[0]).name == "srun" and one.children()]
    at_once = [gangs_on_nodes(lab)]
    srun.kill()

    def next_study_is_measured() -> bool:
        at_once.append(gangs_on_nodes(lab))
        return any(one.study == "weak/small" for one in measurements_in(run))

    wait_until(next_study_is_measured, DEADLINE_S, "the next study")
    lab.run(["scancel", str(job)])
    reason, message = ends(run)["weak/tiny"]
    assert (reason, message.startswith("srun was killed by SIGKILL")) == ("error", True), message
    assert max(map(len, at_once)) == 1, at_once
    assert len(set().union(*at_once)) == 2, at_once

    lab.wait_for_job(job, DEADLINE_S)
    judgement = LabRun("", lab.job_output(job), run).judgement
    assert judgement["outcome"] == "incomplete"
    assert judgement["reason"].startswith("interrupted at 20"), judgement["reason"]
    assert ": the job was cancelled; " in judgement["reason"]
    assert "time limit" not in run.measurements_jsonl.read_text("utf-8")
    assert "INCOMPLETE" in (run.path / "report.md").read_text("utf-8")
    wait_until_nobody_is_left(lab)


def gangs_on_nodes(lab: SlurmLab) -> set[str]:
    """Ids of the gangs of which ranks are there."""
    found = set()
    for process in lab.processes():
        with contextlib.suppress(psutil.Error):
            found.add(process.environ().get("DDPSCALE_GANG", "").partition("/")[0])
    return found - {""}


@pytest.mark.lab
def test_a_run_from_a_login_node_that_is_interrupted_leaves_no_job(lab: SlurmLab, tmp_path: Path) -> None:
    """Whose nodes do not see the run directory, and need not."""
    shared, elsewhere = tmp_path / "runs", tmp_path / "elsewhere"
    for folder in (shared, elsewhere):
        folder.mkdir()
    for node in lab.nodes:
        node.mount(elsewhere, shared)
    run = RunDirectory(shared / "run")
    command = pytest_command(run.path, two_studies(tmp_path), "--ddp-nodes=2", "-k", "small", *ENDLESS, SHORT)
    pytest_process = subprocess.Popen(
        lab.command(command), env=lab.environ, cwd=tmp_path,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    )  # fmt: skip
    try:
        wait_until_measuring(run)
        pytest_process.send_signal(signal.SIGINT)
        output, _ = pytest_process.communicate(timeout=GONE_S)
    finally:
        pytest_process.kill()
        pytest_process.wait()
    assert pytest_process.returncode == pytest.ExitCode.INTERRUPTED, output
    assert ends(run)["weak/small"][0] == "interrupted"
    assert len({one.host for one in measurements_in(run)}) == 2
    assert not list(elsewhere.iterdir())
    wait_until_nobody_is_left(lab)
    lab.wait_idle(GONE_S)


@pytest.mark.lab
def test_the_wait_for_nodes_is_bounded_and_shown(lab: SlurmLab, tmp_path: Path) -> None:
    lab.submit("sleep 300", "--nodes=6", "--exclusive")
    run = RunDirectory(tmp_path / "run")
    command = pytest_command(run.path, two_studies(tmp_path), "--ddp-nodes=2", "--ddp-slurm-args=--immediate=5")
    result = lab.run(command, check=False, cwd=tmp_path)
    assert result.returncode == pytest.ExitCode.TESTS_FAILED, result.stdout
    assert "Unable to allocate resources" in result.stdout
    assert "queued and waiting for resources" in result.stdout
    wait_until(lambda: "ddpscale" not in lab.run(["squeue", "--noheader"]).stdout, GONE_S, "no job in the queue")
