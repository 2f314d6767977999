"""Ranks inherit what the user set, and nothing that would mislead torchrun."""

from __future__ import annotations

import pytest

from pytest_ddpscale.launch.environment import worker_environment

INHERITED = {"PATH": "/bin", "NCCL_DEBUG": "INFO", "CUDA_VISIBLE_DEVICES": "1", "PYTHONPATH": "src"}
LEFTOVERS = (
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
    "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PET_NNODES", "PET_NPROC_PER_NODE",
    "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE", "PYTEST_ADDOPTS", "PYTEST_CURRENT_TEST",
)  # fmt: skip


@pytest.mark.parametrize("name", LEFTOVERS)
def test_what_would_change_torchrun_in_silence_is_scrubbed(name: str) -> None:
    assert worker_environment({name: "7"}, "cuda") == worker_environment({}, "cuda")


@pytest.mark.parametrize("name", ["RANKED", "MY_RANK", "PETER", "SLURM_JOB_ID", "NCCL_IB_HCA", "MASTER"])
def test_names_that_only_resemble_them_are_kept(name: str) -> None:
    assert worker_environment({name: "7"}, "cuda")[name] == "7"


def test_a_gpu_gang_numbers_devices_as_nvml_does_whatever_the_user_set() -> None:
    environment = worker_environment(INHERITED | {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, "cuda")
    assert environment == INHERITED | {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
    }


def test_a_cpu_gang_talks_over_loopback() -> None:
    environment = worker_environment(INHERITED, "cpu")
    assert environment == INHERITED | {
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
    }


def test_threads_and_interface_of_the_user_are_kept() -> None:
    chosen = {"OMP_NUM_THREADS": "4", "GLOO_SOCKET_IFNAME": "eth0", "GLIBC_TUNABLES": "glibc.malloc.check=1"}
    assert worker_environment(chosen, "cpu") == chosen | {"PYTHONUNBUFFERED": "1"}


def test_the_parents_environment_is_left_alone() -> None:
    parent = {"RANK": "3", "PATH": "/bin"}
    worker_environment(parent, "cpu")
    assert parent == {"RANK": "3", "PATH": "/bin"}
