"""The arms of a study: their order and blocks, which of them share a copy of the model and how copies are made equal,
no trace of one arm in another, and how an error in a copy shows.
"""

from __future__ import annotations

import copy
import gc
import itertools
import weakref
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch._dynamo.utils import counters
from torch.nn.parallel import DistributedDataParallel

from pytest_ddpscale.plan.arm import Arm, Variant
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.study import FEWEST_STEPS_PER_BLOCK, STEPS_BEFORE_TIMING
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.worker import arms as arms_module
from pytest_ddpscale.worker import replica as replica_module
from pytest_ddpscale.worker.arms import steps_for_block
from pytest_ddpscale.worker.context import arm_order
from pytest_ddpscale.worker.device import CpuDevice, Timing
from pytest_ddpscale.worker.model import build_model, checksum
from pytest_ddpscale.worker.replica import Replicas, Weights, align, make_groups
from pytest_ddpscale.worker.training import Batch
from tests.builders.trained import CPU, TIMEOUT, TINY, arms_of
from tests.builders.workloads import with_settings
from tests.rows import rows
from tests.worker.ranks import on_two_ranks
from tests.worker.two_kernels import TwoKernels, needs_compiler

ALONE, EACH, SILENT, DDP = ONE_RANK = tuple(Arm(kind, 1, 2) for kind in ("alone", "each", "no_sync", "ddp"))
EACH_2, SILENT_2, DDP_2 = (Arm(kind, 2, 2) for kind in ("each", "no_sync", "ddp"))
COMPILED, CHANNELS_LAST = replace(TINY, compile=True), with_settings(TINY, memory_format="channels_last")


def test_each_round_has_each_arm_once_in_an_order_that_all_ranks_draw() -> None:
    arms = tuple(Arm("ddp", size, 2) for size in (1, 2, 4, 8))
    orders = [arm_order(arms, 7, "weak/x", number) for number in range(200)]
    assert all(Counter(order) == Counter(arms) for order in orders)
    assert orders == [arm_order(arms, 7, "weak/x", number) for number in range(200)]
    first = Counter(order[0] for order in orders)
    assert min(first[arm] for arm in arms) > 30, "no arm is always first"


def test_a_block_is_filled_with_whole_steps_enough_to_show_their_spread() -> None:
    found = [steps_for_block(step_s, 2.0) for step_s in (0.4, 0.3, 10.0)]
    assert found == [5, 7, FEWEST_STEPS_PER_BLOCK]


def test_a_block_times_each_step_of_a_warm_arm(gloo_of_one: None) -> None:
    arms = arms_of(*ONE_RANK)
    for number, arm in enumerate(ONE_RANK, start=1):
        timing = arms.time_block(arm, 4)
        assert len(timing.step_s) == 4
        assert sum(timing.step_s) == pytest.approx(timing.block_s)
        assert arms._replicas.of(arm).weights.steps.taken == number * (STEPS_BEFORE_TIMING + 4)
        assert (timing.utilization or 0.0) > 0.01  # beside others that took both cores 0.08 was seen
        assert (timing.peak_memory_bytes or 0) > 50 * 2**20
        assert (timing.parameters_checksum is not None) == (arm == DDP)


def test_a_wrapper_is_built_once_and_is_gone_with_the_model_after_close(gloo_of_one: None) -> None:
    """What outlived its study would take memory from the next, and its group could not be destroyed."""
    arms = arms_of(*ONE_RANK)
    kept = [weakref.ref(one) for one in (arms._replicas.of(DDP).call, arms.model, *arms.model.parameters())]
    gc.disable()
    try:
        for arm in (*ONE_RANK, *ONE_RANK):
            arms.time_block(arm, 3)
        assert arms._replicas.of(DDP).call is kept[0]()
        arms.close()
        assert not any(one() is not None for one in kept)
    finally:
        gc.enable()


def test_in_every_other_gang_two_ranks_swap_their_batches() -> None:
    def trained(rank: int, gang: int) -> str:
        arms = arms_of(EACH, rank=rank, gang=gang)
        arms.time_block(EACH, 3)
        return checksum(arms.model.parameters())

    assert trained(0, gang=1) == trained(1, gang=4) != trained(0, gang=2) == trained(1, gang=3)


def test_a_block_that_ends_with_a_loss_of_nan_is_no_measurement(gloo_of_one: None) -> None:
    arms = arms_of(ALONE, DDP)
    nn.init.constant_(next(arms.model.parameters()), float("nan"))
    for arm in (ALONE, DDP):
        with pytest.raises(RuntimeError, match="the loss is nan: training is numerically dead on this rank"):
            arms.time_block(arm, 3)


def test_peak_memory_is_without_what_idle_wrappers_hold(gloo_of_one: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten bytes more are allocated each time somebody asks."""
    allocated, time_steps = itertools.count(step=10), CpuDevice.time_steps
    monkeypatch.setattr(CpuDevice, "allocated_bytes", lambda device: next(allocated))
    monkeypatch.setattr(CpuDevice, "time_steps", lambda *given: replace(time_steps(*given), peak_memory_bytes=1000))
    arms = arms_of(ALONE, DDP)
    peaks = [arms.time_block(arm, 3).peak_memory_bytes for arm in (ALONE, DDP, ALONE, DDP)]
    assert peaks == [1000, 990, 990, 990]


@rows(("scale", "skipped"), [(1.0, 0), (2.0**127, 4)])
def test_steps_that_the_loss_scaler_left_out_are_reported(
    gloo_of_one: None, monkeypatch: pytest.MonkeyPatch, scale: float, skipped: int
) -> None:
    scaler = partial(torch.amp.GradScaler, "cpu", init_scale=scale, backoff_factor=0.999)
    monkeypatch.setattr(arms_module, "new_scaler", lambda workload, device: scaler())
    arms = arms_of(ALONE, DDP, workload=with_settings(TINY, model="shufflenet_v2_x0_5"))  # with gradients to overflow
    assert [arms.time_block(arm, 4).skipped_steps for arm in (ALONE, DDP)] == [skipped] * 2


@rows(
    ("arm", "message"),
    [
        (Arm("ddp", 4, 2), "needs 4 ranks; this gang has 1"),
        # Ranks would mix up its buckets.
        (replace(DDP, variant=Variant(hook="powersgd")), "PowerSGD needs NCCL: over gloo"),
        (replace(DDP, variant=Variant(high_priority_stream=True)), "gloo has no stream priority"),
    ],
)
def test_an_arm_that_cannot_be_trained_here_is_refused(gloo_of_one: None, arm: Arm, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        arms_of(arm).time_block(arm, 2)


def replicas_of(*arms: Arm, workload: Workload = TINY) -> Replicas:
    return Replicas(build_model(workload, CPU), workload, CpuDevice(), make_groups(arms, Layout(1, 1), TIMEOUT))


def test_arms_share_the_model_and_wrapped_ones_a_wrapper_and_a_group(gloo_of_one: None) -> None:
    loading = replace(DDP, variant=Variant(workers=0, prefetch=2))
    replicas = replicas_of(*ONE_RANK, loading)
    alone, each, silent, ddp = map(replicas.of, ONE_RANK)
    assert alone is each
    assert ddp is silent is replicas.of(DDP) is replicas.of(loading)
    assert alone.weights is ddp.weights
    assert alone.call is ddp.call.module
    assert [replicas.group(arm) for arm in (ALONE, EACH, SILENT)] == [None] * 3, "only replicas that can differ"
    groups = replicas._groups
    assert list(groups) == [(1, "packed", False)]
    assert replicas.group(DDP) is groups[1, "packed", False]
    assert not replicas_of(ALONE, EACH)._groups, "nobody communicates"


def test_an_arm_with_settings_of_its_own_shares_nothing(gloo_of_one: None) -> None:
    other = replace(DDP, variant=Variant(bucket_cap_mb=1.0, broadcast_buffers=False, fused_optimizer=True))
    replicas = replicas_of(DDP, other)
    usual, changed = replicas.of(DDP), replicas.of(other)
    assert changed.weights.model is not usual.weights.model
    assert changed.weights.optimizer.defaults["fused"]
    assert changed.call.bucket_bytes_cap == 2**20 != usual.call.bucket_bytes_cap
    assert (changed.call.will_sync_module_buffers(), usual.call.will_sync_module_buffers()) == (False, True)
    assert replicas.group(other) is None, "it trains in its own arm only"


def test_a_compiled_arm_has_weights_of_its_own_and_compiles_once(
    gloo_of_one: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[object] = []

    def fake_compile(model: object, **options: Any) -> object:
        compiled.append(model)
        return model

    monkeypatch.setattr(torch, "compile", fake_compile)
    trained = (ALONE, DDP, SILENT)
    arms = arms_of(*trained, workload=COMPILED)
    for arm in trained * 3:
        arms.time_block(arm, 3)
    assert [isinstance(one, DistributedDataParallel) for one in compiled] == [False, True, True], "compiled after DDP"
    models = [arms._replicas.of(arm).weights.model for arm in trained]
    assert len(set(map(id, [arms.model, *models]))) == 4
    assert arms._replicas.group(DDP) is None


@needs_compiler
def test_torch_compile_trains_after_ddp(
    gloo_of_one: None, scalar_kernels: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arms_module, "build_model", lambda workload, device: TwoKernels(3 * 8 * 8, 10))
    arms = arms_of(DDP, SILENT, workload=with_settings(COMPILED, image_size=8))
    counters.clear()
    found = [arms.time_block(arm, 3).parameters_checksum for arm in (DDP, SILENT, DDP)]
    assert counters["stats"]["unique_graphs"] > 0, "it was compiled"
    assert len(set(found)) == 3, f"DDP trains on: {found}"
    arms.close()
    assert torch._dynamo.convert_frame.FRAME_COUNTER == 0, "the next study compiles as a new process does"


def test_accumulated_passes_give_the_gradients_of_one(gloo_of_one: None) -> None:
    """Of a pass over the same images: synthetic ones stay during a block."""
    whole, halves = Arm("ddp", 1, 2), Arm("ddp", 1, 4, variant=Variant(accumulation_steps=2))
    passes, found = list[tuple[int, bool]](), []
    for arm in (whole, halves):
        arms = arms_of(arm)
        arms._replicas.of(arm).call.register_forward_pre_hook(
            lambda ddp, inputs: passes.append((len(inputs[0]), ddp.require_backward_grad_sync))
        )
        found.append(arms.time_block(arm, 1).parameters_checksum)
    assert passes[-2:] == [(2, False), (2, True)], "half of the batch each, and only the last one communicates"
    assert found[0] == found[1]


@given(st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.int64]), st.data())
def test_any_one_bit_changes_the_checksum(dtype: torch.dtype, data: st.DataObject) -> None:
    raw = torch.randint(256, (29 * dtype.itemsize,), dtype=torch.uint8)
    place, bit = data.draw(st.integers(0, len(raw) - 1)), data.draw(st.integers(0, 7))
    found = set()
    for _ in range(2):
        one, other = raw.view(dtype).split(24)[:2]
        found.add(checksum([one.view(3, 2, 2, 2).contiguous(memory_format=torch.channels_last), other]))
        raw[place] ^= 1 << bit
    assert len(found) == 2


def test_a_checksum_is_of_values_in_their_order_and_not_of_their_layout() -> None:
    one, other = torch.randn(4, 3, 5, 5), torch.randn(3)
    found = checksum([one, other])
    assert found == checksum([one.contiguous(memory_format=torch.channels_last), other]) != checksum([other, one])
    assert f"{int(found, 16):016x}" == found


def gradients(call: Any, batch: Batch) -> str:
    """Checksum of those of one forward and backward pass, from gradients that were None."""
    call.zero_grad(set_to_none=True)
    nn.functional.cross_entropy(call(batch.inputs), batch.targets).backward()
    return checksum(parameter.grad for parameter in call.parameters() if parameter.grad is not None)


def with_two_wrappers(rank: int, workload: Workload) -> tuple[list[str], list[str]]:
    """Gradients of this rank's own images, and those that are averaged: first of fresh models, then of shared ones."""
    groups = make_groups((DDP, DDP_2), Layout(1, 2), TIMEOUT)
    model = build_model(workload, CPU)
    shared = Replicas(model, workload, CpuDevice(), groups)
    batch = Batch(workload, 2, CPU, seed=rank)

    def of(arm: Arm) -> str:
        return gradients(shared.of(arm).call, batch)

    for arm in (DDP, DDP_2) * 3:  # past the step in which DDP lays its buckets out anew
        if rank < arm.world_size:
            of(arm)
    own, fresh = copy.deepcopy(model), copy.deepcopy(model)
    averaged = [gradients(DistributedDataParallel(fresh, process_group=groups[2, "packed", False]), batch), of(DDP_2)]
    alone = [gradients(own, batch), of(EACH_2)]
    of(DDP_2)
    with shared.of(SILENT_2).silent():
        alone.append(of(SILENT_2))
    averaged.append(of(DDP_2))
    dist.barrier()
    if rank == 0:  # with the other rank busy elsewhere: whoever communicated here would wait for ever
        alone += [of(ALONE), of(DDP)]
    dist.barrier()
    return alone, averaged


def aligned(rank: int) -> tuple[Any, ...]:
    """Values before and after, how much momentum is not zero before and after, and whether strides are kept."""
    replica_module._CHUNK_BYTES = 2**20  # several chunks
    model = build_model(CHANNELS_LAST, CPU)
    weights, group = Weights(model, 1e-3), dist.group.WORLD
    assert group is not None
    momenta = [weights.optimizer.state[one]["momentum_buffer"] for one in model.parameters()]
    tensors = [*model.parameters(), *(one for one in model.buffers() if one.is_floating_point())]
    left = [[int(momentum.count_nonzero()) for momentum in momenta]]  # which is there from the beginning
    torch.manual_seed(rank)
    for tensor in (*tensors, *momenta):  # as arms without communication do
        nn.init.normal_(tensor)
    strides, before = [tensor.stride() for tensor in tensors], checksum(tensors)
    align(model, weights.optimizer, group)
    left.append([int(momentum.count_nonzero()) for momentum in momenta])
    after = [tensor.stride() for tensor in (*tensors, *momenta)]
    return before, checksum(tensors), left, after == strides + strides[: len(momenta)]


def four_rounds(rank: int) -> tuple[Any, ...]:
    """Checksums of ddp@2, of which a bit goes wrong on rank 1 in the second block, and of no_sync@2, first too."""
    fresh = arms_of(SILENT_2, rank=rank, ranks=2)
    fresh.time_block(SILENT_2, 2)
    silent = [checksum(fresh.model.parameters())]
    fresh.close()
    device, arms = CpuDevice(), (*ONE_RANK, EACH_2, SILENT_2, DDP_2)
    study, sound = arms_of(*arms, device=device, rank=rank, ranks=2), device.time_steps
    victim = max(study.model.parameters(), key=torch.numel).detach().view(torch.int32)

    def wrong(*given: Any) -> Timing:
        timing = sound(*given)
        victim[0, 0, 0, 0] ^= rank
        return timing

    found = []
    for time_steps in (sound, wrong):
        device.time_steps = time_steps  # type: ignore[method-assign, assignment]
        found.append(study.time_block(DDP_2, 2).parameters_checksum)
    device.time_steps = sound  # type: ignore[method-assign]
    for _ in range(2):
        for arm in arms[:-1]:
            if rank < arm.world_size:
                study.time_block(arm, 2)
        found.append(study.time_block(DDP_2, 2).parameters_checksum)
        study.time_block(SILENT_2, 2)  # from replicas that agree
        silent.append(checksum(study.model.parameters()))
    study.close()
    return found, silent


VARIANTS = (
    Variant(), Variant(bucket_cap_mb=1.0), Variant(gradient_as_bucket_view=True), Variant(static_graph=True),
    Variant(broadcast_buffers=False), Variant(hook="fp16"), Variant(hook="bf16"), Variant(precision="bf16"),
    Variant(memory_format="channels_last"), Variant(fused_optimizer=True), Variant(accumulation_steps=2),
    Variant(uneven_share=0.5),
)  # fmt: skip


def trained_variants(rank: int) -> list[list[str | None]]:
    """Checksums before and after two blocks."""
    trained = [Arm("ddp", 2, 4, variant=variant) for variant in VARIANTS]
    arms = arms_of(*trained, rank=rank, ranks=2)
    before = checksum(arms.model.parameters())
    return [[before, *(arms.time_block(arm, 2).parameters_checksum for _ in range(2))] for arm in trained]


def by_two_ranks(rank: int) -> list[Any]:
    of_wrappers = [with_two_wrappers(rank, workload) for workload in (TINY, CHANNELS_LAST)]
    return [of_wrappers, aligned(rank), four_rounds(rank), trained_variants(rank)]


Told = list[tuple[Any, Any]]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    """Of each part, what both ranks found."""
    return [*zip(*on_two_ranks(by_two_ranks, tmp_path_factory.mktemp("ranks")), strict=True)]


def test_two_wrappers_over_one_model_give_the_gradients_of_a_fresh_one(told: Told) -> None:
    for (alone, averaged), (alone_too, averaged_too) in zip(*told[0], strict=True):
        assert (len(alone), len(alone_too)) == (5, 3)
        assert len({*averaged, *averaged_too}) == len(set(alone)) == len(set(alone_too)) == 1
        assert len({averaged[0], alone[0], alone_too[0]}) == 3, "ranks train on different images"


def test_replicas_that_went_apart_become_those_of_rank_0(told: Told) -> None:
    (before, after, momentum, kept), (other, *too) = told[1]
    assert too == [after, momentum, kept]
    assert before == after != other
    assert not any(map(any, momentum))
    assert kept, "strides of channels last, of momentum too"


def test_replicas_agree_in_every_round_and_one_wrong_bit_shows(told: Told) -> None:
    (first, silent), (second, silent_too) = told[2]
    assert [a == b for a, b in zip(first, second, strict=True)] == [True, False, True, True]
    assert len(set(first)) == 4, "training went on"
    assert not set(silent) & set(silent_too), "without communication each trains on its own images"


def test_every_variant_trains_and_keeps_replicas_alike(told: Told) -> None:
    for variant, one, other in zip(VARIANTS, *told[3], strict=True):
        assert one == other, variant.name
        assert len(set(one)) == 3, variant.name
