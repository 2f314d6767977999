"""How fast two ranks send to each other, both at once."""

from __future__ import annotations

import torch
import torch.distributed as dist

from pytest_ddpscale.worker.probes.collectives import FP32_BYTES, CollectiveWork
from pytest_ddpscale.worker.probes.known_values import KnownValues


class SendReceive:
    """A message to a member of the group, and one from it, within the group's communicator.

    As a batch: unbatched, torch makes a communicator for each pair.

    Attributes:
        received: from the peer.

    Args:
        group: whose communicator is used; it has one already.
        device: of this rank.
        numbers: of fp32 in the message.
        peer: rank of the gang, a member of the group.
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device, numbers: int, peer: int) -> None:
        self._own, self._peer = group.rank(), dist.get_group_rank(group, peer)
        self._sent = torch.zeros(numbers, device=device)
        self.received = torch.zeros(numbers, device=device)
        self._known = KnownValues(device, numbers)
        self._operations = [
            dist.P2POp(dist.isend, self._sent, peer, group),
            dist.P2POp(dist.irecv, self.received, peer, group),
        ]

    def fill(self) -> None:
        """Write the known message, and something else where the peer's goes."""
        self._known.fill(self._sent, self._own)
        self.received.fill_(float("nan"))

    def run(self) -> None:
        """Send and receive."""
        for request in dist.batch_isend_irecv(self._operations):
            request.wait()

    def is_expected(self) -> bool:
        """Whether the peer's message has come."""
        return self._known.is_message(self.received, self._peer)


def open_send_receive(message_bytes: int, group: dist.ProcessGroup, device: torch.device, peer: int) -> CollectiveWork:
    """The probe on this rank and one peer, a rank of the gang; nothing is communicated yet."""
    numbers = max(1, message_bytes // FP32_BYTES)
    work = SendReceive(group, device, numbers, peer)
    return CollectiveWork(work, numbers * FP32_BYTES, peer)
