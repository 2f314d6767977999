"""Which work a probe is on this rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.distributed as dist

from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.pairing import other_end
from pytest_ddpscale.plan.probe import Probe
from pytest_ddpscale.plan.probe_pairs import pair_turns
from pytest_ddpscale.worker.probes.collectives import MESSAGES_HELD, open_collective
from pytest_ddpscale.worker.probes.matmul import open_matmul
from pytest_ddpscale.worker.probes.memory import open_copy
from pytest_ddpscale.worker.probes.send_recv import open_send_receive
from pytest_ddpscale.worker.probes.work import Work, memory_permitting, refuse_more_than_is_free

if TYPE_CHECKING:
    from pytest_ddpscale.worker.device import Device


def turns(probe: Probe, layout: Layout) -> int:
    """How many times it takes different ranks together: send-recv until all pairs had their turn, all others once."""
    return len(pair_turns(probe, layout)) if probe.kind == "send-recv" else 1


def peer_of(rank: int, probe: Probe, turn: int, layout: Layout) -> int | None:
    """The rank that one sends to in a turn of send-recv, and receives from; None if it sits out."""
    pair = next((pair for pair in pair_turns(probe, layout)[turn] if rank in pair), None)
    return None if pair is None else other_end(pair, rank)


def open_work(probe: Probe, turn: int, device: Device, group: dist.ProcessGroup | None, layout: Layout) -> Work | None:
    """What this rank repeats in one turn of a probe; None if it sits out. Nothing is communicated yet.

    Raises:
        CannotProbeError: it cannot; the message says why.
    """
    if group is None:
        if probe.precision is not None:
            return open_matmul(probe.precision, device)
        return open_copy(probe.kind, device.torch_device)
    size = probe.message_bytes
    assert size is not None  # of all that communicates
    where = device.torch_device
    refuse_more_than_is_free(MESSAGES_HELD * size, layout.ranks_per_node, where)
    with memory_permitting(f"messages of {size} bytes"):
        if probe.kind != "send-recv":
            return open_collective(probe.kind, size, group, where)
        peer = peer_of(dist.get_rank(), probe, turn, layout)
        return None if peer is None else open_send_receive(size, group, where, peer)
