"""Messages with values that every rank can compute, so each rank can check its results alone."""

from __future__ import annotations

from collections.abc import Iterator

import torch

# Primes, so no two parts of a message begin with the same value. Sums over 48,000 ranks stay below 2^24: integers
# that fp32 adds exactly in any order.
_PERIOD = 251
_RANKS_APART = 97
_NUMBERS_AT_ONCE = _PERIOD * 2**16


class KnownValues:
    """Messages in which element i of member m of a group is i mod 251 + m mod 97.

    Long tensors are processed in parts of 63 MiB, to need little additional memory.

    Args:
        numbers: length of the longest tensor.
    """

    def __init__(self, device: torch.device, numbers: int) -> None:
        length = min(numbers, _NUMBERS_AT_ONCE) + _PERIOD
        period = torch.arange(_PERIOD, dtype=torch.float32, device=device)
        self._pattern = period.repeat(-(-length // _PERIOD))

    def fill(self, tensor: torch.Tensor, member: int) -> None:
        """Write a member's message."""
        for first, part in _parts(tensor):
            torch.add(self._from(first, len(part)), member % _RANKS_APART, out=part)

    def is_message(self, tensor: torch.Tensor, member: int, begin: int = 0) -> bool:
        """Whether a tensor is that member's message, from its element `begin` on."""
        return all(
            torch.equal(part, self._from(begin + first, len(part)) + member % _RANKS_APART)
            for first, part in _parts(tensor)
        )

    def is_sum(self, tensor: torch.Tensor, members: int, begin: int = 0) -> bool:
        """Whether a tensor is the sum of all members' messages, from their element `begin` on."""
        constant = sum(member % _RANKS_APART for member in range(members))
        return all(
            torch.equal(part, members * self._from(begin + first, len(part)) + constant)
            for first, part in _parts(tensor)
        )

    def _from(self, index: int, length: int) -> torch.Tensor:
        return self._pattern[index % _PERIOD :][:length]


def _parts(tensor: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    """Start index and content of each part of a tensor."""
    for first in range(0, len(tensor), _NUMBERS_AT_ONCE):
        yield first, tensor[first : first + _NUMBERS_AT_ONCE]
