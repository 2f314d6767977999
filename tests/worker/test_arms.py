"""The arms of a study: order, length of blocks, and no trace of one arm in another."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from pytest_ddpscale.plan.study import FEWEST_STEPS_PER_BLOCK, Arm, Study
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.worker.arms import StudyArms, arm_order, steps_for_block
from pytest_ddpscale.worker.device import CpuDevice

ARMS = (Arm("alone", 1, 2), Arm("ddp", 1, 2))
TINY = Workload("tiny", "resnet18", "fp32", 2, 32, "contiguous", num_classes=10)


@pytest.fixture
def gloo_of_one(tmp_path: Path) -> Iterator[None]:
    """A real process group with this process as its only rank."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'rendezvous'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def study(*arms: Arm, workload: Workload = TINY) -> Study:
    return Study("weak", workload, arms, rounds=5, block_s=0.1, warmup_s=0.1)


def test_every_round_has_each_arm_once() -> None:
    arms = tuple(Arm("ddp", size, 2) for size in (1, 2, 4, 8))
    for number in range(20):
        assert Counter(arm_order(arms, 0, "weak/x", number)) == Counter(arms)


def test_all_ranks_draw_the_same_order() -> None:
    assert arm_order(ARMS, 7, "weak/x", 3) == arm_order(ARMS, 7, "weak/x", 3)


def test_orders_differ_between_rounds_so_that_no_arm_is_always_first() -> None:
    first = Counter(arm_order(ARMS, 0, "weak/x", number)[0].name for number in range(200))
    assert min(first.values()) > 60


def test_a_block_is_filled_with_whole_steps() -> None:
    assert steps_for_block(step_s=0.4, block_s=2.0) == 5
    assert steps_for_block(step_s=0.3, block_s=2.0) == 7


def test_a_block_never_has_too_few_steps_to_show_their_spread() -> None:
    assert steps_for_block(step_s=10.0, block_s=2.0) == FEWEST_STEPS_PER_BLOCK


def test_blocks_time_each_step_and_their_sum_is_the_block(gloo_of_one: None) -> None:
    arms = StudyArms(study(*ARMS), CpuDevice(), rank=0, world_size=1)
    for arm in ARMS:
        timing = arms.time_block(arm, 4)
        assert len(timing.step_s) == 4
        assert sum(timing.step_s) == pytest.approx(timing.block_s)
        assert timing.utilization is not None
        assert timing.utilization > 0.1
        assert timing.peak_memory_bytes is not None
        assert timing.peak_memory_bytes > 50 * 2**20
    arms.close()


def test_no_ddp_wrapper_outlives_its_block(gloo_of_one: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrapper that lived on would all-reduce in arms that must not communicate."""
    made: list[weakref.ref[DistributedDataParallel]] = []
    original = DistributedDataParallel.__init__

    def remember(self: DistributedDataParallel, *args: object, **kwargs: object) -> None:
        made.append(weakref.ref(self))
        original(self, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(DistributedDataParallel, "__init__", remember)
    arms = StudyArms(study(*ARMS), CpuDevice(), rank=0, world_size=1)
    gc.disable()
    try:
        arms.time_block(ARMS[1], 3)
        assert len(made) == 1
        assert made[0]() is None
    finally:
        gc.enable()
    arms.close()


def test_a_compiled_arm_keeps_its_trainer_so_that_it_compiles_once(
    gloo_of_one: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[object] = []

    def fake_compile(model: object) -> object:
        compiled.append(model)
        return model

    monkeypatch.setattr(torch, "compile", fake_compile)
    workload = Workload("tiny", "resnet18", "fp32", 2, 32, "contiguous", num_classes=10, compile=True)
    arms = StudyArms(study(*ARMS, workload=workload), CpuDevice(), rank=0, world_size=1)
    for _ in range(3):
        for arm in ARMS:
            arms.time_block(arm, 3)
    assert len(compiled) == 2
    assert isinstance(compiled[1], DistributedDataParallel), "DDP first, then torch.compile"
    arms.close()


def test_a_study_that_needs_more_ranks_than_the_gang_has_is_refused(gloo_of_one: None) -> None:
    with pytest.raises(RuntimeError, match="needs 4 ranks; this gang has 1"):
        StudyArms(study(Arm("ddp", 4, 2)), CpuDevice(), rank=0, world_size=1)
