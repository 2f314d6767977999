"""The exact command line of a gang on the nodes of a Slurm job."""

from __future__ import annotations

import sys

from pytest_ddpscale.launch.container import Container
from pytest_ddpscale.launch.launcher import Launcher
from pytest_ddpscale.launch.slurm import SlurmLauncher
from tests.launch.sample import WORKER, gang

SRUN = [
    "srun", "--job-name=ddpscale", "--ntasks-per-node=1", "--export=ALL", "--cpu-bind=none", "--overlap",
    "--kill-on-bad-exit=0", "--wait=0", "--no-kill",
]  # fmt: skip
AGENT = [
    "-m", "pytest_ddpscale.node", "--gang=g1", "--ranks-per-node=8", "--log-dir=run dir/logs/gang-0", "--beat-s=2",
    "--slurm", "--", *WORKER,
]  # fmt: skip


def test_inside_an_allocation_one_agent_on_each_of_its_nodes() -> None:
    launcher: Launcher = SlurmLauncher()
    assert launcher.name == "slurm"
    assert launcher.command(gang(nodes=3, hosts=("n1", "n2", "n7"))) == [
        *SRUN, "--nodes=3", "--ntasks=3", "--nodelist=n1,n2,n7", sys.executable, *AGENT,
    ]  # fmt: skip


def test_elsewhere_slurm_chooses_the_nodes() -> None:
    assert SlurmLauncher().command(gang(nodes=2)) == [*SRUN, "--nodes=2", "--ntasks=2", sys.executable, *AGENT]


def test_the_users_arguments_come_last_so_that_they_win() -> None:
    launcher = SlurmLauncher(("--partition=gpu", "--exclusive", "--cpu-bind=cores"))
    assert launcher.command(gang(nodes=2)) == [
        *SRUN, "--nodes=2", "--ntasks=2", "--partition=gpu", "--exclusive", "--cpu-bind=cores", sys.executable, *AGENT,
    ]  # fmt: skip


def test_pyxis_is_told_to_srun_and_the_images_interpreter_is_used() -> None:
    container = Container(("--container-image=image.sqsh", "--container-mounts=/r:/r"), (), "python3")
    launcher = SlurmLauncher(("--partition=gpu",), container)
    assert launcher.command(gang(nodes=2, hosts=("n1", "n2"))) == [
        *SRUN, "--nodes=2", "--ntasks=2", "--nodelist=n1,n2", "--container-image=image.sqsh",
        "--container-mounts=/r:/r", "--partition=gpu", "python3", *AGENT,
    ]  # fmt: skip


def test_apptainer_is_started_by_srun() -> None:
    container = Container((), ("apptainer", "exec", "--bind", "/r", "image.sif"), "python3")
    assert SlurmLauncher((), container).command(gang()) == [
        *SRUN, "--nodes=1", "--ntasks=1", "apptainer", "exec", "--bind", "/r", "image.sif", "python3", *AGENT,
    ]  # fmt: skip
