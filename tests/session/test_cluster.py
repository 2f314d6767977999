"""Which nodes are meant, what starts ranks there, and how many fit a node, here and elsewhere."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpscale.errors import OptionError, SkuError
from pytest_ddpscale.launch.launcher import Cluster, launcher_for
from pytest_ddpscale.session.evidence import launch_on
from pytest_ddpscale.session.open import THIS_MACHINE, devices_per_node, gpus_here
from pytest_ddpscale.settings import Settings, settings_from
from tests.approved import assert_approved
from tests.nvml_stand_in.fixtures import machine, nvml_library_directory
from tests.nvml_stand_in.machine import A100, HANG, PlayedMachine

__all__ = ["machine", "nvml_library_directory"]

HERE = {"SLURM_JOB_ID": "17", "SLURMD_NODENAME": "n4"}
ONE_NODE = HERE | {"SLURM_JOB_NODELIST": "n4"}
THREE_NODES = HERE | {"SLURM_JOB_NODELIST": "n[4-5,9]"}
# A shell that salloc started where it was typed.
ON_LOGIN = {"SLURM_JOB_ID": "17", "SLURM_JOB_NODELIST": "n4"}
HETEROGENEOUS = {"SLURM_JOB_NODELIST_HET_GROUP_0": "n4", "SLURM_JOB_NODELIST_HET_GROUP_1": "c[1-2]"}
MEMORY = {"SLURM_MEM_PER_NODE": "4096", "SLURM_MEM_PER_CPU": "8"}


def settings(words: str = "") -> Settings:
    """As options give them, without their prefix."""
    return settings_from(
        {f"ddp_{name}": value for name, _, value in (word.partition("=") for word in words.split())}, {}, {}
    )


def tried(what: str, words: str, attempt: Callable[[], object]) -> str:
    try:
        found = attempt()
    except OptionError as error:
        found = error
    return f"{what}, {words or 'no option'}: {found}"


# Jobs, and what is asked in each.
ASKED_IN: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    "no job": ({}, (
        "", "nodes=1", "nodes=2", "launcher=slurm", "slurm_args=--partition=gpu", "nodes=2 profile=5", "nodes=64",
        "launcher=slurm nodes=4", "launcher=slurm nodes=4 profile=5",
    )),
    "one node": (ONE_NODE, ("", "launcher=slurm", "slurm_args=--mem=0", "nodes=2")),
    "three nodes": (THREE_NODES, (
        "", "nodes=2", "nodes=1", "nodes=1 launcher=slurm", "profile=5", "launcher=torchrun", "nodes=4",
    )),
    "login node": (ON_LOGIN, ("",)), "on its node": (ON_LOGIN | {"SLURMD_NODENAME": "n4.cluster"}, ("",)),
    "heterogeneous": (ONE_NODE | HETEROGENEOUS, ("",)),
    "three nodes, memory twice": (THREE_NODES | MEMORY, ("slurm_args=--mem=0", "")),
    "three nodes, memory": (THREE_NODES | {"SLURM_MEM_PER_CPU": "8"}, ("",)),
}  # fmt: skip


def test_the_nodes_follow_from_options_and_allocation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planning needs no Slurm, and inside an allocation is for its nodes; measuring without srun is refused."""
    monkeypatch.setenv("PATH", str(tmp_path))
    (srun := tmp_path / "srun").symlink_to("/bin/true")
    said = list[str]()
    for how in ("planned", "measured", "without srun"):
        if how == "without srun":
            srun.unlink()
        for job, (environment, every) in ASKED_IN.items():
            for words in every:

                def cluster() -> object:
                    launcher = launcher_for(settings(words), environment)  # noqa: B023
                    found = launcher.cluster(plans_only=how == "planned")  # noqa: B023
                    return "this machine" if found == THIS_MACHINE else found

                said.append(tried(f"{how}, {job}", words, cluster))
    assert_approved("clusters.txt", "\n".join(said) + "\n")


ELSEWHERE = Cluster(2, launcher="slurm", is_elsewhere=True)
ALLOCATED = Cluster(2, ("n1", "n2"), launcher="slurm")
STARTED = {
    "cuda here": (THIS_MACHINE, "pass_env=MY_SITE"), "cuda allocated": (ALLOCATED, "slurm_args=--mem=0"),
    # Images are started by what starts ranks.
    "cpu elsewhere": (ELSEWHERE, "container=i"), "cpu here": (THIS_MACHINE, "container=i"),
}  # fmt: skip


def test_torchrun_starts_ranks_on_this_machine_and_srun_on_the_nodes_of_an_allocation() -> None:
    said = list[str]()
    for name, (cluster, words) in STARTED.items():
        device: Any = name.split()[0]

        def launch() -> str:
            environment = {"PATH": "/bin", "MY_SITE": "1", "RANK": "3"}
            one = launch_on(cluster, settings(words), device, environment)  # noqa: B023
            passed, given = environment.keys() & one.environment.keys(), vars(one.launcher)["settings"].slurm_args
            on = f"{one.nodes} {one.hosts} {one.device_type}"
            return f"{type(one.launcher).__name__} {given} {on} {sorted(passed)} {one.container}"

        said.append(tried(name, words, launch))
    four = Cluster(4, ("n1", "n2", "n3", "n4"), launcher="slurm")
    for whole, left in (
        # In their order, if Slurm did not choose them.
        (four, ["n3", "n1"]), (four, four.hosts), (four, ["n3.cluster"]), (THIS_MACHINE, ["n1"]), (ELSEWHERE, ["n1"]),
        (Cluster(2, ("n1", "n2"), launcher="slurm", is_elsewhere=True), ["n1"]),
    ):  # fmt: skip
        said.append(f"{whole} without {left}: {whole.without(left)}")
    assert_approved("launches.txt", "\n".join(said) + "\n")


CLUSTERS = {"here": THIS_MACHINE, "allocated": ALLOCATED, "elsewhere": ELSEWHERE}
ASKED = {
    "8 cuda here": ("", "gpus_per_node=4", "world_sizes=1,16"),
    "8 cuda allocated": (
        "", "gpus_per_node=4", "gpus_per_node=8 world_sizes=1,8,16", "gpus_per_node=8 world_sizes=1,17,32",
    ),
    "0 cpu here": ("", "gpus_per_node=6", "world_sizes=1,16"),
    "0 cpu allocated": ("", "gpus_per_node=6"),
    "8 cuda elsewhere": ("", "gpus_per_node=8 world_sizes=1,8,16", "gpus_per_node=8 world_sizes=1,17,32"),
    "0 cuda elsewhere": ("gpus_per_node=8",),
    "2 cuda elsewhere": ("gpus_per_node=8",),  # the GPUs of a login node do not count
    "8 cpu elsewhere": ("",),
    "2 cpu elsewhere": ("gpus_per_node=8",),
    "4 cuda allocated": ("gpus_per_node=8",),
    # Planning may not know how many there are.
    "0 cuda elsewhere planned": ("",),
    "0 cuda here planned": ("", "gpus_per_node=8"),
    "2 cuda here planned": ("",),
}  # fmt: skip


def test_what_is_here_is_used_and_of_nodes_elsewhere_the_user_says_how_many_they_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    said = list[str]()
    for name, every in ASKED.items():
        gpus, kind, cluster, *planned = name.split()
        for words in every:
            of: Any = settings(words), CLUSTERS[cluster], kind, int(gpus)
            said.append(tried(name, words, lambda: devices_per_node(*of, plans=bool(planned))))  # noqa: B023
    assert_approved("devices.txt", "\n".join(said) + "\n")


def test_a_driver_is_asked_by_a_process_of_its_own_and_one_that_hangs_is_given_up_with_its_node_and_gpu(
    machine: PlayedMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in machine.environment().items():
        monkeypatch.setenv(name, value)
    machine.play([A100])
    [found] = gpus_here(()).gpus
    assert (found.index, found.name) == (0, A100.name)
    machine.play([A100], {"nvmlDeviceGetHandleByIndex_v2": HANG})
    hangs = r"^NVML on \S+: the survey was not done within 3 s; .* driver for GPU 0; .* reboot it"
    with pytest.raises(SkuError, match=hangs):
        gpus_here((), limit_s=3.0)
