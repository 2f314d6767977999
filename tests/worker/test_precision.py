"""fp32 is computed in full, whatever was asked of torch before and by which of its ways."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.worker.arms import StudyArms
from pytest_ddpscale.worker.device import CpuDevice
from pytest_ddpscale.worker.training import compute_fp32_in_full
from pytest_ddpscale.worker.work import Matmul
from tests.builders.trained import CPU, TIMEOUT, study

BACKENDS: Any = torch.backends  # what it has differs by version


def allow_by_flags() -> None:
    BACKENDS.cuda.matmul.allow_tf32 = BACKENDS.cudnn.allow_tf32 = True


def allow_for_all() -> None:
    BACKENDS.fp32_precision = "tf32"


def allow_for_matrices() -> None:
    BACKENDS.cuda.matmul.fp32_precision = "tf32"


def allow_for_cudnn() -> None:
    BACKENDS.cudnn.fp32_precision = BACKENDS.cudnn.conv.fp32_precision = "tf32"


ALLOWING = [
    pytest.param(lambda: torch.set_float32_matmul_precision("medium"), id="matmul precision"),
    pytest.param(allow_by_flags, id="allow_tf32"),
    pytest.param(allow_for_all, id="all backends"),
    pytest.param(allow_for_matrices, id="matrices"),
    pytest.param(allow_for_cudnn, id="cuDNN"),
]


def assert_fp32_is_full() -> None:
    # torch.compile reads these, and torch refuses to answer where its settings disagree.
    assert (BACKENDS.cuda.matmul.allow_tf32, BACKENDS.cudnn.allow_tf32) == (False, False)
    assert torch.get_float32_matmul_precision() == "highest"
    settings = (BACKENDS.cuda.matmul, BACKENDS.cudnn.conv, BACKENDS.cudnn.rnn, BACKENDS)
    assert [one.fp32_precision for one in settings] == ["ieee"] * len(settings)


@pytest.mark.parametrize("allow", ALLOWING)
def test_every_way_to_allow_tf32_is_taken_back(allow: Callable[[], None]) -> None:
    allow()
    compute_fp32_in_full()
    assert_fp32_is_full()


def test_a_study_computes_fp32_in_full(gloo_of_one: None) -> None:
    torch.set_float32_matmul_precision("medium")
    StudyArms(study(Arm("alone", 1, 2)), CpuDevice(), rank=0, layout=Layout(1, 1), timeout=TIMEOUT).close()
    assert_fp32_is_full()


def test_a_matrix_product_computes_fp32_in_full() -> None:
    torch.set_float32_matmul_precision("medium")
    Matmul("fp32", CPU, 128)
    assert_fp32_is_full()


def test_a_rank_takes_tf32_from_its_environment_before_a_library_reads_it() -> None:
    overrides = {"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1", "NVIDIA_TF32_OVERRIDE": "1"}
    environ = os.environ | overrides | {"CUBLASLT_WORKSPACE_SIZE": "1024"}
    code = (
        "import os; from pytest_ddpscale.worker.__main__ import recorded; import torch; "
        "print(torch.get_float32_matmul_precision(), *(name for name in os.environ if 'TF32' in name)); "
        "print(recorded(os.environ)['CUBLASLT_WORKSPACE_SIZE'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=120, check=True
    )
    *notes, settings, workspace = done.stdout.splitlines()
    assert (settings, workspace) == ("highest", "1024")
    assert notes == [f"{name}=1 is ignored: fp32 is computed in full" for name in overrides]
