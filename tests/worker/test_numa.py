"""A rank runs on the cores of its GPU's NUMA node, or on its share of all, and says why where it does not.

``python -m tests.worker.test_numa UUID RANKS SYSFS`` is one that has a thread, as CUDA has some before it is bound.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.worker.numa import allowed_cores, bind_to_gpu, cores_of, share_of_cores
from tests.forks.start import command
from tests.nvml_stand_in.fixtures import machine, nvml_library_directory
from tests.nvml_stand_in.machine import A100, PlayedMachine, uuid_of

__all__ = ["machine", "nvml_library_directory"]
FIRST, SECOND = "0000:10:00.0", "0000:11:00.0"  # the GPUs that the stand-in plays
USABLE = [*allowed_cores()]


def main() -> None:
    """As the module says."""
    uuid, ranks, kernel = sys.argv[1:]
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    binding = bind_to_gpu(uuid, int(ranks), Path(kernel))
    cores = [sorted(os.sched_getaffinity(int(task.name))) for task in Path("/proc/self/task").iterdir()]
    print(json.dumps([binding.node, binding.gpu and binding.gpu.address, cores, binding.note]))


def sysfs(directory: Path, nodes: dict[str, int], *cpulists: str) -> Path:
    """A machine that has these nodes, and its GPUs at them."""
    for address, node in nodes.items():
        device = directory / "bus/pci/devices" / address
        device.mkdir(parents=True)
        (device / "numa_node").write_text(f"{node}\n", encoding="ascii")
        (directory / "bus/pci/drivers/nvidia" / address).mkdir(parents=True)
    for number, cpulist in enumerate(cpulists):
        folder = directory / f"devices/system/node/node{number}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cpulist}\n", encoding="ascii")
    return directory


def test_the_kernel_says_which_cores_a_node_has(tmp_path: Path) -> None:
    kernel = sysfs(tmp_path, {}, "0-3", "4-5,12,14-15", "")
    assert [cores_of(node, kernel) for node in range(3)] == [{0, 1, 2, 3}, {4, 5, 12, 14, 15}, set()]


NOT_BOUND = "not bound to its GPU's NUMA node"


@pytest.mark.parametrize(
    ("nodes", "ranks", "bound", "note"),
    [
        ({SECOND: 0}, 1, 0, ""),
        ({SECOND: 0, FIRST: 1}, 2, 0, ""),
        (
            {SECOND: 0, FIRST: 0},
            2,
            None,
            "0: only 1 of {} usable cores there; expected at least 2, one for each of its",
        ),
        ({SECOND: 1}, 1, None, "1: only 0 of {} usable cores there"),
        ({SECOND: 2}, 1, None, "node2/cpulist"),
        ({SECOND: -1}, 1, None, ""),
        ({FIRST: 0}, 1, None, ""),
        ({}, 1, None, "node: NVMLError_NotFound"),
    ],
    ids=[
        "",
        "own-gpus-only",
        "too-few",
        "elsewhere",
        "not-described",
        "one-node",
        "kernel-without-nodes",
        "nvml-without-gpu",
    ],
)
def test_a_rank_and_its_threads_run_on_the_cores_of_its_gpu_if_there_is_one_for_each_gpu(
    machine: PlayedMachine, tmp_path: Path, nodes: dict[str, int], ranks: int, bound: int | None, note: str
) -> None:
    kernel = sysfs(tmp_path, nodes, ",".join(map(str, USABLE[:1])), "4096-4097")
    rank = command("tests.worker.test_numa", uuid_of(1) if nodes else "GPU-other", str(ranks), str(kernel))
    environment = machine.play([A100, A100]).environment()
    done = subprocess.run(rank, env=environment, stdout=subprocess.PIPE, check=True, timeout=60)
    *found, said = json.loads(done.stdout)
    assert found == [bound, SECOND if nodes else None, [USABLE if bound is None else USABLE[:1]] * 2]
    assert said.startswith(NOT_BOUND) == bool(note)
    assert note.format(len(USABLE)) in said


@given(st.sets(st.integers(0, 255), min_size=1), st.integers(1, 64))
def test_ranks_get_equal_shares_of_neighbouring_cores(cores: set[int], ranks: int) -> None:
    shares, share = [share_of_cores([*cores], rank, ranks) for rank in range(ranks)], len(cores) // ranks
    if share:
        assert {len(one) for one in shares} == {share}
        assert [core for one in shares for core in one] == sorted(cores)[: ranks * share]
    else:
        assert shares == [sorted(cores)] * ranks


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system cannot pin processes")
def test_a_process_stays_on_its_share() -> None:
    code = (
        "import os; from pytest_ddpscale.worker.numa import *; "
        "before = sorted(os.sched_getaffinity(0)); pin_to_cores(0, len(before)); "
        "assert os.sched_getaffinity(0) == {before[0]}"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


if __name__ == "__main__":
    main()
