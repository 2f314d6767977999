"""Forward passes are timed within a block, by hooks of which nothing remains."""

from __future__ import annotations

import copy
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pytest_ddpscale.plan.arm import Arm, Variant
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.study import STEPS_BEFORE_TIMING
from pytest_ddpscale.worker.arms import StudyArms
from pytest_ddpscale.worker.device import CpuDevice
from pytest_ddpscale.worker.forward_hooks import Forwards
from pytest_ddpscale.worker.training import Trainer
from tests.builders.trained import TIMEOUT, TINY, study

from .ranks import on_two_ranks

ACCUMULATING = Arm("ddp", 1, 4, variant=Variant(accumulation_steps=2))
TRAINING = (Arm("alone", 1, 2), Arm("each", 1, 2), Arm("no_sync", 1, 2), Arm("ddp", 1, 2), ACCUMULATING)


def hooks_on(model: nn.Module) -> int:
    return sum(len(one._forward_hooks) + len(one._forward_pre_hooks) for one in model.modules())


def arms_of(*arms: Arm, workload: Any = TINY) -> StudyArms:
    return StudyArms(study(*arms, workload=workload), CpuDevice(), 0, Layout(1, 1), TIMEOUT)


def test_every_training_arm_times_its_forward_passes_and_keeps_no_hook(gloo_of_one: None) -> None:
    arms = arms_of(*TRAINING)
    for arm in TRAINING:
        timing = arms.time_block(arm, 4)
        assert timing.forward_s is not None
        assert 0 < timing.forward_s < timing.block_s
        assert timing.unread == {}
        assert hooks_on(arms._replicas.of(arm).weights.model) == 0
        assert hooks_on(copy.deepcopy(arms.model)) == 0
    arms.close()


def test_only_timed_steps_have_hooks(gloo_of_one: None, monkeypatch: pytest.MonkeyPatch) -> None:
    arms, seen, step = arms_of(*TRAINING), list[int](), Trainer.__call__

    def watched(trainer: Trainer) -> None:
        seen.append(hooks_on(arms.model))
        step(trainer)

    monkeypatch.setattr(Trainer, "__call__", watched)
    arms.time_block(TRAINING[0], 4)
    assert seen == [0] * STEPS_BEFORE_TIMING + [2] * 4
    arms.close()


def test_forward_passes_alone_have_none(gloo_of_one: None) -> None:
    infer = Arm("infer", 1, 2)
    arms = arms_of(TRAINING[0], infer)
    timing = arms.time_block(infer, 3)
    assert (timing.forward_s, timing.unread) == (None, {})
    arms.close()


@pytest.mark.parametrize("arm", [TRAINING[0], TRAINING[3]], ids=lambda arm: arm.name)
def test_a_compiled_arm_has_none(gloo_of_one: None, monkeypatch: pytest.MonkeyPatch, arm: Arm) -> None:
    monkeypatch.setattr(torch, "compile", lambda model, mode, *, dynamic: model)
    arms = arms_of(arm, workload=replace(TINY, compile=True))
    timing = arms.time_block(arm, 3)
    assert (timing.forward_s, timing.unread) == (None, {})
    arms.close()


def test_an_exception_in_any_part_of_a_step_leaves_no_hook(gloo_of_one: None, monkeypatch: pytest.MonkeyPatch) -> None:
    arms = arms_of(*TRAINING)
    arms.time_block(TRAINING[0], 1)
    for place in (nn.CrossEntropyLoss, nn.Conv2d):  # behind the forward pass, and within it
        calls = 0
        forward = place.forward

        def fail(module: nn.Module, *inputs: Any, forward: Any = forward) -> Any:
            nonlocal calls
            calls += hooks_on(arms.model) > 0
            if calls == 3:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return forward(module, *inputs)

        with monkeypatch.context() as patched:
            patched.setattr(place, "forward", fail)
            with pytest.raises(torch.OutOfMemoryError):
                arms.time_block(TRAINING[0], 4)
        assert calls == 3, "it failed in a timed step"
        assert hooks_on(arms.model) == 0
    arms.close()


@pytest.mark.parametrize(("passes", "made"), [(2, 1), (1, 2), (1, 0)])
def test_another_number_of_passes_is_no_reading(passes: int, made: int) -> None:
    model = nn.Linear(2, 2)

    def step() -> None:
        for _ in range(made):
            model(torch.ones(1, 2))

    timing = CpuDevice().time_steps(step, 3, Forwards(model, passes))
    assert timing.forward_s is None
    saw = f"hooks on the model saw {3 * made} forward passes begin and {3 * made} end; expected {3 * passes}"
    assert timing.unread == {"forward_s": saw}


def test_the_time_is_that_of_all_passes() -> None:
    class Slow(nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            time.sleep(0.02)
            return images

    model = Slow()

    def step() -> None:
        for _ in range(2):
            model(torch.ones(1))
            time.sleep(0.05)

    forward_s = CpuDevice().time_steps(step, 3, Forwards(model, 2)).forward_s
    assert forward_s is not None
    assert 6 * 0.02 <= forward_s < 6 * 0.05


class OftenLate(CpuDevice):
    """Of rank 1: before each timed step it does something else for a while."""

    late_s = 0.05

    def time_steps(self, step: Any, steps: int, forwards: Forwards | None = None) -> Any:
        def late() -> None:
            time.sleep(self.late_s)
            step()

        return super().time_steps(late, steps, forwards)


def _one_late(rank: int) -> tuple[float, float]:
    arm = Arm("ddp", 2, 2)
    arms = StudyArms(study(arm), OftenLate() if rank else CpuDevice(), rank, Layout(1, 2), TIMEOUT)
    timing = arms.time_block(arm, 8)
    arms.close()
    assert timing.forward_s is not None
    return timing.block_s / 8, timing.forward_s / 8


def test_a_rank_that_waits_for_a_late_one_keeps_its_own_pace(tmp_path: Path) -> None:
    (step_s, forward_s), (late_step_s, _) = on_two_ranks(_one_late, tmp_path)
    assert step_s > 0.8 * OftenLate.late_s, "it waited"
    assert late_step_s > OftenLate.late_s
    assert forward_s < step_s - 0.8 * OftenLate.late_s, "not in the forward passes"
