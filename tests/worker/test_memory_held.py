"""What a process says of its memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from pytest_ddpscale.run.records import RankMemory
from pytest_ddpscale.worker.device import CpuDevice, open_device
from pytest_ddpscale.worker.memory_held import be_ended_first, resident_memory

KIB, MIB = 2**10, 2**20


def test_the_peak_is_told_apart_from_pages_that_others_use_as_well(tmp_path: Path) -> None:
    status = "Name:\tpython\nVmPeak:\t 900 kB\nVmHWM:\t 500 kB\nVmRSS:\t 300 kB\nRssFile:\t 100 kB\nRssShmem:\t 20 kB\n"
    (tmp_path / "status").write_text(status)
    assert resident_memory(tmp_path) == RankMemory(own_bytes=380 * KIB, shared_bytes=120 * KIB)


def test_what_was_given_back_still_counts() -> None:
    before = CpuDevice().memory_held()
    hoard = bytearray(200 * MIB)
    hoard[::4096] = b"x" * len(hoard[::4096])
    held = len(hoard)
    del hoard
    after = CpuDevice().memory_held()
    assert after.own_bytes >= before.own_bytes
    assert after.own_bytes >= held
    assert after.total_bytes is None


def test_the_peak_of_a_block_is_not_that_of_whoever_launched_the_rank() -> None:
    hoard = bytearray(800 * MIB)
    hoard[::4096] = b"x" * len(hoard[::4096])
    rank = (
        "from pytest_ddpscale.worker.device import CpuDevice as Cpu;"
        "print(Cpu().time_steps(lambda: None, 1).peak_memory_bytes)"
    )
    peak = subprocess.run([sys.executable, "-c", rank], capture_output=True, text=True, check=True, timeout=120).stdout
    assert 50 * MIB < int(peak) < len(hoard)


def test_a_rank_is_the_first_that_the_kernel_ends(tmp_path: Path) -> None:
    be_ended_first(tmp_path)
    assert (tmp_path / "oom_score_adj").read_text() == "1000"
    be_ended_first(tmp_path / "nowhere")  # where it cannot be said it is left unsaid


def test_of_a_gpu_all_counts_that_is_in_use_with_torch_at_its_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {
        "device_count": 1, "set_device": None, "mem_get_info": (300, 1000), "memory_reserved": 500,
        "max_memory_reserved": 550, "get_arch_list": ["sm_80"],
        "get_device_properties": SimpleNamespace(name="Tested GPU", uuid="0", major=8, minor=0),
    }  # fmt: skip
    for name, value in said.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    # 700 are in use, 200 of them by NCCL, CUDA and others.
    assert open_device("cuda", 0).memory_held() == RankMemory(own_bytes=750, total_bytes=1000)
