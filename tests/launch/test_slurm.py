"""How agents start on the nodes of a Slurm job, and what Slurm 22.05 says of a job; the texts are its own."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from pytest_ddpscale.launch import slurm as slurm_module
from pytest_ddpscale.launch.launcher import AgentProcess, Container, Launch
from pytest_ddpscale.launch.slurm import allocated_hosts, reason_of
from pytest_ddpscale.report.words.reasons import say
from tests.builders.launches import slurm
from tests.tables import assert_approved, each_block

TABLE = Path(__file__).with_name("slurm.txt")
GANG = "abcd" * 4


@each_block(TABLE)
def test_how_srun_starts_the_agents_of_a_gang(block: str) -> None:
    """A case of slurm.txt: hosts of an allocation, or how many nodes; device, image and the user's arguments."""

    def told(case: str) -> Iterator[str]:
        hosts, device, image, *own = shlex.split(case)
        launcher = slurm(slurm_args=shlex.join(own), gpus_per_node="8") if own else slurm(gpus_per_node="8")
        nodes = int(hosts) if hosts.isdigit() else len(hosts.split(","))
        container = Container(launcher.image_arguments(image), (), "python3") if image.endswith("sqsh") else Container()
        container = Container((), ("apptainer", "exec", image), "python3") if image.endswith("sif") else container
        allocated = () if hosts.isdigit() else tuple(hosts.split(","))
        launch = Launch(launcher, {}, allocated, "cuda" if device == "cuda" else "cpu", container, nodes, GANG)
        [process] = launcher.processes(launch)
        assert process == AgentProcess(process.command, host="")
        yield shlex.join(process.command).replace(sys.executable, "PYTHON")

    assert_approved(TABLE, block, told)


def program(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, script: str) -> None:
    """Put a program on PATH, before what is there."""
    (folder / name).write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


NOW = datetime(2026, 11, 21, 19, 37, 50)
JOB = (
    "JobId=8 JobName=stdin UserId=root(0) GroupId=root(0) MCS_label=N/A Priority=4294901752 Nice=0 Account=(null) "
    "QOS=(null) {state} Dependency=(null) Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0 RunTime=00:00:01 "
    "TimeLimit={limit} TimeMin=N/A SubmitTime=2026-11-21T19:37:31 EligibleTime=2026-11-21T19:37:31 "
    "StartTime=2026-11-21T19:37:32 EndTime={end} Deadline=N/A PreemptEligibleTime=2026-11-21T19:37:32 "
    "PreemptTime={preempted} SuspendTime=None Partition=main AllocNode:Sid=head:8510 NodeList=n1 NumNodes=1 "
    "ReqB:S:C:T=0:0:*:* TRES=cpu=1,node=1,billing=1 WorkDir=/a dir/with=equals Power= \n"
)


def job(
    state: str = "RUNNING Reason=None", end: str = "2027-11-21T19:37:32", limit: str = "365-00:00:00",
    preempted: str = "None",
) -> str:  # fmt: skip
    return JOB.format(state=f"JobState={state}", end=end, limit=limit, preempted=preempted)


def test_the_reason_for_a_signal() -> None:
    for described, reason in [
        (job(), ""),
        (job(end="Unknown", limit="UNLIMITED"), ""),
        (job(end="2026-11-21T19:43:00", limit="00:10:00"), ""),
        (job(end="2026-11-21T19:39:50", limit="00:10:00"), "the job reached its time limit of 00:10:00"),
        (job(end="2026-11-21T19:37:40", limit="00:10:00"), "the job reached its time limit of 00:10:00"),
        (job("TIMEOUT Reason=TimeLimit", limit="00:01:00"), "the job reached its time limit of 00:01:00"),
        (job("CANCELLED Reason=None", "2026-11-21T19:37:34"), "the job was cancelled"),
        # As it is from scancel on, and from the end at a time limit on, until its last process has ended.
        (job("COMPLETING Reason=None", "2026-11-21T19:37:49", "00:30:00"), "the job was cancelled"),
        (job("COMPLETING Reason=None", "2026-11-21T19:37:49", "00:01:00"), "the job was cancelled"),
        (job("COMPLETING Reason=TimeLimit", "2026-11-21T19:37:49", "00:01:00"), "the job reached its time limit of "
         "00:01:00"),
        # As it is in the first moment after `scontrol requeue`, or a preemption that requeues.
        (job("PENDING Reason=BeginTime", "Unknown", "UNLIMITED"), "the job was requeued"),
        (job("REQUEUED Reason=None"), "the job was requeued"),
        (job("REQUEUE_HOLD Reason=None"), "the job was requeued"),
        (job("PREEMPTED Reason=None", "2026-11-21T19:37:40"), "the job was preempted"),
        (job(preempted="2026-11-21T19:37:49"), "the job was preempted"),
        (job("NODE_FAIL Reason=NodeDown"), "a node of the job failed"),
        (job("COMPLETING Reason=NodeDown", "2026-11-21T19:37:49"), "a node of the job failed"),
        (job("OUT_OF_MEMORY Reason=OutOfMemory"), "the job ran out of memory"),
        (job("DEADLINE Reason=DeadLine"), "the job reached its deadline"),
        ("", ""),
        ("slurm_load_jobs error: Invalid job id specified", ""),
    ]:  # fmt: skip
        assert say(reason_of(described, NOW)) == reason


SAID = "slurmstepd-n1: error: *** {what} ON n1 CANCELLED AT 2026-11-21T19:37:51{why} ***"


@pytest.mark.parametrize(
    ("why", "reason"),
    [
        ("", "the job was cancelled"),
        (" DUE TO TIME LIMIT", "the job reached its time limit"),
        (" DUE to SIGNAL Terminated", "the job was cancelled"),  # Slurm 26.05
        (" DUE TO TASK FAILURE", ""),
        (" DUE TO PREEMPTION", "the job was preempted"),
        (" DUE TO JOB REQUEUE", "the job was requeued"),
        (" DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS", ""),
        (" DUE TO NODE FAILURE", ""),
    ],
)
@pytest.mark.parametrize("what", ["STEP 6.0", "JOB 6"])
def test_the_reason_for_a_steps_end(what: str, why: str, reason: str) -> None:
    aborted = "srun: Job step aborted: Waiting up to 7 seconds for job step to finish."
    lines = [aborted, SAID.format(what=what, why=why), "srun: error: n1: task 0: Terminated"]
    assert say(slurm().why_ended(lines)) == reason


def test_what_ends_by_itself_was_not_ended_by_slurm() -> None:
    for lines in [
        [],
        ["srun: error: n1: task 0: Killed", "srun: Force Terminated StepId=2.0"],
        ["srun: error: Node failure on n2", "*** n1 says: CANCELLED ***"],
    ]:
        assert slurm().why_ended(lines) == ""


def test_nodes_that_slurm_gave_up_are_named_once() -> None:
    lines = ["srun: error: Node failure on n3", "Node failure on n9", "srun: error: Node failure on n3"]
    assert slurm().given_up(lines) == ("n3",)
    assert slurm().given_up(["srun: error: n1: task 0: Killed"]) == ()
    assert slurm().given_up([*lines, "srun: error: Node failure on n[4-5]"]) == ("n3", "n4", "n5")
    assert slurm().given_up(["srun: error: Node failure on n["]) == (), "nobody can tell"


def test_what_srun_says_of_its_wait() -> None:
    for lines, state in [
        ([], ""),
        (["module load: ok"], ""),
        (["srun: job 4 queued and waiting for resources"], "job 4 queued and waiting for resources"),
        (["srun: job 4 queued and waiting for resources", "srun: job 4 has been allocated resources"], ""),
        (
            ["x", "srun: Job 7 step creation temporarily disabled, retrying (Requested nodes are busy)", "y"],
            "Job 7 step creation temporarily disabled, retrying (Requested nodes are busy)",
        ),
    ]:
        assert slurm().queue_state(lines) == state
    for quiet in ("-Q", "--quiet"):
        said = "srun --quiet does not say whether Slurm has allocated nodes"
        assert slurm(slurm_args=f"--partition=gpu {quiet}").queue_state([]) == said


def scontrol(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    program(folder, monkeypatch, "scontrol", script)


def test_outside_of_a_job_there_is_no_allocation() -> None:
    for environ in ({}, {"SLURM_JOB_ID": "5"}, {"SLURM_JOB_NODELIST": "n1"}):
        assert allocated_hosts(environ) == ()


def test_its_nodes_are_those_of_the_job() -> None:
    assert allocated_hosts({"SLURM_JOB_ID": "5", "SLURM_JOB_NODELIST": "n1"}) == ("n1",)
    environ = {"SLURM_JOB_ID": "5", "SLURM_JOB_NODELIST": "n[1-2],m07"}
    assert allocated_hosts(environ) == ("n1", "n2", "m07")


def test_slurm_is_asked_about_the_job_around_us(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scontrol(tmp_path, monkeypatch, '[ "$*" = "show job -o 8" ] && echo "JobId=8 JobState=PREEMPTED"')
    assert say(slurm({"SLURM_JOB_ID": "8"}).why_signalled()) == "the job was preempted"
    assert slurm({"SLURM_JOB_ID": "9"}).why_signalled() == ""
    assert slurm({}).why_signalled() == ""


def test_a_slurm_that_does_not_answer_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scontrol(tmp_path, monkeypatch, "exec sleep 60")
    monkeypatch.setattr(slurm_module, "_PATIENCE_S", 0.2)
    began = time.monotonic()
    assert slurm({"SLURM_JOB_ID": "8"}).why_signalled() == ""
    assert time.monotonic() - began < 30


def test_slurm_may_be_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FileNotFoundError):
        subprocess.run(["scontrol"], check=False)
    assert slurm({"SLURM_JOB_ID": "8"}).why_signalled() == ""
