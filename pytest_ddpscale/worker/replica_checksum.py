"""Replicas: aligned before a block under DDP, and compared by checksums after it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

import torch
import torch.distributed as dist
from torch import nn

# Large enough for hundreds of small tensors in one collective, small compared with a batch's activations.
_CHUNK_BYTES = 64 * 2**20
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def align(model: nn.Module, optimizer: torch.optim.Optimizer, group: dist.ProcessGroup) -> None:
    """Make all replicas of a group equal bit for bit; DDP keeps them so.

    Parameters and floating-point buffers become those of the group's first rank. Momentum is set to zero on every rank
    instead of a broadcast: it may come from different data on each rank, zeros need no communication, and they do not
    change step times.

    Args:
        model: its tensors may have any strides.
        optimizer: `torch.optim.SGD` with momentum.
    """
    buffers = (buffer for buffer in model.buffers() if buffer.is_floating_point())
    with torch.no_grad():
        for chunk in _chunks([*model.parameters(), *buffers]):
            _broadcast(chunk, group)
        for state in optimizer.state.values():
            state["momentum_buffer"].zero_()


def checksum(tensors: Iterable[torch.Tensor]) -> str:
    """16 hexadecimal digits that change if any one bit of any tensor does.

    Each tensor's bits are summed as integers, which gives the same sum in any order. Reading the sums takes one
    synchronisation with the device.
    """
    sums = [tensor.detach().view(_BITS[tensor.element_size()]).sum(dtype=torch.int64) for tensor in tensors]
    numbers = torch.stack(sums).tolist()
    return hashlib.blake2b(",".join(map(str, numbers)).encode(), digest_size=8).hexdigest()


def _broadcast(tensors: list[torch.Tensor], group: dist.ProcessGroup) -> None:
    """Broadcast from the group's first rank, in one collective over a contiguous copy."""
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    dist.broadcast(flat, src=dist.get_global_rank(group, 0), group=group)
    pieces = flat.split([tensor.numel() for tensor in tensors])
    for tensor, piece in zip(tensors, pieces, strict=True):
        tensor.copy_(piece.view(tensor.shape))


def _chunks(tensors: list[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Lists of tensors of one type, at most _CHUNK_BYTES together unless a single tensor is larger."""
    for dtype in {tensor.dtype: None for tensor in tensors}:
        chunk: list[torch.Tensor] = []
        chunk_bytes = 0
        for tensor in (tensor for tensor in tensors if tensor.dtype == dtype):
            if chunk and chunk_bytes + tensor.nbytes > _CHUNK_BYTES:
                yield chunk
                chunk, chunk_bytes = [], 0
            chunk.append(tensor)
            chunk_bytes += tensor.nbytes
        yield chunk
