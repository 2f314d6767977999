"""The fixed words of a plan, and refusal of numbers out of range."""

from __future__ import annotations

from typing import Literal

DeviceType = Literal["cuda", "cpu"]
Precision = Literal["fp32", "fp16", "bf16"]


def refuse_below_one(thing: object, what: str, *names: str) -> None:
    """Raise ValueError if one of the named attributes is below 1."""
    for name in names:
        number = getattr(thing, name)
        if number < 1:
            raise ValueError(f"{name} of {what} is {number}; expected a whole number from 1 up")
