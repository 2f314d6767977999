"""Which work a probe is on this rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.distributed as dist

from pytest_ddpscale.plan.probe import Probe
from pytest_ddpscale.worker.probes.collectives import MESSAGES_HELD, open_collective
from pytest_ddpscale.worker.probes.matmul import open_matmul
from pytest_ddpscale.worker.probes.memory import open_copy
from pytest_ddpscale.worker.probes.send_recv import open_send_receive, pairings, peer_of
from pytest_ddpscale.worker.probes.work import Work, memory_permitting, refuse_more_than_is_free

if TYPE_CHECKING:
    from pytest_ddpscale.worker.device import Device


def turns(probe: Probe) -> int:
    """How many times it takes different ranks together: once for each pairing of send-recv, once for all others."""
    return pairings(probe.world_size) if probe.kind == "send-recv" else 1


def open_work(
    probe: Probe, turn: int, device: Device, group: dist.ProcessGroup | None, ranks_on_host: int
) -> Work | None:
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
    refuse_more_than_is_free(MESSAGES_HELD * size, ranks_on_host, where)
    with memory_permitting(f"messages of {size} bytes"):
        if probe.kind != "send-recv":
            return open_collective(probe.kind, size, group, where)
        peer = peer_of(group.rank(), group.size(), turn)
        return None if peer is None else open_send_receive(size, group, where, peer)
