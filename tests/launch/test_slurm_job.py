"""What Slurm 22.05 says of a job that it ends; the texts are its own."""

from __future__ import annotations

import os
import subprocess
import time
from datetime import datetime
from pathlib import Path

import pytest

from pytest_ddpscale.launch import slurm_job
from pytest_ddpscale.launch.slurm_job import (
    Allocation,
    allocation_of,
    failed_nodes,
    queue_state,
    reason_of,
    why_signalled,
    why_step_ended,
)  # fmt: skip

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


@pytest.mark.parametrize(
    ("described", "reason"),
    [
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
        ("", ""),
        ("slurm_load_jobs error: Invalid job id specified", ""),
    ],
)  # fmt: skip
def test_the_reason_for_a_signal(described: str, reason: str) -> None:
    assert reason_of(described, NOW) == reason


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
    assert why_step_ended(lines) == reason


@pytest.mark.parametrize(
    "lines",
    [
        [],
        ["srun: error: n1: task 0: Killed", "srun: Force Terminated StepId=2.0"],
        ["srun: error: Node failure on n2", "*** n1 says: CANCELLED ***"],
    ],
)
def test_what_ends_by_itself_was_not_ended_by_slurm(lines: list[str]) -> None:
    assert why_step_ended(lines) == ""


def test_nodes_that_slurm_gave_up_are_named_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["srun: error: Node failure on n3", "Node failure on n9", "srun: error: Node failure on n3"]
    assert failed_nodes(lines) == ("n3",)
    assert failed_nodes(["srun: error: n1: task 0: Killed"]) == ()
    scontrol(tmp_path, monkeypatch, '[ "$3" = "n[4-5]" ] && printf "n4\\nn5\\n"')
    assert failed_nodes([*lines, "srun: error: Node failure on n[4-5]"]) == ("n3", "n4", "n5")
    assert failed_nodes(["srun: error: Node failure on n[4-6]"]) == (), "nobody can tell"


@pytest.mark.parametrize(
    ("lines", "state"),
    [
        ([], ""),
        (["module load: ok"], ""),
        (["srun: job 4 queued and waiting for resources"], "job 4 queued and waiting for resources"),
        (
            ["x", "srun: Job 7 step creation temporarily disabled, retrying (Requested nodes are busy)", "y"],
            "Job 7 step creation temporarily disabled, retrying (Requested nodes are busy)",
        ),
    ],
)
def test_what_srun_says_of_its_wait(lines: list[str], state: str) -> None:
    assert queue_state(lines) == state


def scontrol(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a scontrol on PATH, before what is there."""
    (folder / "scontrol").write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    (folder / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_outside_of_a_job_there_is_no_allocation() -> None:
    assert allocation_of({}) is None
    assert allocation_of({"SLURM_JOB_ID": "5"}) is None
    assert allocation_of({"SLURM_JOB_NODELIST": "n1"}) is None


def test_one_node_needs_no_help_and_several_are_named_by_scontrol(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scontrol(tmp_path, monkeypatch, '[ "$3" = "n[1-2],m07" ] && printf "n1\\nn2\\nm07\\n"')
    assert allocation_of({"SLURM_JOB_ID": "5", "SLURM_JOB_NODELIST": "n1"}) == Allocation("5", ("n1",))
    environ = {"SLURM_JOB_ID": "5", "SLURM_JOB_NODELIST": "n[1-2],m07"}
    assert allocation_of(environ) == Allocation("5", ("n1", "n2", "m07"))


def test_slurm_is_asked_about_the_job_around_us(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scontrol(tmp_path, monkeypatch, '[ "$*" = "show job -o 8" ] && echo "JobId=8 JobState=PREEMPTED"')
    assert why_signalled({"SLURM_JOB_ID": "8"}, NOW) == "the job was preempted"
    assert why_signalled({"SLURM_JOB_ID": "9"}, NOW) == ""
    assert why_signalled({}, NOW) == ""


def test_a_slurm_that_does_not_answer_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scontrol(tmp_path, monkeypatch, "exec sleep 60")
    monkeypatch.setattr(slurm_job, "_PATIENCE_S", 0.2)
    began = time.monotonic()
    assert why_signalled({"SLURM_JOB_ID": "8"}, NOW) == ""
    assert time.monotonic() - began < 30


def test_slurm_may_be_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FileNotFoundError):
        subprocess.run(["scontrol"], check=False)
    assert why_signalled({"SLURM_JOB_ID": "8"}, NOW) == ""
