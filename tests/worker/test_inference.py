"""Forward passes by themselves, on one device or on several, which are all this CPU: outputs as of the single model,
nothing is trained by them, and nothing disturbs training beside them.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.study import STEPS_BEFORE_TIMING
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.worker import replica
from pytest_ddpscale.worker.inference import InContext, SplitModel, devices_of_node, replicate, scatter
from pytest_ddpscale.worker.model import build_model, checksum, take_statistics
from pytest_ddpscale.worker.training import Batch
from tests.builders.trained import CPU, TINY, TRANSFORMER, arms_of
from tests.builders.workloads import with_settings
from tests.rows import rows

DEVICES = [CPU] * 3
ALONE, INFER = Arm("alone", 1, 2), Arm("infer", 1, 2)
SPLIT = [Arm(kind, 1, 7, devices=3) for kind in ("vanilla_parallel", "parallel_apply")]
BF16 = replace(TINY, precision="bf16")


def split_model(model: nn.Module, kind: str = "vanilla_parallel") -> SplitModel:
    return SplitModel(kind, model, DEVICES, torch.no_grad)


def watched(model: nn.Module) -> list[Any]:
    """Of each pass, the model's mode, and what is computed."""
    seen = list[Any]()
    model.register_forward_hook(
        lambda model, inputs, outputs: seen.append(
            (model.training, outputs.dtype, outputs.requires_grad, outputs.is_inference())
        )
    )
    return seen


@rows("workload", [TINY, BF16, TRANSFORMER])
def test_a_step_is_a_forward_pass_as_a_model_is_served_and_trains_nothing(workload: Workload) -> None:
    dtype = torch.bfloat16 if workload == BF16 else torch.float32
    for arm in (INFER, *SPLIT):
        arms, threads = arms_of(arm, workload=workload), threading.active_count()
        before, seen = checksum(arms.model.parameters()), watched(arms.model)
        timing = arms.time_block(arm, 4)
        assert len(timing.step_s) == 4
        assert seen[0][0] == (workload != TRANSFORMER), "statistics of batch normalisation come first"
        assert set(seen[-STEPS_BEFORE_TIMING - 4 :]) == {(False, dtype, False, arm == INFER)}
        assert (timing.skipped_steps, timing.parameters_checksum) == (None, None)
        assert checksum(arms.model.parameters()) == before
        assert all(parameter.grad is None for parameter in arms.model.parameters())
        assert arms.model.training, "as it was"
        assert (threading.active_count() > threads) == arm.is_split
        arms.close()
        assert threading.active_count() == threads


def test_training_beside_it_ends_with_the_same_weights() -> None:
    ended, other = [], replace(INFER, batch_size=3)  # which has images of its own
    for order in ([ALONE, ALONE], [other, ALONE, other, ALONE]):
        arms = arms_of(ALONE, other)
        for arm in order:
            arms.time_block(arm, 3)
        ended.append(checksum(arms.model.parameters()))
    assert ended[0] == ended[1]


def test_a_study_that_only_infers_makes_no_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose momentum would take memory from the batch."""
    monkeypatch.delattr(replica, "Weights")
    arms = arms_of(INFER, ALONE)
    arms.time_block(INFER, 3)
    with pytest.raises(NameError):
        arms.time_block(ALONE, 3)


def test_outputs_that_are_no_numbers_are_an_error() -> None:
    arms = arms_of(INFER, *SPLIT)
    with torch.no_grad():
        list(arms.model.parameters())[-1][0] = float("nan")  # the bias of one class
    for arm, wrong in zip((INFER, *SPLIT), ("2 of 20", "7 of 70", "7 of 70"), strict=True):
        expected = f"^{wrong} outputs are not finite: inference computes nonsense on this rank"
        with pytest.raises(RuntimeError, match=expected):
            arms.time_block(arm, 3)


def test_an_untrained_network_does_not_grow_out_of_half_precision() -> None:
    """Of ResNet-152 the largest output was 1.2e5 with the statistics that it is made with; fp16 ends at 6.6e4."""
    workload = with_settings(TINY, model="resnet152", num_classes=1000)
    model = build_model(workload, CPU).eval()
    images = Batch(workload, 2, CPU, seed=1).inputs
    with torch.no_grad():
        as_made = model(images).abs().max()
        take_statistics(model, workload, CPU)
        assert as_made > torch.finfo(torch.float16).max > 100 * model(images).abs().max()
    assert {layer.momentum for layer in model.modules() if isinstance(layer, _BatchNorm)} == {0.1}


@rows("workload", [TINY, TRANSFORMER, with_settings(TINY, model="squeezenet1_1", classifier_hidden=8)])
def test_outputs_of_several_devices_are_those_of_the_single_model_in_its_order(workload: Workload) -> None:
    model = build_model(workload, CPU).eval()
    take_statistics(model, workload, CPU)
    for count in (1, 2, 3, 7):
        images = Batch(TINY, count, CPU, seed=1).inputs
        (found,) = split_model(model)(images)
        with torch.no_grad():
            torch.testing.assert_close(found, model(images), rtol=1e-3, atol=1e-3)
    assert list(map(len, scatter(images, DEVICES))) == [3, 3, 1]
    before = [tensor.clone() for tensor in model.state_dict().values()]

    def assert_equal(one: nn.Module) -> None:
        assert all(map(torch.equal, one.state_dict().values(), before))

    first, *copies = replicate(model, DEVICES)
    assert first is model
    for other in copies:
        assert_equal(other)
        for tensor in other.state_dict().values():
            tensor.zero_()
    assert_equal(model)  # of which copies share nothing


def test_weights_that_change_are_copied_anew_in_the_next_pass() -> None:
    layer = nn.Linear(2, 1, bias=False)
    split = split_model(layer)
    for weight in (1.0, 2.0):
        nn.init.constant_(layer.weight, weight)
        (outputs,) = split(torch.ones(6, 2))
        assert outputs.flatten().tolist() == [2 * weight] * 6


def test_all_devices_work_at_the_same_time_in_modes_of_their_own() -> None:
    """Each waits for the others: one after the other they would never meet."""
    meeting = threading.Barrier(3, timeout=20)

    class Meets(nn.Module):
        def forward(self, part: torch.Tensor) -> torch.Tensor:
            meeting.wait()
            return torch.full_like(part, float(torch.is_grad_enabled()))

    (outputs,) = split_model(Meets())(torch.ones(3))
    assert outputs.tolist() == [0.0] * 3


def test_what_a_thread_raises_is_raised() -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        split_model(nn.Linear(2, 1))(torch.ones(3, 3))


def test_modes_that_a_model_enters_itself_are_those_of_any_thread() -> None:
    """nn.DataParallel's threads would compute bf16's passes in fp16."""
    model = InContext(nn.Linear(2, 2), lambda: torch.autocast("cpu", dtype=torch.bfloat16))
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(model, torch.ones(1, 2)).result().dtype == torch.bfloat16


def test_too_few_gpus_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match=r"nn\.DataParallel needs at least two GPUs; on a CPU it only calls"):
        split_model(nn.Identity(), "data_parallel")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    own = torch.device("cuda", 2)
    assert [device.index for device in devices_of_node(own, 3)] == [2, 0, 1], "its own first"
    with pytest.raises(RuntimeError, match="one process drives 8 GPUs, but this rank sees 4; expected all"):
        devices_of_node(own, 8)
