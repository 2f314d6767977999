"""A rank runs on the cores of its GPU's NUMA node, or on its share of all, and says why where it does not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.telemetry.nvml import DriverPlace
from pytest_ddpscale.worker import numa
from pytest_ddpscale.worker.numa import Binding, bind_to_gpu, cores_of, node_of, share_of_cores
from tests.nvml_stand_in.fixtures import machine, nvml_library_directory
from tests.nvml_stand_in.machine import A100, PlayedMachine, uuid_of

__all__ = ["machine", "nvml_library_directory"]
ADDRESS = "0000:11:00.0"  # of the second GPU that the stand-in plays
BIND = """
import dataclasses, json, os, sys, threading
from pathlib import Path
from pytest_ddpscale.worker.numa import bind_to_gpu
wait = threading.Event()
threading.Thread(target=wait.wait, daemon=True).start()  # as CUDA has some before anything is bound
binding = bind_to_gpu(sys.argv[1], int(sys.argv[3]), Path(sys.argv[2]))
cores = [sorted(os.sched_getaffinity(int(task))) for task in os.listdir("/proc/self/task")]
print(json.dumps([dataclasses.asdict(binding), cores]))
"""


def sysfs(directory: Path, node: int, cpulists: dict[int, str], first: int = 0) -> Path:
    """A machine whose second GPU hangs on `node`, and its first one on `first`."""
    for address, its_node in ((ADDRESS, node), ("0000:10:00.0", first)):
        device, driver = directory / "bus/pci/devices" / address, directory / "bus/pci/drivers/nvidia"
        (driver / address).mkdir(parents=True)
        device.mkdir(parents=True)
        (device / "numa_node").write_text(f"{its_node}\n", encoding="ascii")
    for number, cpulist in cpulists.items():
        folder = directory / "devices/system/node" / f"node{number}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cpulist}\n", encoding="ascii")
    return directory


def test_the_kernel_says_on_which_node_a_gpu_is_and_which_cores_that_has(tmp_path: Path) -> None:
    kernel = sysfs(tmp_path, 1, {0: "0-3", 1: "4-5,12,14-15", 2: ""})
    assert node_of(ADDRESS, kernel) == 1
    assert [cores_of(node, kernel) for node in range(3)] == [{0, 1, 2, 3}, {4, 5, 12, 14, 15}, set()]


def bound(machine: PlayedMachine, kernel: Path, ranks: int = 1) -> Any:
    machine.play([A100, A100])
    return json.loads(machine.run_python(BIND, uuid_of(1), str(kernel), str(ranks)))


def test_a_rank_and_its_threads_run_on_the_cores_of_its_gpu(machine: PlayedMachine, tmp_path: Path) -> None:
    core = min(os.sched_getaffinity(0))
    binding, cores = bound(machine, sysfs(tmp_path, 0, {0: str(core)}))
    assert cores == [[core], [core]]
    assert (binding["node"], binding["note"]) == (0, "")


def test_a_rank_whose_job_has_no_cores_there_stays_where_it_is(machine: PlayedMachine, tmp_path: Path) -> None:
    binding, cores = bound(machine, sysfs(tmp_path, 1, {0: "0", 1: "4096-4097"}))
    assert {tuple(one) for one in cores} == {tuple(sorted(os.sched_getaffinity(0)))}
    assert binding["node"] is None
    assert binding["note"].startswith("not bound to its GPU's NUMA node 1: only 0 of ")


@pytest.mark.parametrize(("first", "node"), [(1, 0), (0, None)])
def test_a_node_needs_a_core_for_each_of_its_own_gpus(
    first: int, node: int | None, machine: PlayedMachine, tmp_path: Path
) -> None:
    core = str(min(os.sched_getaffinity(0)))
    binding, _ = bound(machine, sysfs(tmp_path, 0, {0: core}, first), ranks=2)
    assert binding["node"] == node
    assert binding["note"].endswith("expected at least 2, one for each of its GPUs") is (node is None)


@pytest.mark.parametrize(("address", "node"), [(ADDRESS, -1), ("0000:99:00.0", 0)])
def test_where_the_kernel_knows_of_no_nodes_there_is_nothing_to_bind_and_to_tell(
    address: str, node: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = DriverPlace(3, f"0000{address}", address)
    monkeypatch.setattr(numa, "driver_place", lambda uuid: gpu)
    assert bind_to_gpu("GPU-1", 1, sysfs(tmp_path, node, {0: "0"})) == Binding(gpu=gpu)


def test_a_node_that_the_kernel_does_not_describe_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numa, "driver_place", lambda uuid: DriverPlace(3, f"0000{ADDRESS}", ADDRESS))
    assert "node1/cpulist" in bind_to_gpu("GPU-1", 1, sysfs(tmp_path, 1, {0: "0"})).note


def test_a_gpu_that_nvml_does_not_know_leaves_its_rank_unbound(machine: PlayedMachine) -> None:
    code = "from pytest_ddpscale.worker.numa import *; print(bind_to_gpu('GPU-other', 1))"
    assert "not bound to its GPU's NUMA node: NVMLError_NotFound" in machine.play([A100]).run_python(code)


@given(st.sets(st.integers(0, 255), min_size=1), st.integers(1, 64))
def test_ranks_get_equal_shares_that_do_not_overlap(cores: set[int], ranks: int) -> None:
    shares = [share_of_cores(sorted(cores), rank, ranks) for rank in range(ranks)]
    if len(cores) < ranks:
        assert all(set(share) == cores for share in shares)
    else:
        assert {len(share) for share in shares} == {len(cores) // ranks}
        assert len({core for share in shares for core in share}) == ranks * (len(cores) // ranks)


def test_neighbouring_cores_belong_to_one_rank() -> None:
    assert share_of_cores([8, 9, 10, 11], 1, 2) == [10, 11]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system cannot pin processes")
def test_a_process_stays_on_its_share() -> None:
    code = (
        "import os; from pytest_ddpscale.worker.numa import *; "
        "before = sorted(os.sched_getaffinity(0)); pin_to_cores(0, len(before)); "
        "assert os.sched_getaffinity(0) == {before[0]}"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
