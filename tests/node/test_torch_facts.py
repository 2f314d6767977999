"""What an installed torch was built for, whatever state it is in."""

from __future__ import annotations

import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpscale.node.torch_facts import ask_torch
from tests.node.fake_torch import CPU_BUILD, CUDA_BUILD, write_torch

CPU = {"versions": {"torch": "2.8.0+cpu", "cuda": None, "nccl": None}, "arch_list": []}
CUDA = {
    "versions": {"torch": "2.8.0+cu128", "cuda": "12.8", "nccl": "2.27.3"},
    "arch_list": ["sm_80", "sm_90", "compute_120"],
}


def without_torch(problem: str) -> dict[str, Any]:
    return {"torch_problem": problem}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (CPU_BUILD, CPU),
        (CUDA_BUILD, CUDA),
        (f"print('a site says hello')\n{CPU_BUILD}", CPU),
        (f"{CUDA_BUILD}\n_C._cuda_getArchFlags = lambda: None", CUDA | {"arch_list": []}),
        ("raise ImportError('libcudart.so.12: cannot open shared object file')",
         without_torch("ImportError: libcudart.so.12: cannot open shared object file")),
        ("print('{\"a site\": \"logs JSON\"}')\nraise ImportError('libcudart.so.12')",
         without_torch("ImportError: libcudart.so.12")),
        ("import os\nos._exit(134)", without_torch("ended with code 134")),
        ("", without_torch("AttributeError: module 'torch' has no attribute '__version__'")),
        ("import os\nos._exit(0)", without_torch("printed no valid facts: ''")),
    ],
)  # fmt: skip
def test_a_build(source: str, expected: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(write_torch(tmp_path, source)))
    assert ask_torch()() == expected


def test_no_torch_at_all(tmp_path: Path) -> None:
    assert ask_torch((sys.executable, "-I", "-S"))() == without_torch("ModuleNotFoundError: No module named 'torch'")
    missing = str(tmp_path / "python")
    assert ask_torch((missing,))() == without_torch(f"{missing} could not be started (No such file or directory)")


def test_an_import_that_hangs_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(write_torch(tmp_path, "import time\ntime.sleep(60)")))
    begun_s = time.monotonic()
    assert ask_torch(limit_s=0.3)() == without_torch("did not answer within 0.3 s")
    assert time.monotonic() - begun_s < 10


@pytest.mark.parametrize(
    ("count", "counted"),
    [
        ("return 2", {"torch_gpus": 2, "cuda_problem": ""}),
        ("import warnings; warnings.warn('Error 802: oh (Triggered internally at a.cpp:1.)'); return 0",
         {"torch_gpus": 0, "cuda_problem": "Error 802: oh"}),
        ("raise SystemExit(3)", {"cuda_problem": "ended with code 3"}),
        ("import time; time.sleep(60)", {"cuda_problem": "did not answer within 3 s"}),
    ],
)  # fmt: skip
def test_gpus_are_counted_by_cuda_and_a_failure_costs_no_other_fact(
    count: str, counted: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(write_torch(tmp_path, CUDA_BUILD.replace("return 8", count))))
    assert ask_torch(limit_s=3.0, counts_gpus=True)() == CUDA | counted


def test_the_torch_that_is_installed_is_asked_without_being_imported_here() -> None:
    was_there = "torch" in sys.modules
    found = ask_torch()()
    assert "torch_problem" not in found
    assert found["versions"]["torch"].partition("+")[0] == version("torch").partition("+")[0]
    assert bool(found["versions"]["cuda"]) == bool(found["arch_list"])
    assert ("torch" in sys.modules) is was_there
