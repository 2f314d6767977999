"""How fast a group of ranks sums, gathers and scatters."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.distributed as dist

from pytest_ddpscale.plan.probe import ProbeKind
from pytest_ddpscale.worker.probes.known_values import KnownValues
from pytest_ddpscale.worker.probes.work import CannotProbeError

FP32_BYTES = 4
# Messages held at once: one's own and what comes of it; gloo's reduce-scatter all-reduces a copy.
MESSAGES_HELD = 4


class Collective(Protocol):
    """Buffers of a collective operation over fp32, as this rank has them."""

    def fill(self) -> None:
        """Write the known input, and something else where the output goes."""

    def run(self) -> None:
        """Communicate."""

    def is_expected(self) -> bool:
        """Whether the output is that of the known input."""


class CollectiveWork:
    """A collective as a probe.

    Args:
        collective: what is done.
        message_bytes: nccl-tests' size: of the whole, gathered or to be scattered.
    """

    peer_rank: int | None = None

    def __init__(self, collective: Collective, message_bytes: int, peer_rank: int | None = None) -> None:
        self.work = float(message_bytes)
        self.peer_rank = peer_rank
        self._collective = collective

    def __call__(self) -> None:
        """Communicate once."""
        self._collective.run()

    def is_correct(self) -> bool:
        """Whether known values come out as they have to, once more and not timed, as nccl-tests -c does it.

        A sum in place would be infinite after a hundred iterations.
        """
        self._collective.fill()
        self._collective.run()
        return self._collective.is_expected()


class AllReduce:
    """The sum of all members' messages, in place."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device, per_rank: int) -> None:
        self._group = group
        self.message = torch.zeros(per_rank * group.size(), device=device)
        self._known = KnownValues(device, len(self.message))

    def fill(self) -> None:
        """As `Collective` has it."""
        self._known.fill(self.message, self._group.rank())

    def run(self) -> None:
        """As `Collective` has it."""
        dist.all_reduce(self.message, group=self._group)

    def is_expected(self) -> bool:
        """As `Collective` has it."""
        return self._known.is_sum(self.message, self._group.size())


class AllGather:
    """All members' shares of the message, one after the other."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device, per_rank: int) -> None:
        self._group = group
        self._share = torch.zeros(per_rank, device=device)
        self.message = torch.zeros(per_rank * group.size(), device=device)
        self._known = KnownValues(device, per_rank)

    def fill(self) -> None:
        """As `Collective` has it."""
        self._known.fill(self._share, self._group.rank())
        self.message.fill_(float("nan"))

    def run(self) -> None:
        """As `Collective` has it."""
        dist.all_gather_into_tensor(self.message, self._share, group=self._group)

    def is_expected(self) -> bool:
        """As `Collective` has it."""
        shares = self.message.split(len(self._share))
        return all(self._known.is_message(share, member) for member, share in enumerate(shares))


class ReduceScatter:
    """This rank's share of the sum of all members' messages."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device, per_rank: int) -> None:
        self._group = group
        self._message = torch.zeros(per_rank * group.size(), device=device)
        self.share = torch.zeros(per_rank, device=device)
        self._known = KnownValues(device, len(self._message))

    def fill(self) -> None:
        """As `Collective` has it."""
        self._known.fill(self._message, self._group.rank())
        self.share.fill_(float("nan"))

    def run(self) -> None:
        """As `Collective` has it."""
        dist.reduce_scatter_tensor(self.share, self._message, group=self._group)

    def is_expected(self) -> bool:
        """As `Collective` has it."""
        return self._known.is_sum(self.share, self._group.size(), begin=self._group.rank() * len(self.share))


_KINDS: dict[ProbeKind, type[AllReduce] | type[AllGather] | type[ReduceScatter]] = {
    "all-reduce": AllReduce,
    "all-gather": AllGather,
    "reduce-scatter": ReduceScatter,
}


def open_collective(
    kind: ProbeKind, message_bytes: int, group: dist.ProcessGroup, device: torch.device
) -> CollectiveWork:
    """The probe on this rank of a group; nothing is communicated yet.

    The message is rounded down to a whole number of fp32 for each rank, as nccl-tests does, and `Work.work` is what it
    then is.

    Raises:
        CannotProbeError: the message has less than one number for each rank.
    """
    per_rank = message_bytes // (FP32_BYTES * group.size())
    if per_rank < 1:
        raise CannotProbeError(f"a message of {message_bytes} bytes has no number for each of {group.size()} ranks")
    return CollectiveWork(_KINDS[kind](group, device, per_rank), per_rank * FP32_BYTES * group.size())
