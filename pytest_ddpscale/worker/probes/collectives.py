"""How fast a group of ranks sums, gathers and scatters, and how fast two of them send to each other."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from pytest_ddpscale.plan.probe import ProbeKind
from pytest_ddpscale.worker.probes.known_values import KnownValues
from pytest_ddpscale.worker.probes.work import CannotProbeError

# Called so from torch 2.14 on, where the older names warn.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

FP32_BYTES = 4
# Messages held at once: one's own and what comes of it; gloo's reduce-scatter all-reduces a copy.
MESSAGES_HELD = 4


class Exchange:
    """An exchange of fp32 messages among the members of a group, as a probe.

    Attributes:
        work: bytes, as nccl-tests count them: of the whole, gathered or to be scattered.
        peer_rank: as `Work` has it.
        received: what this rank gets; where messages are summed in place, what it sends.

    Args:
        member: this rank's number in the group.
        known: the messages whose outcome is known.
        run: communicates.
        is_expected: whether what was received is the outcome of the known messages.
    """

    def __init__(
        self, member: int, known: KnownValues, sent: torch.Tensor, received: torch.Tensor,
        run: Callable[[], object], is_expected: Callable[[], bool], peer_rank: int | None = None,
    ) -> None:  # fmt: skip
        self.work = float(max(sent.nbytes, received.nbytes))
        self.peer_rank = peer_rank
        self.received = received
        self._member, self._known, self._sent = member, known, sent
        self._run, self._is_expected = run, is_expected

    def __call__(self) -> None:
        """Communicate once."""
        self._run()

    def is_correct(self) -> bool:
        """Whether known values come out as they have to, once more and not timed, as nccl-tests -c does it.

        A sum in place would be infinite after a hundred iterations.
        """
        self.received.fill_(float("nan"))
        self._known.fill(self._sent, self._member)
        self()
        return self._is_expected()


def open_collective(kind: ProbeKind, message_bytes: int, group: dist.ProcessGroup, device: torch.device) -> Exchange:
    """The probe on this rank of a group; nothing is communicated yet.

    The message is rounded down to a whole number of fp32 for each rank, as nccl-tests does, and `Work.work` is what it
    then is.

    Raises:
        CannotProbeError: the message has less than one number for each rank.
    """
    size, member = group.size(), group.rank()
    per_rank = message_bytes // (FP32_BYTES * size)
    if per_rank < 1:
        raise CannotProbeError(f"a message of {message_bytes} bytes has no number for each of {size} ranks")
    whole = torch.zeros(per_rank * size, device=device)
    if kind == "all-reduce":
        known = KnownValues(device, len(whole))
        return Exchange(
            member, known, whole, whole,
            lambda: dist.all_reduce(whole, group=group),
            lambda: known.is_sum(whole, size),
        )  # fmt: skip
    share = torch.zeros(per_rank, device=device)
    if kind == "all-gather":
        known = KnownValues(device, per_rank)
        return Exchange(
            member, known, share, whole,
            lambda: _all_gather(whole, share, group=group),
            lambda: all(known.is_message(part, number) for number, part in enumerate(whole.split(per_rank))),
        )  # fmt: skip
    known = KnownValues(device, len(whole))
    return Exchange(
        member, known, whole, share,
        lambda: _reduce_scatter(share, whole, group=group),
        lambda: known.is_sum(share, size, begin=member * per_rank),
    )  # fmt: skip


def open_send_receive(message_bytes: int, group: dist.ProcessGroup, device: torch.device, peer: int) -> Exchange:
    """The probe on this rank and one peer, a rank of the gang; nothing is communicated yet.

    As a batch within the group's communicator, which it has already: unbatched, torch makes one for each pair.
    """
    numbers = max(1, message_bytes // FP32_BYTES)
    sent, received = torch.zeros(numbers, device=device), torch.zeros(numbers, device=device)
    known = KnownValues(device, numbers)
    operations = [dist.P2POp(dist.isend, sent, peer, group), dist.P2POp(dist.irecv, received, peer, group)]

    def run() -> None:
        for request in dist.batch_isend_irecv(operations):
            request.wait()

    sender = dist.get_group_rank(group, peer)
    return Exchange(
        group.rank(), known, sent, received, run, lambda: known.is_message(received, sender), peer_rank=peer
    )
