"""The arms of a study: order, length of blocks, and no trace of one arm in another."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._dynamo.utils import counters
from torch.nn.parallel import DistributedDataParallel

from pytest_ddpscale.families.image import ImageFamily
from pytest_ddpscale.plan.arm import Arm, Variant
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.study import FEWEST_STEPS_PER_BLOCK, STEPS_BEFORE_TIMING
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.worker import arms as arms_module
from pytest_ddpscale.worker.arms import StudyArms, steps_for_block
from pytest_ddpscale.worker.context import arm_order
from pytest_ddpscale.worker.device import CpuDevice, Forwards, Timing
from pytest_ddpscale.worker.model import checksum
from pytest_ddpscale.worker.training import Trainer
from tests.builders.trained import TIMEOUT, TINY, study
from tests.worker.two_kernels import TwoKernels, needs_compiler

from .ranks import on_two_ranks

ARMS = (Arm("alone", 1, 2), Arm("ddp", 1, 2))
ONE_RANK = (*ARMS, Arm("each", 1, 2), Arm("no_sync", 1, 2))
TWO_RANKS = (*ARMS, Arm("each", 2, 2), Arm("no_sync", 2, 2), Arm("ddp", 2, 2))


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
    arms = StudyArms(study(*ARMS), CpuDevice(), rank=0, layout=Layout(1, 1), timeout=TIMEOUT)
    for arm in ARMS:
        timing = arms.time_block(arm, 4)
        assert len(timing.step_s) == 4
        assert sum(timing.step_s) == pytest.approx(timing.block_s)
        assert timing.utilization is not None
        assert timing.utilization > 0.01  # beside others that took both cores 0.08 was seen
        assert timing.peak_memory_bytes is not None
        assert timing.peak_memory_bytes > 50 * 2**20
    arms.close()


def test_a_block_is_timed_once_the_arm_is_warm(gloo_of_one: None, monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[int] = []
    step, time_steps = Trainer.__call__, CpuDevice.time_steps

    def count(trainer: Trainer) -> None:
        trained[-1] += 1
        step(trainer)

    def begin(device: CpuDevice, trainer: Callable[[], None], steps: int, forwards: Forwards | None) -> Timing:
        trained.append(0)
        return time_steps(device, trainer, steps, forwards)

    monkeypatch.setattr(Trainer, "__call__", count)
    monkeypatch.setattr(CpuDevice, "time_steps", begin)
    arms = StudyArms(study(*ARMS), CpuDevice(), rank=0, layout=Layout(1, 1), timeout=TIMEOUT)
    for arm in ARMS:
        trained[:] = [0]
        arms.time_block(arm, 4)
        assert trained == [STEPS_BEFORE_TIMING, 4]
    arms.close()


def test_wrappers_are_built_once_and_are_gone_with_the_model_after_close(
    gloo_of_one: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What outlived its study would take memory from the next, and its group could not be destroyed."""
    made: list[weakref.ref[DistributedDataParallel]] = []
    original = DistributedDataParallel.__init__

    def remember(self: DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
        made.append(weakref.ref(self))
        original(self, *args, **kwargs)

    monkeypatch.setattr(DistributedDataParallel, "__init__", remember)
    arms = StudyArms(study(*ONE_RANK), CpuDevice(), rank=0, layout=Layout(1, 1), timeout=TIMEOUT)
    model = weakref.ref(arms.model)
    weights = [weakref.ref(parameter) for parameter in arms.model.parameters()]
    gc.disable()
    try:
        for arm in (*ONE_RANK, *ONE_RANK):
            arms.time_block(arm, 3)
        assert len(made) == 1
        assert made[0]() is not None
        arms.close()
        assert made[0]() is None
        assert model() is None
        assert not any(weight() is not None for weight in weights)
    finally:
        gc.enable()


@pytest.mark.usefixtures("fake_gang_of_eight")
def test_groups_are_destroyed_in_the_order_of_their_making(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which all ranks have in common, as NCCL needs it: each waits for a group's other members."""
    sizes = range(1, 9)
    arms = StudyArms(study(*(Arm("ddp", size, 2) for size in sizes)), CpuDevice(), 0, Layout(1, 8), TIMEOUT)
    destroyed: list[int] = []
    original = dist.destroy_process_group

    def remember(group: dist.ProcessGroup) -> None:
        destroyed.append(group.size())
        original(group)

    monkeypatch.setattr(dist, "destroy_process_group", remember)
    arms.close()
    assert destroyed == list(sizes)


def test_only_ddp_arms_have_a_checksum_of_their_parameters(gloo_of_one: None) -> None:
    arms = StudyArms(study(*ONE_RANK), CpuDevice(), rank=0, layout=Layout(1, 1), timeout=TIMEOUT)
    checksums = {arm.kind: arms.time_block(arm, 3).parameters_checksum for arm in ONE_RANK}
    assert checksums.pop("ddp") is not None
    assert checksums == {"alone": None, "each": None, "no_sync": None}
    arms.close()


def test_in_every_other_gang_two_ranks_swap_their_batches(gloo_of_one: None) -> None:
    def trained(rank: int, gang: int) -> str:
        arms = StudyArms(study(*ONE_RANK), CpuDevice(), rank, Layout(1, 1), TIMEOUT, gang=gang)
        arms.time_block(ONE_RANK[2], 3)
        trained = checksum(arms.model.parameters())
        arms.close()
        return trained

    assert trained(0, gang=1) == trained(1, gang=4) != trained(0, gang=2) == trained(1, gang=3)


def test_a_block_that_ends_with_a_loss_of_nan_is_no_measurement(gloo_of_one: None) -> None:
    arms = StudyArms(study(*ARMS), CpuDevice(), rank=0, layout=Layout(1, 1), timeout=TIMEOUT)
    for weights in arms.model.parameters():
        weights.data.fill_(float("nan"))
    for arm in ARMS:
        with pytest.raises(RuntimeError, match="the loss is nan: training is numerically dead"):
            arms.time_block(arm, 3)
    arms.close()


def test_peak_memory_is_without_what_idle_wrappers_hold(gloo_of_one: None) -> None:
    class SmallGpu(CpuDevice):
        """Ten bytes more are allocated each time somebody asks."""

        allocated = 0

        def allocated_bytes(self) -> int:
            self.allocated += 10
            return self.allocated

        def time_steps(self, step: Callable[[], None], steps: int, forwards: Forwards | None = None) -> Timing:
            return replace(super().time_steps(step, steps, forwards), peak_memory_bytes=1000)

    arms = StudyArms(study(*ARMS), SmallGpu(), rank=0, layout=Layout(1, 1), timeout=TIMEOUT)
    peaks = [arms.time_block(arm, 3).peak_memory_bytes for arm in (*ARMS, *ARMS)]
    assert peaks == [1000, 990, 990, 990]
    arms.close()


def test_steps_that_the_loss_scaler_left_out_are_reported(gloo_of_one: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def scaler_of(scale: float) -> Callable[..., torch.amp.GradScaler]:
        return lambda workload, device: torch.amp.GradScaler("cpu", init_scale=scale, backoff_factor=0.999)

    for scale, skipped in ((1.0, 0), (2.0**127, 4)):
        monkeypatch.setattr(arms_module, "new_scaler", scaler_of(scale))
        arms = StudyArms(study(*ARMS), CpuDevice(), rank=0, layout=Layout(1, 1), timeout=TIMEOUT)
        for arm in ARMS:
            assert arms.time_block(arm, 4).skipped_steps == skipped
        arms.close()


class OneBitWrong(CpuDevice):
    """A device that flips one bit of the largest parameter after the second block, and says nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = 0
        self.victim: torch.Tensor | None = None

    def time_steps(self, step: Callable[[], None], steps: int, forwards: Forwards | None = None) -> Timing:
        timing = super().time_steps(step, steps, forwards)
        self.blocks += 1
        if self.blocks == 2 and self.victim is not None:
            self.victim.view(torch.int32)[0, 0, 0, 0] ^= 1
        return timing


def checksums_of_four_rounds(rank: int) -> tuple[list[str | None], list[str]]:
    """Of ddp@2, with every other arm in between; one bit goes wrong on rank 1 in the second block of ddp@2.

    And those of the parameters after no_sync@2: as the first of all, and following on ddp@2.
    """
    silent = []
    fresh = StudyArms(study(*TWO_RANKS), CpuDevice(), rank, Layout(1, 2), TIMEOUT)
    fresh.time_block(TWO_RANKS[-2], 3)
    silent.append(checksum(fresh.model.parameters()))
    fresh.close()
    device = OneBitWrong()
    arms = StudyArms(study(*TWO_RANKS), device, rank, Layout(1, 2), TIMEOUT)
    if rank == 1:
        device.victim = max(arms.model.parameters(), key=torch.numel).detach()
    last, found = TWO_RANKS[-1], list[str | None]()
    found.append(arms.time_block(last, 3).parameters_checksum)
    found.append(arms.time_block(last, 3).parameters_checksum)
    for _ in range(2):
        for arm in TWO_RANKS[:-1]:
            if rank < arm.world_size:
                arms.time_block(arm, 3)
        found.append(arms.time_block(last, 3).parameters_checksum)
        arms.time_block(TWO_RANKS[-2], 3)  # from replicas that agree
        silent.append(checksum(arms.model.parameters()))
    arms.close()
    return found, silent


def test_replicas_agree_in_every_round_and_one_wrong_bit_shows(tmp_path: Path) -> None:
    (first, silent), (second, silent_too) = on_two_ranks(checksums_of_four_rounds, tmp_path)
    assert [a == b for a, b in zip(first, second, strict=True)] == [True, False, True, True]
    assert len(set(first)) == 4, "training went on"
    assert not set(silent) & set(silent_too), "without communication each trains on its own images"


def test_a_compiled_arm_keeps_its_trainer_so_that_it_compiles_once(
    gloo_of_one: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[object] = []

    def fake_compile(model: object, mode: str | None, *, dynamic: bool) -> object:
        assert not dynamic
        compiled.append(model)
        return model

    monkeypatch.setattr(torch, "compile", fake_compile)
    workload = replace(TINY, compile=True)
    arms = StudyArms(study(*ARMS, workload=workload), CpuDevice(), rank=0, layout=Layout(1, 1), timeout=TIMEOUT)
    for _ in range(3):
        for arm in ARMS:
            arms.time_block(arm, 3)
    assert len(compiled) == 2
    assert isinstance(compiled[1], DistributedDataParallel), "DDP first, then torch.compile"
    arms.close()


@needs_compiler
def test_torch_compile_trains_after_ddp(
    gloo_of_one: None, scalar_kernels: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        arms_module, "build_model", lambda workload, device: TwoKernels(3 * 8 * 8, workload.family.num_classes)
    )
    compiled, found = (
        Workload("tiny", ImageFamily("two-kernels", 8, "contiguous", num_classes=10), "fp32", 2, compile=True),
        [],
    )
    kinds = (Arm("ddp", 1, 2), Arm("no_sync", 1, 2))
    arms = StudyArms(study(*kinds, workload=compiled), CpuDevice(), rank=0, layout=Layout(1, 1), timeout=TIMEOUT)
    counters.clear()
    for arm in (*kinds, *kinds):
        arms.time_block(arm, 3)
        found.append((arm.kind, arms.time_block(arm, 3).parameters_checksum))
    assert counters["stats"]["unique_graphs"] > 0, "it was compiled"
    assert len(set(found)) == 3, f"DDP trains on: {found}"
    arms.close()
    assert torch._dynamo.convert_frame.FRAME_COUNTER == 0, "the next study compiles as a new process does"


def test_a_study_that_needs_more_ranks_than_the_gang_has_is_refused(gloo_of_one: None) -> None:
    with pytest.raises(RuntimeError, match="needs 4 ranks; this gang has 1"):
        StudyArms(study(Arm("ddp", 4, 2)), CpuDevice(), rank=0, layout=Layout(1, 1), timeout=TIMEOUT)


VARIANTS = (
    Variant(bucket_cap_mb=1.0),
    Variant(gradient_as_bucket_view=True),
    Variant(static_graph=True),
    Variant(broadcast_buffers=False),
    Variant(hook="fp16"),
    Variant(hook="bf16"),
    Variant(precision="bf16"),
    Variant(memory_format="channels_last"),
    Variant(fused_optimizer=True),
    Variant(accumulation_steps=2),
    Variant(uneven_share=0.5),
)


def _train_variants(rank: int) -> dict[str, bool]:
    """Whether replicas of each variant are alike on all ranks after two blocks, and were trained."""
    arms = (Arm("ddp", 2, 4), *(Arm("ddp", 2, 4, variant=variant) for variant in VARIANTS))
    trained = StudyArms(study(*arms), CpuDevice(), rank, Layout(1, 2), TIMEOUT)
    before, found = checksum(trained.model.parameters()), {}
    for arm in arms:
        sums = [trained.time_block(arm, 2).parameters_checksum for _ in range(2)]
        told: list[Any] = [None, None]
        dist.all_gather_object(told, sums)
        found[arm.name] = told[0] == told[1] and len({before, *sums}) == 3
    trained.close()
    return found


def test_every_variant_trains_and_keeps_replicas_alike(tmp_path: Path) -> None:
    found, _ = on_two_ranks(_train_variants, tmp_path)
    assert found == dict.fromkeys(found, True)
    assert len(found) == 1 + len(VARIANTS)


def test_accumulated_passes_give_the_gradients_of_one(gloo_of_one: None) -> None:
    whole, halves = Arm("ddp", 1, 4), Arm("ddp", 1, 4, variant=Variant(accumulation_steps=2))
    arms = StudyArms(study(whole, halves), CpuDevice(), rank=0, layout=Layout(1, 1), timeout=TIMEOUT)
    passes = []
    forward = nn.Module.__call__

    def counted(module: nn.Module, *inputs: Any, **options: Any) -> Any:
        if isinstance(module, DistributedDataParallel):
            passes.append((len(inputs[0]), module.require_backward_grad_sync))
        return forward(module, *inputs, **options)

    nn.Module.__call__ = counted  # type: ignore[method-assign]
    try:
        arms.time_block(halves, 1)
    finally:
        nn.Module.__call__ = forward  # type: ignore[method-assign]
    assert passes[-2:] == [(2, False), (2, True)], "half of the batch each, and only the last one communicates"
    arms.close()


def test_a_batch_that_cannot_be_divided_into_equal_passes_is_refused() -> None:
    with pytest.raises(ValueError, match="a per-GPU batch of 5 cannot be split into 2 equal passes"):
        Arm("ddp", 2, 5, variant=Variant(accumulation_steps=2))


def test_powersgd_is_refused_where_ranks_would_mix_up_its_buckets(gloo_of_one: None) -> None:
    arm = Arm("ddp", 1, 2, variant=Variant(hook="powersgd"))
    arms = StudyArms(study(arm), CpuDevice(), rank=0, layout=Layout(1, 1), timeout=TIMEOUT)
    with pytest.raises(RuntimeError, match="PowerSGD needs NCCL: over gloo"):
        arms.time_block(arm, 2)


def test_stream_priority_is_refused_where_there_are_no_streams(gloo_of_one: None) -> None:
    arm = Arm("ddp", 1, 2, variant=Variant(high_priority_stream=True))
    with pytest.raises(RuntimeError, match="gloo has no stream priority"):
        StudyArms(study(arm), CpuDevice(), rank=0, layout=Layout(1, 1), timeout=TIMEOUT)
