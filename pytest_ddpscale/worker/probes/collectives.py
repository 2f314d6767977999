"""Bandwidth probes: collectives of a group of ranks, and send-recv between two of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from pytest_ddpscale.worker.probes.known_values import KnownValues
from pytest_ddpscale.worker.probes.work import CannotProbeError

# Names from torch 2.14 on, where the older names warn.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

FP32_BYTES = 4
# Messages in memory at once: input and output; gloo's reduce-scatter all-reduces a copy.
MESSAGES_HELD = 4


class Exchange:
    """An exchange of fp32 messages among the members of a group, as a probe.

    Attributes:
        work: bytes, counted like nccl-tests: of the whole buffer, gathered or to be scattered.
        received: output of this rank; for sums in place also its input.

    Args:
        member: this rank's number in the group.
        known: messages with a known result.
        run: communicates.
        is_expected: whether the output is right for the known messages.
    """

    def __init__(
        self, member: int, known: KnownValues, sent: torch.Tensor, received: torch.Tensor,
        run: Callable[[], object], is_expected: Callable[[], bool],
    ) -> None:  # fmt: skip
        self.work = float(max(sent.nbytes, received.nbytes))
        self.received = received
        self._member, self._known, self._sent = member, known, sent
        self._run, self._is_expected = run, is_expected

    def __call__(self) -> None:
        """Communicate once."""
        self._run()

    def is_correct(self) -> bool:
        """Whether known values give the right result in one more, untimed iteration, like nccl-tests -c.

        The timed values cannot be checked: a sum in place is infinite after a hundred iterations.
        """
        self.received.fill_(float("nan"))
        self._known.fill(self._sent, self._member)
        self()
        return self._is_expected()


@dataclass(frozen=True)
class _Place:
    """One rank's place in a group, and the size of its messages.

    Attributes:
        per_rank: fp32 numbers of the message for each rank.
    """

    group: dist.ProcessGroup
    device: torch.device
    per_rank: int

    @property
    def member(self) -> int:
        return self.group.rank()

    @property
    def size(self) -> int:
        return self.group.size()

    @property
    def root(self) -> int:
        """Global rank of the group's first member, the root of broadcast and reduce."""
        return dist.get_global_rank(self.group, 0)

    def whole(self) -> torch.Tensor:
        return torch.zeros(self.per_rank * self.size, device=self.device)

    def share(self) -> torch.Tensor:
        return torch.zeros(self.per_rank, device=self.device)

    def exchange(
        self, sent: torch.Tensor, received: torch.Tensor, run: Callable[[], object],
        is_expected: Callable[[KnownValues], bool],
    ) -> Exchange:  # fmt: skip
        known = KnownValues(self.device, max(len(sent), len(received)))
        return Exchange(self.member, known, sent, received, run, lambda: is_expected(known))


def open_collective(kind: str, message_bytes: int, group: dist.ProcessGroup, device: torch.device) -> Exchange:
    """The probe on this rank of a group; does not communicate yet.

    The message is rounded down to a whole number of fp32 values for each rank, like in nccl-tests, and `Work.work` is
    the rounded size.

    Raises:
        CannotProbeError: the message has less than one number for each rank.
    """
    size = group.size()
    per_rank = message_bytes // (FP32_BYTES * size)
    if per_rank < 1:
        raise CannotProbeError(f"a message of {message_bytes} bytes has no number for each of {size} ranks")
    return _OPEN[kind](_Place(group, device, per_rank))


def _open_all_reduce(place: _Place) -> Exchange:
    whole = place.whole()
    return place.exchange(
        whole, whole,
        lambda: dist.all_reduce(whole, group=place.group),
        lambda known: known.is_sum(whole, place.size),
    )  # fmt: skip


def _open_all_gather(place: _Place) -> Exchange:
    share, whole = place.share(), place.whole()
    return place.exchange(
        share, whole,
        lambda: _all_gather(whole, share, group=place.group),
        lambda known: all(known.is_message(part, member) for member, part in enumerate(whole.split(place.per_rank))),
    )  # fmt: skip


def _open_reduce_scatter(place: _Place) -> Exchange:
    share, whole = place.share(), place.whole()
    return place.exchange(
        whole, share,
        lambda: _reduce_scatter(share, whole, group=place.group),
        lambda known: known.is_sum(share, place.size, begin=place.member * place.per_rank),
    )  # fmt: skip


def _open_broadcast(place: _Place) -> Exchange:
    """Only the root fills a message; on other ranks a right value was received."""
    whole = place.whole()
    sent = whole if place.member == 0 else whole[:0]
    return place.exchange(
        sent, whole,
        lambda: dist.broadcast(whole, place.root, group=place.group),
        lambda known: known.is_message(whole, 0),
    )  # fmt: skip


def _open_reduce(place: _Place) -> Exchange:
    """Only the root checks the sum, because the buffers of other ranks are undefined afterwards."""
    whole = place.whole()
    return place.exchange(
        whole, whole,
        lambda: dist.reduce(whole, place.root, group=place.group),
        lambda known: place.member != 0 or known.is_sum(whole, place.size),
    )  # fmt: skip


def _open_all_to_all(place: _Place) -> Exchange:
    sent, received = place.whole(), place.whole()
    begin = place.member * place.per_rank
    return place.exchange(
        sent, received,
        lambda: dist.all_to_all_single(received, sent, group=place.group),
        lambda known: all(
            known.is_message(part, member, begin) for member, part in enumerate(received.split(place.per_rank))
        ),
    )  # fmt: skip


_OPEN: dict[str, Callable[[_Place], Exchange]] = {
    "all-reduce": _open_all_reduce,
    "all-gather": _open_all_gather,
    "reduce-scatter": _open_reduce_scatter,
    "broadcast": _open_broadcast,
    "reduce": _open_reduce,
    "all-to-all": _open_all_to_all,
}


def open_send_receive(message_bytes: int, group: dist.ProcessGroup, device: torch.device, peer: int) -> Exchange:
    """The probe between this rank and one peer, a rank of the gang; does not communicate yet.

    Batched, to use the group's existing communicator: without a batch, torch creates one for each pair.
    """
    numbers = max(1, message_bytes // FP32_BYTES)
    sent, received = torch.zeros(numbers, device=device), torch.zeros(numbers, device=device)
    known = KnownValues(device, numbers)
    operations = [dist.P2POp(dist.isend, sent, peer, group), dist.P2POp(dist.irecv, received, peer, group)]

    def run() -> None:
        for request in dist.batch_isend_irecv(operations):
            request.wait()

    sender = dist.get_group_rank(group, peer)
    return Exchange(group.rank(), known, sent, received, run, lambda: known.is_message(received, sender))
