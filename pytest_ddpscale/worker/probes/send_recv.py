"""How fast two ranks send to each other, both at once."""

from __future__ import annotations

import torch
import torch.distributed as dist

from pytest_ddpscale.plan.pairing import all_pairs, other_end
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
        peer: place in the group.
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device, numbers: int, peer: int) -> None:
        self._own, self._peer = group.rank(), peer
        self._sent = torch.zeros(numbers, device=device)
        self.received = torch.zeros(numbers, device=device)
        self._known = KnownValues(device, numbers)
        peer_rank = dist.get_global_rank(group, peer)
        self._operations = [
            dist.P2POp(dist.isend, self._sent, peer_rank, group),
            dist.P2POp(dist.irecv, self.received, peer_rank, group),
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


def pairings(members: int) -> int:
    """How many sets of disjoint pairs it takes to have all pairs of a group."""
    return len(all_pairs(members))


def peer_of(member: int, members: int, pairing: int) -> int | None:
    """The place of a member's peer in one pairing; None if it sits out, as one does where their number is odd."""
    pair = next((pair for pair in all_pairs(members)[pairing] if member in pair), None)
    return None if pair is None else other_end(pair, member)


def open_send_receive(message_bytes: int, group: dist.ProcessGroup, device: torch.device, peer: int) -> CollectiveWork:
    """The probe on this rank and one peer; nothing is communicated yet."""
    numbers = max(1, message_bytes // FP32_BYTES)
    work = SendReceive(group, device, numbers, peer)
    return CollectiveWork(work, numbers * FP32_BYTES, dist.get_global_rank(group, peer))
