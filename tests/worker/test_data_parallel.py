"""One process on several devices: the same outputs, real copies, and errors of threads; devices are all this CPU."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from torch import nn

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.worker.arms import StudyArms
from pytest_ddpscale.worker.device import CpuDevice
from pytest_ddpscale.worker.inference import (
    InContext,
    SplitModel,
    devices_of_node,
    replicate,
    scatter,
)
from pytest_ddpscale.worker.model import build_model, checksum, take_statistics
from pytest_ddpscale.worker.training import Batch
from tests.builders.trained import CPU, TIMEOUT, TINY, TRANSFORMER, study
from tests.builders.workloads import with_settings

DEVICES = [CPU] * 3
VANILLA, APPLY = (Arm(kind, 1, 7, devices=3) for kind in ("vanilla_parallel", "parallel_apply"))


@pytest.fixture(
    scope="module", params=[TINY, TRANSFORMER, with_settings(TINY, classifier_hidden=8)], ids=["cnn", "vit", "frozen"]
)
def model(request: pytest.FixtureRequest) -> nn.Module:
    built = build_model(request.param, CPU)
    take_statistics(built, request.param, CPU)
    return built.eval()


@pytest.fixture
def split() -> Iterator[SplitModel]:
    made = SplitModel("vanilla_parallel", nn.Identity(), DEVICES, torch.no_grad)
    yield made
    made.close()


def images(count: int) -> torch.Tensor:
    return Batch(TINY, count, CPU, seed=1).inputs


@pytest.mark.parametrize("count", [1, 2, 3, 7], ids="{} images".format)
def test_outputs_are_those_of_the_single_model_in_its_order(model: nn.Module, count: int) -> None:
    split = SplitModel("vanilla_parallel", model, DEVICES, torch.no_grad)
    with torch.no_grad():
        expected = model(images(count))
    (found,) = split(images(count))
    split.close()
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def test_each_other_device_has_a_copy_of_every_tensor_and_the_model_stays_as_it_was(model: nn.Module) -> None:
    before = checksum(model.parameters())
    first, *copies = replicate(model, DEVICES)
    assert first is model
    ours = {tensor.data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    for other in copies:
        theirs = [tensor for _, tensor in sorted(other.state_dict().items())]
        assert not ours & {tensor.data_ptr() for tensor in theirs}
        assert all(torch.equal(a, b) for a, (_, b) in zip(theirs, sorted(model.state_dict().items()), strict=True))
        for tensor in theirs:
            tensor.zero_()
    assert checksum(model.parameters()) == before
    assert model.state_dict().keys() == copies[0].state_dict().keys()


def test_weights_that_change_are_copied_anew_in_the_next_pass() -> None:
    layer = nn.Linear(2, 1, bias=False)
    split = SplitModel("vanilla_parallel", layer, DEVICES, torch.no_grad)
    for weight in (1.0, 2.0):
        nn.init.constant_(layer.weight, weight)
        (outputs,) = split(torch.ones(6, 2))
        assert outputs.flatten().tolist() == [2 * weight] * 6
    split.close()


def test_a_batch_is_scattered_evenly_in_order() -> None:
    parts = scatter(torch.arange(7), DEVICES)
    assert [part.tolist() for part in parts] == [[0, 1, 2], [3, 4, 5], [6]]


def test_all_devices_work_at_the_same_time_in_modes_of_their_own(split: SplitModel) -> None:
    """Each waits for the others: one after the other they would never meet."""
    meeting = threading.Barrier(3, timeout=20)

    class Meets(nn.Module):
        def forward(self, part: torch.Tensor) -> torch.Tensor:
            meeting.wait()
            return torch.full_like(part, float(torch.is_grad_enabled()))

    assert torch.cat(split.applied([Meets()] * 3, scatter(torch.ones(3), DEVICES))).tolist() == [0.0] * 3


def test_what_a_thread_raises_is_raised(split: SplitModel) -> None:
    class Breaks(nn.Module):
        def forward(self, part: torch.Tensor) -> torch.Tensor:
            raise ValueError(f"no images of {part.tolist()}")

    with pytest.raises(ValueError, match="no images of"):
        split.applied([nn.Identity(), Breaks(), nn.Identity()], scatter(torch.ones(3), DEVICES))


def test_modes_that_a_model_enters_itself_are_those_of_any_thread() -> None:
    """nn.DataParallel's threads would compute bf16's passes in fp16."""
    model = InContext(nn.Linear(2, 2), lambda: torch.autocast("cpu", dtype=torch.bfloat16))
    with ThreadPoolExecutor(1) as thread, torch.autocast("cpu", dtype=torch.bfloat16):
        assert thread.submit(nn.Linear(2, 2), torch.ones(1, 2)).result().dtype == torch.float32
        assert thread.submit(model, torch.ones(1, 2)).result().dtype == torch.bfloat16


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_all_arms_infer_in_the_workloads_precision(gloo_of_one: None, precision: str) -> None:
    workload = replace(TINY, precision=precision)  # type: ignore[arg-type]
    arms = StudyArms(study(VANILLA, APPLY, workload=workload), CpuDevice(), 0, Layout(1, 1), TIMEOUT)
    seen: list[torch.dtype] = []
    arms.model.register_forward_hook(lambda model, inputs, outputs: seen.append(outputs.dtype))
    for arm in (VANILLA, APPLY):
        arms.time_block(arm, 3)
    arms.close()
    assert set(seen[-12:]) == {torch.float32 if precision == "fp32" else torch.bfloat16}


def test_native_needs_gpus() -> None:
    with pytest.raises(RuntimeError, match=r"nn\.DataParallel needs at least two GPUs; on a CPU it only calls"):
        SplitModel("data_parallel", nn.Identity(), DEVICES, torch.no_grad)


def test_a_rank_that_sees_fewer_gpus_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    own = torch.device("cuda", 2)
    assert [device.index for device in devices_of_node(own, 3)] == [2, 0, 1], "its own first"
    with pytest.raises(RuntimeError, match="one process drives 8 GPUs, but this rank sees 4; expected all"):
        devices_of_node(own, 8)


def test_arms_time_all_of_it_and_train_nothing(gloo_of_one: None) -> None:
    threads = threading.active_count()
    arms = StudyArms(study(Arm("infer", 1, 7), VANILLA, APPLY), CpuDevice(), 0, Layout(1, 1), TIMEOUT)
    before = checksum(arms.model.parameters())
    for arm in (VANILLA, APPLY):
        timing = arms.time_block(arm, 3)
        assert len(timing.step_s) == 3
        assert timing.parameters_checksum is None
    assert checksum(arms.model.parameters()) == before
    assert arms.model.training, "as it was"
    assert threading.active_count() > threads
    arms.close()
    assert threading.active_count() == threads


def test_outputs_that_are_no_numbers_are_an_error(gloo_of_one: None) -> None:
    arms = StudyArms(study(VANILLA, APPLY), CpuDevice(), 0, Layout(1, 1), TIMEOUT)
    with torch.no_grad():
        list(arms.model.parameters())[-1].fill_(float("nan"))
    for arm in (VANILLA, APPLY):
        with pytest.raises(RuntimeError, match="70 of 70 outputs are not finite"):
            arms.time_block(arm, 3)
    arms.close()
