"""Why something is so: a code with its arguments, of which `pytest_ddpscale.report.words` makes the sentence."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from msgspec import Struct


class Reason(Struct, frozen=True):
    """A code, and the numbers and names that its sentence needs, in JSON types or Reasons."""

    code: str
    args: tuple[Any, ...] = ()

    def is_of(self, codes: Collection[str]) -> bool:
        """Whether it, or a reason that it is about, has one of these codes."""
        return self.code in codes or any(one.is_of(codes) for one in self.args if isinstance(one, Reason))


def because(code: str, *args: Any) -> Reason:
    """A reason with these arguments."""
    return Reason(code, args)
