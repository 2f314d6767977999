"""Replicas are made the same bit for bit, and one bit tells them apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from pytest_ddpscale.worker import replica as agreement
from pytest_ddpscale.worker.model import checksum
from pytest_ddpscale.worker.replica import Weights, align
from pytest_ddpscale.worker.training import build_model
from tests.builders.trained import CPU, TINY
from tests.builders.workloads import with_settings

from .ranks import on_two_ranks

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


def test_chunks_hold_one_type_each_and_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement, "_CHUNK_BYTES", 40)
    tensors = [torch.zeros(5), torch.zeros(50), torch.zeros(3, dtype=torch.int64), torch.zeros(4), torch.zeros(5)]
    chunks = list(agreement._chunks(tensors))
    assert [[tensor.numel() for tensor in chunk] for chunk in chunks] == [[5], [50], [4, 5], [3]]
    assert sorted(id(tensor) for chunk in chunks for tensor in chunk) == sorted(map(id, tensors))


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
    weights = Weights(model)
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
