"""The exact command line of a gang on the nodes of a Slurm job."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pytest_ddpscale.launch import slurm
from pytest_ddpscale.launch.container import Container
from pytest_ddpscale.launch.launcher import Launcher
from pytest_ddpscale.launch.slurm import SlurmLauncher, complaint_in
from tests.launch.sample import WORKER, gang

SRUN = [
    "srun", "--job-name=ddpscale-g1", "--ntasks-per-node=1", "--export=ALL", "--cpu-bind=none", "--kill-on-bad-exit=0",
    "--wait=0", "--no-kill",
]  # fmt: skip
AGENT = [
    "-m", "pytest_ddpscale.node", "--gang=g1", "--ranks-per-node=8", "--log-dir=run dir/logs/gang-0", "--beat-s=2",
    "--slurm", "--", *WORKER,
]  # fmt: skip


def test_inside_an_allocation_one_agent_on_each_of_its_nodes() -> None:
    launcher: Launcher = SlurmLauncher()
    assert launcher.name == "slurm"
    assert launcher.command(gang(nodes=3, hosts=("n1", "n2", "n7"))) == [
        *SRUN, "--nodes=3", "--ntasks=3", "--overlap", "--nodelist=n1,n2,n7", sys.executable, *AGENT,
    ]  # fmt: skip


def test_elsewhere_slurm_chooses_the_nodes() -> None:
    assert SlurmLauncher().command(gang(nodes=2)) == [*SRUN, "--nodes=2", "--ntasks=2", sys.executable, *AGENT]


def test_the_users_arguments_come_last_so_that_they_win() -> None:
    launcher = SlurmLauncher(("--partition=gpu", "--exclusive", "--cpu-bind=cores"))
    assert launcher.command(gang(nodes=2)) == [
        *SRUN, "--nodes=2", "--ntasks=2", "--partition=gpu", "--exclusive", "--cpu-bind=cores", sys.executable, *AGENT,
    ]  # fmt: skip


@pytest.mark.parametrize("exclusive", ["--exclusive", "--exclusive=user"])
def test_whole_nodes_are_asked_for_with_an_allocation_and_not_within_it(exclusive: str) -> None:
    """srun refuses --exclusive beside --overlap, and of a step it means as many cores as tasks."""
    launcher = SlurmLauncher(("--partition=gpu", exclusive))
    assert exclusive in launcher.command(gang(nodes=2))
    assert "--overlap" not in launcher.command(gang(nodes=2))
    within = launcher.command(gang(nodes=2, hosts=("n1", "n2")))
    assert "--overlap" in within
    assert "--partition=gpu" in within
    assert exclusive not in within


def test_each_gang_has_a_job_or_step_name_of_its_own() -> None:
    one, other = (SlurmLauncher().command(gang(gang_id=name * 16)) for name in ("ab", "cd"))
    assert (one[1], other[1]) == ("--job-name=ddpscale-abababab", "--job-name=ddpscale-cdcdcdcd")


@pytest.mark.parametrize(
    ("said", "complaint", "of_a_step"),
    [
        ("srun: error: --exclusive and --overlap are mutually exclusive", "--exclusive and --overlap are mutually "
         "exclusive", True),
        ('srun: unrecognized option \'--bogus\'\nTry "srun --help" for more information',
         "unrecognized option '--bogus'", True),
        ("srun: error: Invalid --time specification", "Invalid --time specification", True),
        ("srun: warning: can't honor --ntasks-per-node\nsrun: error: DNS SRV lookup failed\n"
         "srun: fatal: Could not establish a configuration source",
         "Could not establish a configuration source", True),
        ("srun: cluster configuration lacks support for cpu binding\n"
         "srun: error: invalid partition specified: gpu\nallocation failure: Invalid partition name specified",
         "invalid partition specified: gpu", False),
        ("allocation failure: Invalid feature specification", "Invalid feature specification", False),
        # Nodes that are down or taken come back: srun waits for them, and says so.
        ("allocation failure: Requested node configuration is not available", "", False),
        ("allocation failure: Unable to contact slurm controller (connect failure)", "", False),
        ("srun: lua: Invalid comment ignored\nallocation failure: Requested nodes are busy", "", False),
        ("", "", False),
    ],
)  # fmt: skip
def test_what_srun_or_slurm_never_accepts_is_told_from_what_may_change(
    said: str, complaint: str, of_a_step: bool
) -> None:
    """The texts are of Slurm 22.05's `srun --test-only`."""
    assert complaint_in(said, is_step=False) == complaint
    assert complaint_in(said, is_step=True) == (complaint if of_a_step else "")


def srun(folder: Path, script: str) -> dict[str, str]:
    """An environment in which srun is this shell script."""
    (folder / "srun").write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    (folder / "srun").chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


def test_srun_is_asked_with_the_arguments_of_the_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = srun(tmp_path, 'echo "srun: error: $*" >&2; exit 1')
    monkeypatch.setenv("PATH", environment["PATH"])
    launcher = SlurmLauncher(("--partition=gpu",))
    assert launcher.complaint(2, (), environment) == " ".join(
        [*SRUN[2:], "--nodes=2", "--ntasks=2", "--partition=gpu", "--test-only", "true"]
    )


@pytest.mark.parametrize("script", ["exit 0", "exec sleep 60"])
def test_arguments_that_srun_takes_and_a_slurm_that_does_not_answer_are_no_complaint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    environment = srun(tmp_path, script)
    monkeypatch.setenv("PATH", environment["PATH"])
    monkeypatch.setattr(slurm, "_TRIAL_S", 0.3)
    assert SlurmLauncher().complaint(2, (), environment) == ""


def test_pyxis_is_told_to_srun_and_the_images_interpreter_is_used() -> None:
    container = Container(("--container-image=image.sqsh", "--container-mounts=/r:/r"), (), "python3")
    launcher = SlurmLauncher(("--partition=gpu",), container)
    assert launcher.command(gang(nodes=2, hosts=("n1", "n2"))) == [
        *SRUN, "--nodes=2", "--ntasks=2", "--overlap", "--nodelist=n1,n2", "--container-image=image.sqsh",
        "--container-mounts=/r:/r", "--partition=gpu", "python3", *AGENT,
    ]  # fmt: skip


def test_apptainer_is_started_by_srun() -> None:
    container = Container((), ("apptainer", "exec", "--bind", "/r", "image.sif"), "python3")
    assert SlurmLauncher((), container).command(gang()) == [
        *SRUN, "--nodes=1", "--ntasks=1", "apptainer", "exec", "--bind", "/r", "image.sif", "python3", *AGENT,
    ]  # fmt: skip
