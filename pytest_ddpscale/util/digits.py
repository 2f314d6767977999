"""The digits of a number for readers, in all reports and messages.

Numbers are rounded as decimals, half to even, from the shortest text that represents the float, so that 0.9745 is
always 97.4 %.
"""

from __future__ import annotations

import math
from decimal import ROUND_HALF_EVEN, Context, Decimal


def rounded(value: float, decimals: int, rounding: str = ROUND_HALF_EVEN, *, power_of_ten: int = 0) -> str:
    """`value` times a power of ten with so many digits after the point, and a true minus sign; never a minus zero."""
    if not math.isfinite(value):
        return "not a number" if math.isnan(value) else f"{'−' if value < 0 else ''}∞"
    number = decimal(value, power_of_ten)
    # A float may have more than 300 digits before the point.
    text = f"{number.quantize(Decimal(1).scaleb(-decimals), rounding, Context(prec=400)):.{decimals}f}"
    return text.replace("-", "−") if text.strip("-0.") else text.lstrip("-")


def decimal(value: float, power_of_ten: int = 0) -> Decimal:
    """A finite float times a power of ten, exactly as its shortest text says."""
    return Decimal(repr(float(value))).scaleb(power_of_ten)


def percent(share: float, decimals: int = 0, *, signed: bool = False) -> str:
    """``80 %``, ``97.4 %``; ``+1.5 %`` with its sign."""
    text = rounded(share, decimals, power_of_ten=2)
    return f"{'+' if signed and not text.startswith('−') else ''}{text} %"
