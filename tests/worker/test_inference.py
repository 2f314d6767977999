"""Forward passes by themselves: nothing is trained by them, and nothing disturbs training beside them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.study import STEPS_BEFORE_TIMING
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.worker import replica
from pytest_ddpscale.worker.arms import StudyArms
from pytest_ddpscale.worker.device import CpuDevice
from pytest_ddpscale.worker.inference import Inference
from pytest_ddpscale.worker.model import build_model, checksum, take_statistics
from pytest_ddpscale.worker.training import Batch
from tests.builders.trained import CPU, TIMEOUT, TINY, TRANSFORMER, study
from tests.builders.workloads import with_settings

INFER, ALONE = Arm("infer", 1, 2), Arm("alone", 1, 2)


def arms_of(*arms: Arm, workload: Workload = TINY) -> StudyArms:
    return StudyArms(study(*arms, workload=workload), CpuDevice(), rank=0, layout=Layout(1, 1), timeout=TIMEOUT)


class Watched(CpuDevice):
    """Takes note, in each step, of the model's mode, and of whether gradients could be had."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.seen: list[tuple[bool, torch.dtype, bool]] = []
        model.register_forward_hook(self._note)

    def _note(self, model: nn.Module, inputs: tuple[torch.Tensor, ...], outputs: torch.Tensor) -> None:
        self.seen.append((model.training, outputs.dtype, outputs.is_inference()))


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_a_step_is_a_forward_pass_as_a_model_is_served(precision: str, dtype: torch.dtype) -> None:
    workload = replace(TINY, precision=precision)  # type: ignore[arg-type]
    model = build_model(workload, CPU)
    take_statistics(model, workload, CPU)
    device = Watched(model)
    timing = Inference(model, workload, device).time_block(INFER, Batch(workload, 2, CPU, seed=1), 4)
    assert len(timing.step_s) == 4
    passes = device.seen[-(STEPS_BEFORE_TIMING + 4) :]
    assert set(passes) == {(False, dtype, True)}, "evaluation mode, the workload's precision, no graph for gradients"
    assert model.training, "as it was"


@pytest.mark.parametrize("workload", [TINY, TRANSFORMER], ids=lambda workload: workload.family.model)
def test_it_changes_no_weight_and_leaves_nothing_to_compare(gloo_of_one: None, workload: Workload) -> None:
    arms = arms_of(INFER, workload=workload)
    before = checksum(arms.model.parameters())
    timing = arms.time_block(INFER, 3)
    assert checksum(arms.model.parameters()) == before
    assert (timing.skipped_steps, timing.parameters_checksum) == (None, None)
    assert all(parameter.grad is None for parameter in arms.model.parameters())
    arms.close()


def test_training_beside_it_ends_with_the_same_weights(gloo_of_one: None) -> None:
    ended = []
    for order in ([ALONE, ALONE], [INFER, ALONE, INFER, ALONE]):
        arms = arms_of(ALONE, replace(INFER, batch_size=3))  # of another batch, which has images of its own
        for arm in order:
            arms.time_block(replace(arm, batch_size=3) if arm == INFER else arm, 3)
        ended.append(checksum(arms.model.parameters()))
        arms.close()
    assert ended[0] == ended[1]


def test_a_study_that_only_infers_makes_no_optimizer(gloo_of_one: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose momentum would take memory from the batch."""
    made: list[nn.Module] = []
    original = replica.Weights.__init__

    def remember(weights: replica.Weights, model: nn.Module, rate: float, **options: bool) -> None:
        made.append(model)
        original(weights, model, rate, **options)

    monkeypatch.setattr(replica.Weights, "__init__", remember)
    arms = arms_of(INFER, ALONE)
    arms.time_block(INFER, 3)
    assert not made
    arms.time_block(ALONE, 3)
    assert made == [arms.model]
    arms.close()


def test_outputs_that_are_no_numbers_are_an_error(gloo_of_one: None) -> None:
    arms = arms_of(INFER)
    arms.time_block(INFER, 3)
    with torch.no_grad():
        list(arms.model.parameters())[-1][0] = float("nan")  # the bias of one class
    with pytest.raises(
        RuntimeError, match=r"^2 of 20 outputs are not finite: inference computes nonsense on this rank"
    ):
        arms.time_block(INFER, 3)
    arms.close()


def test_an_untrained_network_does_not_grow_out_of_half_precision() -> None:
    """Of ResNet-152 the largest output was 1.2e5 with the statistics that it is made with; fp16 ends at 6.6e4."""
    workload = with_settings(TINY, model="resnet152", num_classes=1000)
    model = build_model(workload, CPU)
    images = Batch(workload, 2, CPU, seed=1).inputs

    def largest() -> float:
        model.eval()
        with torch.inference_mode():
            return float(model(images).abs().max())

    as_made = largest()
    take_statistics(model, workload, CPU)
    assert as_made > torch.finfo(torch.float16).max > 100 * largest()
    assert {layer.momentum for layer in model.modules() if isinstance(layer, _BatchNorm)} == {0.1}
