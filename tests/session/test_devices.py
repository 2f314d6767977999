"""How many ranks fit a node, here and on nodes that are elsewhere."""

from __future__ import annotations

import os
from typing import Any

import pytest

from pytest_ddpscale.errors import OptionError, SkuError
from pytest_ddpscale.launch.launcher import Cluster
from pytest_ddpscale.session.open import THIS_MACHINE, devices_per_node, gpus_here
from pytest_ddpscale.settings import settings_from
from tests.approved import assert_approved
from tests.nvml_stand_in.fixtures import machine, nvml_library_directory
from tests.nvml_stand_in.machine import A100, HANG, PlayedMachine

__all__ = ["machine", "nvml_library_directory"]
ELSEWHERE = Cluster(2, launcher="slurm", is_elsewhere=True)
ALLOCATED = Cluster(2, ("n1", "n2"), launcher="slurm")


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
            settings = settings_from(
                {f"ddp_{word.split('=')[0]}": word.split("=")[1] for word in words.split()}, {}, {}
            )
            of: Any = CLUSTERS[cluster], kind, int(gpus)
            try:
                found = str(devices_per_node(settings, *of, plans=bool(planned)))
            except OptionError as error:
                found = str(error)
            said.append(f"{name}, {words or 'no option'}: {found}")
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
