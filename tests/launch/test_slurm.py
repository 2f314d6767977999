"""How agents start on the nodes of a Slurm job, and what Slurm 22.05 says of a job; the texts are its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

import pytest

from pytest_ddpscale.launch import slurm as slurm_module
from pytest_ddpscale.launch.container import Container
from pytest_ddpscale.launch.launcher import AgentProcess, Launch
from pytest_ddpscale.launch.slurm import SlurmLauncher, allocated_hosts, reason_of
from tests.builders.launches import slurm

SRUN = [
    "srun", "--job-name=ddpscale-g1", "--ntasks-per-node=1", "--export=ALL", "--cpu-bind=none", "--kill-on-bad-exit=0",
    "--wait=0", "--no-kill",
]  # fmt: skip
AGENT = ["-m", "pytest_ddpscale.node", "--node-from=SLURM_PROCID", "--host-from=SLURMD_NODENAME"]


def command(launcher: SlurmLauncher, *hosts: str, nodes: int = 2, **changes: object) -> list[str]:
    """What starts a gang's agents, all of them."""
    [process] = launcher.processes(Launch(launcher, {}, hosts, nodes=nodes, **{"gang_id": "g1", **changes}))  # type: ignore[arg-type]
    assert process == AgentProcess(process.command, host="")
    return process.command


def test_inside_an_allocation_one_agent_on_each_of_its_nodes() -> None:
    assert command(slurm(), "n1", "n2", "n7", nodes=3) == [
        *SRUN, "--nodes=3", "--ntasks=3", "--overlap", "--nodelist=n1,n2,n7", sys.executable, *AGENT,
    ]  # fmt: skip


def test_elsewhere_slurm_chooses_the_nodes() -> None:
    assert command(slurm()) == [*SRUN, "--nodes=2", "--ntasks=2", sys.executable, *AGENT]


def test_the_users_arguments_come_last_so_that_they_win() -> None:
    launcher = slurm(slurm_args="--partition=gpu --exclusive --cpu-bind=cores")
    assert command(launcher) == [
        *SRUN, "--nodes=2", "--ntasks=2", "--partition=gpu", "--exclusive", "--cpu-bind=cores", sys.executable, *AGENT,
    ]  # fmt: skip


@pytest.mark.parametrize("exclusive", ["--exclusive", "--exclusive=user"])
def test_whole_nodes_are_asked_for_with_an_allocation_and_not_within_it(exclusive: str) -> None:
    """srun refuses --exclusive beside --overlap, and of a step it means as many cores as tasks."""
    launcher = slurm(slurm_args=f"--partition=gpu {exclusive}")
    assert exclusive in command(launcher)
    assert "--overlap" not in command(launcher)
    within = command(launcher, "n1", "n2")
    assert "--overlap" in within
    assert "--partition=gpu" in within
    assert exclusive not in within


def test_a_job_to_be_made_has_gpus_unless_the_user_names_them() -> None:
    for asked, arguments in [
        ("--partition=gpu", ["--gpus-per-node=8", "--partition=gpu"]),
        ("--gpu-bind=none", ["--gpus-per-node=8", "--gpu-bind=none"]),
        ("--gres-flags=x", ["--gpus-per-node=8", "--gres-flags=x"]),
        ("--gpus=16", ["--gpus=16"]),
        ("-G 16", ["-G", "16"]),
        ("-G8", ["-G8"]),
        ("--gres=gpu:8", ["--gres=gpu:8"]),
        ("--tres-per-task=gres/gpu:8", ["--tres-per-task=gres/gpu:8"]),
    ]:
        launcher = slurm(slurm_args=asked, gpus_per_node="8")
        start = [*SRUN, "--nodes=2", "--ntasks=2"]
        assert command(launcher, device_type="cuda") == [*start, *arguments, sys.executable, *AGENT]
        assert "--gpus-per-node=8" not in command(launcher, device_type="cpu")
        assert "--gpus-per-node=8" not in command(launcher, "n1", "n2", device_type="cuda")


def test_each_gang_has_a_job_or_step_name_of_its_own() -> None:
    one, other = (command(slurm(), gang_id=name * 16) for name in ("ab", "cd"))
    assert (one[1], other[1]) == ("--job-name=ddpscale-abababab", "--job-name=ddpscale-cdcdcdcd")


def test_pyxis_is_told_to_srun_and_the_images_interpreter_is_used() -> None:
    container = Container(slurm().image_arguments("image.sqsh"), (), "python3")
    assert command(slurm(slurm_args="--partition=gpu"), "n1", "n2", container=container) == [
        *SRUN, "--nodes=2", "--ntasks=2", "--overlap", "--nodelist=n1,n2", "--container-image=image.sqsh",
        "--partition=gpu", "python3", *AGENT,
    ]  # fmt: skip


def test_apptainer_is_started_by_srun() -> None:
    container = Container((), ("apptainer", "exec", "image.sif"), "python3")
    assert command(slurm(), nodes=1, container=container) == [
        *SRUN, "--nodes=1", "--ntasks=1", "apptainer", "exec", "image.sif", "python3", *AGENT,
    ]  # fmt: skip


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
        ("", ""),
        ("slurm_load_jobs error: Invalid job id specified", ""),
    ]:  # fmt: skip
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
    assert slurm().why_ended(lines) == reason


def test_what_ends_by_itself_was_not_ended_by_slurm() -> None:
    for lines in [
        [],
        ["srun: error: n1: task 0: Killed", "srun: Force Terminated StepId=2.0"],
        ["srun: error: Node failure on n2", "*** n1 says: CANCELLED ***"],
    ]:
        assert slurm().why_ended(lines) == ""


def test_nodes_that_slurm_gave_up_are_named_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["srun: error: Node failure on n3", "Node failure on n9", "srun: error: Node failure on n3"]
    assert slurm().given_up(lines) == ("n3",)
    assert slurm().given_up(["srun: error: n1: task 0: Killed"]) == ()
    scontrol(tmp_path, monkeypatch, '[ "$3" = "n[4-5]" ] && printf "n4\\nn5\\n"')
    assert slurm().given_up([*lines, "srun: error: Node failure on n[4-5]"]) == ("n3", "n4", "n5")
    assert slurm().given_up(["srun: error: Node failure on n[4-6]"]) == (), "nobody can tell"


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


def test_one_node_needs_no_help_and_several_are_named_by_scontrol(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scontrol(tmp_path, monkeypatch, '[ "$3" = "n[1-2],m07" ] && printf "n1\\nn2\\nm07\\n"')
    assert allocated_hosts({"SLURM_JOB_ID": "5", "SLURM_JOB_NODELIST": "n1"}) == ("n1",)
    environ = {"SLURM_JOB_ID": "5", "SLURM_JOB_NODELIST": "n[1-2],m07"}
    assert allocated_hosts(environ) == ("n1", "n2", "m07")


def test_slurm_is_asked_about_the_job_around_us(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scontrol(tmp_path, monkeypatch, '[ "$*" = "show job -o 8" ] && echo "JobId=8 JobState=PREEMPTED"')
    assert slurm({"SLURM_JOB_ID": "8"}).why_signalled() == "the job was preempted"
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
