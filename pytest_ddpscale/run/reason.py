"""Why something is so: a code with its arguments, of which `pytest_ddpscale.report.words` makes the sentence."""

from __future__ import annotations

from typing import Any

from msgspec import Struct


class Reason(Struct, frozen=True):
    """A code, and the numbers and names that its sentence needs, in JSON types or Reasons."""

    code: str
    args: tuple[Any, ...] = ()


def because(code: str, *args: Any) -> Reason:
    """A reason with these arguments."""
    return Reason(code, args)
