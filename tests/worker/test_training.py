"""A training step: its data, its precision, and what it refuses."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.worker.arms import StudyArms
from pytest_ddpscale.worker.device import CpuDevice
from pytest_ddpscale.worker.model import build_model
from pytest_ddpscale.worker.training import Batch, Trainer, compute_fp32_in_full, new_scaler
from pytest_ddpscale.worker.work import Matmul
from tests.builders.trained import CPU, TIMEOUT, TINY, TRANSFORMER, study
from tests.builders.workloads import with_settings


def trainer_for(workload: Workload) -> tuple[torch.nn.Module, Trainer, Batch]:
    model = build_model(workload, CPU)
    batch = Batch(workload, workload.batch_size, CPU, seed=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    return model, Trainer(model, optimizer, [batch], workload, None), batch


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_step_changes_the_weights_and_leaves_them_finite(precision: str) -> None:
    model, step, _ = trainer_for(replace(TINY, precision=precision))  # type: ignore[arg-type]
    before = [parameter.detach().clone() for parameter in model.parameters()]
    step()
    after = list(model.parameters())
    assert any(not torch.equal(a, b) for a, b in zip(after, before, strict=True))
    assert all(torch.isfinite(parameter).all() for parameter in after)


def test_weights_stay_finite_over_many_steps_on_random_labels() -> None:
    model, step, _ = trainer_for(TINY)
    for _ in range(15):
        step()
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())


def test_a_loss_that_is_no_number_is_an_error() -> None:
    model, step, _ = trainer_for(TINY)
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    step()
    with pytest.raises(RuntimeError, match="the loss is nan: training is numerically dead"):
        step.check_loss()


def test_ranks_start_from_the_same_weights() -> None:
    one, other = build_model(TINY, CPU), build_model(TINY, CPU)
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_channels_last_holds_for_weights_and_images() -> None:
    workload = with_settings(TINY, memory_format="channels_last")
    model, _, batch = trainer_for(workload)
    weights = [p for p in model.parameters() if p.dim() == 4 and p.shape[1] > 1 and p.shape[2] > 1]
    assert weights
    assert all(w.is_contiguous(memory_format=torch.channels_last) for w in weights)
    assert batch.inputs.is_contiguous(memory_format=torch.channels_last)


def test_a_vision_transformer_takes_the_image_size_of_the_workload() -> None:
    _, step, _ = trainer_for(TRANSFORMER)
    step()


def test_refilling_draws_new_images_and_labels_in_range() -> None:
    batch = Batch(replace(TINY, batch_size=64), 64, CPU, seed=1)
    images, labels = batch.inputs.clone(), batch.targets.clone()
    batch.refill()
    assert not torch.equal(images, batch.inputs)
    assert not torch.equal(labels, batch.targets)
    assert int(batch.targets.min()) >= 0
    assert int(batch.targets.max()) < 10
    assert abs(float(batch.inputs.mean())) < 0.1
    assert float(batch.inputs.std()) == pytest.approx(1.0, abs=0.1)


def test_only_fp16_scales_its_loss() -> None:
    assert new_scaler(TINY, CPU) is None
    assert new_scaler(replace(TINY, precision="bf16"), CPU) is None
    assert isinstance(new_scaler(replace(TINY, precision="fp16"), CPU), torch.amp.GradScaler)


def test_a_model_that_torchvision_does_not_have_is_named() -> None:
    with pytest.raises(ValueError, match="resnet9000"):
        build_model(with_settings(TINY, model="resnet9000"), CPU)


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
