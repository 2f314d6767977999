"""Copies of the model: which arms share one, how they are made equal, and how an error in one shows."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pytest_ddpscale.families.image import MemoryFormat
from pytest_ddpscale.plan.arm import Arm, Variant
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.worker import replica as agreement
from pytest_ddpscale.worker.device import CpuDevice
from pytest_ddpscale.worker.model import build_model, checksum
from pytest_ddpscale.worker.replica import Replicas, StepCounter, Weights, align, make_groups
from pytest_ddpscale.worker.training import Batch
from tests.builders.trained import CPU, TIMEOUT, TINY
from tests.builders.workloads import with_settings

from .ranks import on_two_ranks

ALONE, DDP_1, DDP_2 = Arm("alone", 1, 2), Arm("ddp", 1, 2), Arm("ddp", 2, 2)
COMPILED = replace(TINY, compile=True)
EACH_2, SILENT_2 = Arm("each", 2, 2), Arm("no_sync", 2, 2)


def gradients(call: Any, batch: Batch) -> list[torch.Tensor]:
    """Of one forward and backward pass, from gradients that were None."""
    module: nn.Module = call.module if isinstance(call, DistributedDataParallel) else call
    module.zero_grad(set_to_none=True)
    nn.functional.cross_entropy(call(batch.inputs), batch.targets).backward()
    return [p.grad.clone() for p in module.parameters() if p.grad is not None]


def equal(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) > 0 and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def _two_wrappers(rank: int, memory_format: MemoryFormat) -> dict[str, bool]:
    workload = with_settings(TINY, memory_format=memory_format)
    groups = make_groups((DDP_1, DDP_2), Layout(1, 2), TIMEOUT)
    model = build_model(workload, CPU)
    shared = Replicas(model, workload, CpuDevice(), groups)
    batch = Batch(workload, 2, CPU, seed=rank)
    if rank == 0:
        gradients(shared.of(DDP_1).call, batch)
    for _ in range(3):  # past the step in which DDP lays its buckets out anew
        gradients(shared.of(DDP_2).call, batch)
        if rank == 0:
            gradients(shared.of(DDP_1).call, batch)
    untouched = copy.deepcopy(model)
    fresh = DistributedDataParallel(copy.deepcopy(model), process_group=groups[2, "packed", False])
    alone = gradients(untouched, batch)
    averaged = gradients(fresh, batch)
    found = {
        "ranks train on different images": not equal(alone, averaged),
        "as a fresh wrapper": equal(gradients(shared.of(DDP_2).call, batch), averaged),
        "plain beside wrappers": equal(gradients(shared.of(EACH_2).call, batch), alone),
    }
    replica = shared.of(SILENT_2)
    gradients(shared.of(DDP_2).call, batch)
    with replica.silent():
        found["silent"] = equal(gradients(replica.call, batch), alone)
    found["as a fresh wrapper after silence"] = equal(gradients(shared.of(DDP_2).call, batch), averaged)
    dist.barrier()
    # With the other rank busy elsewhere: whoever communicated here would wait for ever.
    if rank == 0:
        found["alone"] = equal(gradients(shared.of(ALONE).call, batch), alone)
        found["under DDP by itself"] = equal(gradients(shared.of(DDP_1).call, batch), alone)
    dist.barrier()
    return found


def contiguous(rank: int) -> dict[str, bool]:
    return _two_wrappers(rank, "contiguous")


def channels_last(rank: int) -> dict[str, bool]:
    return _two_wrappers(rank, "channels_last")


@pytest.mark.parametrize("program", [contiguous, channels_last])
def test_two_wrappers_over_one_model_give_the_gradients_of_a_fresh_one(program: Any, tmp_path: Path) -> None:
    first, second = on_two_ranks(program, tmp_path)
    assert first == dict.fromkeys(first, True)
    assert second == dict.fromkeys(second, True)
    assert len(first) == 7
    assert len(second) == 5


def test_arms_share_the_model_and_groups_share_their_wrapper(gloo_of_one: None) -> None:
    arms = (ALONE, Arm("each", 1, 2), DDP_1, Arm("no_sync", 1, 2))
    replicas = Replicas(build_model(TINY, CPU), TINY, CpuDevice(), make_groups(arms, Layout(1, 1), TIMEOUT))
    alone, each, ddp, silent = (replicas.of(arm) for arm in arms)
    assert alone is each
    assert ddp is silent
    assert alone.weights is ddp.weights
    assert alone.call is ddp.call.module
    assert replicas.of(DDP_1) is ddp, "a wrapper is built once"


def test_a_compiled_arm_has_weights_of_its_own(gloo_of_one: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda model, **options: model)
    model = build_model(TINY, CPU)
    arms = (ALONE, DDP_1, Arm("no_sync", 1, 2))
    replicas = Replicas(model, COMPILED, CpuDevice(), make_groups(arms, Layout(1, 1), TIMEOUT))
    models = [replicas.of(arm).weights.model for arm in arms]
    assert len({id(model) for model in [model, *models]}) == 4
    assert len({id(replicas.of(arm).weights.optimizer) for arm in arms}) == 3


def test_an_arm_with_settings_of_its_own_shares_nothing(gloo_of_one: None) -> None:
    other = replace(DDP_1, variant=Variant(bucket_cap_mb=1.0, broadcast_buffers=False, fused_optimizer=True))
    groups = make_groups((DDP_1, other), Layout(1, 1), TIMEOUT)
    replicas = Replicas(build_model(TINY, CPU), TINY, CpuDevice(), groups)
    usual, changed = replicas.of(DDP_1), replicas.of(other)
    assert changed.weights.model is not usual.weights.model
    assert changed.weights.optimizer.defaults["fused"]
    assert changed.call.bucket_bytes_cap == 2**20 != usual.call.bucket_bytes_cap
    assert (changed.call.will_sync_module_buffers(), usual.call.will_sync_module_buffers()) == (False, True)
    assert replicas.group(other) is None, "it trains in its own arm only"


def test_only_arms_whose_replicas_can_differ_are_aligned(gloo_of_one: None) -> None:
    groups = make_groups((DDP_1,), Layout(1, 1), TIMEOUT)
    kept = Replicas(build_model(TINY, CPU), TINY, CpuDevice(), groups)
    assert kept.group(DDP_1) is groups[1, "packed", False]
    assert kept.group(ALONE) is None
    assert kept.group(Arm("no_sync", 1, 2)) is None
    assert Replicas(build_model(TINY, CPU), COMPILED, CpuDevice(), groups).group(DDP_1) is None


def test_groups_are_made_for_wrapped_arms_only(gloo_of_one: None) -> None:
    assert list(make_groups((ALONE, Arm("each", 1, 2)), Layout(1, 1), TIMEOUT)) == []
    assert list(make_groups((Arm("no_sync", 1, 2), DDP_1), Layout(1, 1), TIMEOUT)) == [(1, "packed", False)]


def test_momentum_is_there_from_the_beginning_with_the_strides_of_the_weights() -> None:
    model = build_model(with_settings(TINY, memory_format="channels_last"), CPU)
    replicas = Replicas(model, TINY, CpuDevice(), {})
    state = replicas.of(ALONE).weights.optimizer.state
    for parameter in model.parameters():
        momentum = state[parameter]["momentum_buffer"]
        assert momentum.stride() == parameter.stride()
        assert not momentum.any()


def test_steps_that_a_loss_scaler_leaves_out_are_not_counted() -> None:
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    counter = StepCounter(optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    for factor in (1.0, float("inf"), 1.0):
        optimizer.zero_grad()
        scaler.scale((weight * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert counter.taken == 2


INTEGER = {
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
    torch.float32: torch.int32,
    torch.int64: torch.int64,
}
CHANNELS_LAST = with_settings(TINY, memory_format="channels_last")


def flip(tensor: torch.Tensor, index: int, bit: int) -> None:
    """Flip one bit of one element, whatever the strides."""
    bits = tensor.detach().view(INTEGER[tensor.dtype])
    place = tuple(int(i) for i in torch.unravel_index(torch.tensor(index), bits.shape))
    mask = torch.tensor(1, dtype=torch.int64) << bit
    bits[place] = bits[place] ^ mask.to(bits.dtype)


@pytest.mark.parametrize("dtype", list(INTEGER), ids=str)
@given(data=st.data())
def test_any_one_bit_changes_the_checksum(dtype: torch.dtype, data: st.DataObject) -> None:
    tensors = [torch.zeros(3, 2, 2, 2, dtype=dtype), torch.arange(5).to(dtype)]
    tensors[0] = tensors[0].contiguous(memory_format=torch.channels_last)
    before = checksum(tensors)
    chosen = data.draw(st.sampled_from(tensors))
    index = data.draw(st.integers(0, chosen.numel() - 1))
    flip(chosen, index, data.draw(st.integers(0, 8 * chosen.element_size() - 1)))
    assert checksum(tensors) != before


def test_the_checksum_is_of_values_and_not_of_their_layout() -> None:
    weights = torch.randn(4, 3, 5, 5)
    assert checksum([weights]) == checksum([weights.contiguous(memory_format=torch.channels_last)])


def test_the_checksum_tells_which_tensor_holds_a_value() -> None:
    one, two = torch.ones(3), torch.full((3,), 2.0)
    assert checksum([one, two]) != checksum([two, one])


def test_the_checksum_is_short_and_hexadecimal() -> None:
    digits = checksum(build_model(TINY, CPU).parameters())
    assert len(digits) == 16
    int(digits, 16)


def diverge(model: nn.Module, weights: Weights, rank: int) -> None:
    """What arms without communication do: other weights, statistics and momentum on every rank."""
    generator = torch.Generator().manual_seed(rank)
    with torch.no_grad():
        for tensor in [*model.parameters(), *(b for b in model.buffers() if b.is_floating_point())]:
            tensor.normal_(generator=generator)
        for state in weights.optimizer.state.values():
            state["momentum_buffer"].normal_(generator=generator)


def align_two_ranks(rank: int) -> dict[str, Any]:
    agreement._CHUNK_BYTES = 2**20  # several chunks
    model = build_model(CHANNELS_LAST, CPU)
    weights = Weights(model, 1e-3)
    diverge(model, weights, rank)
    strides = [parameter.stride() for parameter in model.parameters()]
    before = checksum(model.parameters())
    group: Any = dist.new_group([0, 1])
    align(model, weights.optimizer, group)
    floats = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
    return {
        "before": before,
        "after": checksum(model.parameters()),
        "buffers": checksum(floats),
        "momentum": sum(float(state["momentum_buffer"].abs().sum()) for state in weights.optimizer.state.values()),
        "strides kept": strides == [parameter.stride() for parameter in model.parameters()],
    }


def test_replicas_that_went_apart_become_those_of_rank_0(tmp_path: Path) -> None:
    first, second = on_two_ranks(align_two_ranks, tmp_path)
    assert first["before"] != second["before"]
    assert second["after"] == first["after"] == first["before"]
    assert first["buffers"] == second["buffers"]
    assert first["momentum"] == second["momentum"] == 0
    assert first["strides kept"]
    assert second["strides kept"]
