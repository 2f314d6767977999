"""What an installed torch was built for, whatever state it is in."""

from __future__ import annotations

import sys
import time
from importlib.metadata import version
from pathlib import Path

import pytest

from pytest_ddpscale.node.torch_facts import TorchFacts, ask_torch
from tests.node.fake_torch import CPU_BUILD, CUDA_BUILD, write_torch


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (CPU_BUILD, TorchFacts("2.8.0+cpu")),
        (CUDA_BUILD, TorchFacts("2.8.0+cu128", "12.8", "2.27.3", ("sm_80", "sm_90", "compute_120"))),
        (f"print('a site says hello')\n{CPU_BUILD}", TorchFacts("2.8.0+cpu")),
        (f"{CUDA_BUILD}\n_C._cuda_getArchFlags = lambda: None", TorchFacts("2.8.0+cu128", "12.8", "2.27.3")),
        ("raise ImportError('libcudart.so.12: cannot open shared object file')",
         TorchFacts(problem="ImportError: libcudart.so.12: cannot open shared object file")),
        ("import os\nos._exit(134)", TorchFacts(problem="ended with code 134")),
        ("", TorchFacts(problem="AttributeError: module 'torch' has no attribute '__version__'")),
        ("import os\nos._exit(0)", TorchFacts(problem="printed no valid facts: ''")),
    ],
)  # fmt: skip
def test_a_build(source: str, expected: TorchFacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(write_torch(tmp_path, source)))
    assert ask_torch()() == expected


def test_no_torch_at_all(tmp_path: Path) -> None:
    assert ask_torch((sys.executable, "-I", "-S"))() == TorchFacts(
        problem="ModuleNotFoundError: No module named 'torch'"
    )
    missing = str(tmp_path / "python")
    assert ask_torch((missing,))().problem == f"{missing} could not be started (No such file or directory)"


def test_an_import_that_hangs_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(write_torch(tmp_path, "import time\ntime.sleep(60)")))
    begun_s = time.monotonic()
    assert ask_torch(limit_s=0.3)() == TorchFacts(problem="did not answer within 0.3 s")
    assert time.monotonic() - begun_s < 10


@pytest.mark.parametrize(
    ("count", "gpus", "problem"),
    [
        ("return 2", 2, ""),
        ("import warnings; warnings.warn('Error 802: oh (Triggered internally at a.cpp:1.)'); return 0", 0,
         "Error 802: oh"),
        ("raise SystemExit(3)", None, "ended with code 3"),
        ("import time; time.sleep(60)", None, "did not answer within 3 s"),
    ],
)  # fmt: skip
def test_gpus_are_counted_by_cuda_and_a_failure_costs_no_other_fact(
    count: str, gpus: int | None, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(write_torch(tmp_path, CUDA_BUILD.replace("return 8", count))))
    expected = TorchFacts("2.8.0+cu128", "12.8", "2.27.3", ("sm_80", "sm_90", "compute_120"), gpus, problem)
    assert ask_torch(limit_s=3.0, counts_gpus=True)() == expected


def test_the_torch_that_is_installed_is_asked_without_being_imported_here() -> None:
    was_there = "torch" in sys.modules
    facts = ask_torch()()
    assert facts.problem == ""
    assert facts.torch is not None
    assert facts.torch.partition("+")[0] == version("torch").partition("+")[0]
    assert bool(facts.cuda) == bool(facts.arch_list)
    assert ("torch" in sys.modules) is was_there
