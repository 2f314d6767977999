"""Which nodes are meant, and what starts ranks there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.launch.launcher import Cluster, Container, Launch, TorchrunLauncher, launcher_for
from pytest_ddpscale.launch.slurm import SlurmLauncher
from pytest_ddpscale.session.evidence import launch_on
from pytest_ddpscale.session.open import THIS_MACHINE
from pytest_ddpscale.settings import Settings, settings_from
from tests.approved import assert_approved

HERE = {"SLURM_JOB_ID": "17", "SLURMD_NODENAME": "n4"}
ONE_NODE = HERE | {"SLURM_JOB_NODELIST": "n4"}
THREE_NODES = HERE | {"SLURM_JOB_NODELIST": "n[4-5,9]"}
# A shell that salloc started where it was typed.
ON_LOGIN = {"SLURM_JOB_ID": "17", "SLURM_JOB_NODELIST": "n4"}
HETEROGENEOUS = {"SLURM_JOB_NODELIST_HET_GROUP_0": "n4", "SLURM_JOB_NODELIST_HET_GROUP_1": "c[1-2]"}
MEMORY = {"SLURM_MEM_PER_NODE": "4096", "SLURM_MEM_PER_CPU": "8"}


def settings(**options: str) -> Settings:
    """As options give them, without their prefix."""
    return settings_from({f"ddp_{name}": value for name, value in options.items()}, {}, {})


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on PATH, with srun."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "srun").write_text("#!/bin/sh\n", encoding="utf-8")
    (folder / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    return folder


ENVIRONMENTS = {
    "no job": {}, "one node": ONE_NODE, "three nodes": THREE_NODES, "login node": ON_LOGIN,
    "on its node": ON_LOGIN | {"SLURMD_NODENAME": "n4.cluster"}, "heterogeneous": ONE_NODE | HETEROGENEOUS,
    "three nodes, memory twice": THREE_NODES | MEMORY, "three nodes, memory": THREE_NODES | {"SLURM_MEM_PER_CPU": "8"},
}  # fmt: skip
OPTIONS = {
    "no job": (
        "", "nodes=1", "nodes=2", "launcher=slurm", "slurm_args=--partition=gpu", "nodes=2 profile=5", "nodes=64",
        "launcher=slurm nodes=4", "launcher=slurm nodes=4 profile=5",
    ),
    "one node": ("", "launcher=slurm", "slurm_args=--mem=0", "nodes=2"),
    "three nodes": ("", "nodes=2", "nodes=1", "nodes=1 launcher=slurm", "profile=5", "launcher=torchrun", "nodes=4"),
    "login node": ("",),
    "on its node": ("",),
    "heterogeneous": ("",),
    "three nodes, memory twice": ("slurm_args=--mem=0", ""),
    "three nodes, memory": ("",),
}  # fmt: skip


def test_the_nodes_follow_from_options_and_allocation(programs: Path) -> None:
    """Planning needs no Slurm, and inside an allocation is for its nodes; measuring without srun is refused."""
    said = list[str]()
    for how in ("planned", "measured", "without srun"):
        if how == "without srun":
            (programs / "srun").unlink()
        for environment, words in ((environment, words) for environment, every in OPTIONS.items() for words in every):
            launcher = launcher_for(
                settings(**dict(word.split("=", 1) for word in words.split())), ENVIRONMENTS[environment]
            )
            try:
                cluster = launcher.cluster(plans_only=how == "planned")
                found = "this machine" if cluster == THIS_MACHINE else str(cluster)
            except OptionError as error:
                found = str(error)
            said.append(f"{how}, {environment}, {words or 'no option'}: {found}")
    assert_approved("clusters.txt", "\n".join(said) + "\n")


def launch(cluster: Cluster, device_type: Any, **options: str) -> Launch:
    return launch_on(cluster, settings(**options), device_type, {"PATH": "/bin", "MY_SITE": "1", "RANK": "3"})


ELSEWHERE = Cluster(2, launcher="slurm", is_elsewhere=True)


def test_torchrun_starts_ranks_on_this_machine_and_srun_on_the_nodes_of_an_allocation() -> None:
    """Images are started by what starts ranks."""
    here = launch(THIS_MACHINE, "cuda", pass_env="MY_SITE")
    assert isinstance(here.launcher, TorchrunLauncher)
    assert (here.hosts, here.nodes, here.device_type) == ((), 1, "cuda")
    assert (here.environment["MY_SITE"], "RANK" in here.environment) == ("1", False)
    there = launch(Cluster(2, ("n4", "n5"), "slurm"), "cuda", slurm_args="--mem=0")
    assert isinstance(there.launcher, SlurmLauncher)
    assert (there.hosts, there.nodes, there.launcher.settings.slurm_args) == (("n4", "n5"), 2, ("--mem=0",))
    assert launch(ELSEWHERE, "cpu", container="i").container == Container(("--container-image=i",), (), "python3")
    with pytest.raises(OptionError, match="i is an image for Pyxis"):
        launch(THIS_MACHINE, "cpu", container="i")


def test_nodes_are_left_out_in_their_order_if_slurm_did_not_choose_them() -> None:
    four = Cluster(4, ("n1", "n2", "n3", "n4"), launcher="slurm")
    assert four.without(["n3", "n1"]) == Cluster(2, ("n2", "n4"), launcher="slurm")
    elsewhere = Cluster(2, ("n1", "n2"), launcher="slurm", is_elsewhere=True)
    assert elsewhere.without(["n1"]) == Cluster(1, ("n2",), launcher="slurm", is_elsewhere=True)
    left = [four.without(four.hosts), four.without(["n3.cluster"])]
    assert [*left, *(one.without(["n1"]) for one in (THIS_MACHINE, ELSEWHERE))] == [None] * 4
