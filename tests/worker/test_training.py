"""The training step: it trains, in every precision and memory format."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.worker.training import Batch, Trainer, build_model, new_scaler
from tests.builders.trained import CPU, TINY, TRANSFORMER
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
    assert batch.images.is_contiguous(memory_format=torch.channels_last)


def test_a_vision_transformer_takes_the_image_size_of_the_workload() -> None:
    _, step, _ = trainer_for(TRANSFORMER)
    step()


def test_refilling_draws_new_images_and_labels_in_range() -> None:
    batch = Batch(replace(TINY, batch_size=64), 64, CPU, seed=1)
    images, labels = batch.images.clone(), batch.labels.clone()
    batch.refill()
    assert not torch.equal(images, batch.images)
    assert not torch.equal(labels, batch.labels)
    assert int(batch.labels.min()) >= 0
    assert int(batch.labels.max()) < 10
    assert abs(float(batch.images.mean())) < 0.1
    assert float(batch.images.std()) == pytest.approx(1.0, abs=0.1)


def test_only_fp16_scales_its_loss() -> None:
    assert new_scaler(TINY, CPU) is None
    assert new_scaler(replace(TINY, precision="bf16"), CPU) is None
    assert isinstance(new_scaler(replace(TINY, precision="fp16"), CPU), torch.amp.GradScaler)


def test_a_model_that_torchvision_does_not_have_is_named() -> None:
    with pytest.raises(ValueError, match="resnet9000"):
        build_model(with_settings(TINY, model="resnet9000"), CPU)
