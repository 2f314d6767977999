"""A value with its interval, as table cells and for suite.json."""

from __future__ import annotations

import math
from typing import Any

from pytest_ddpscale.judge.stats import Found
from pytest_ddpscale.report.digits import ABSENT


def found_cells(found: Found | None, form: str = "{:.4g}") -> tuple[str, str]:
    """The value and its interval; a dash for a missing one."""
    if found is None:
        return ABSENT, ABSENT
    ends = [_text(end, form) for end in found.interval] if found.interval else []
    return _text(found.value, form), " … ".join(ends) or ABSENT


def found_value(found: Found | None) -> dict[str, Any] | None:
    """The value and its interval as JSON; an infinite end is null, because JSON cannot express infinity."""
    if found is None:
        return None
    ends = [end if math.isfinite(end) else None for end in found.interval] if found.interval else None
    return {"value": found.value, "interval": ends}


def _text(value: float, form: str) -> str:
    return form.format(value).replace("-", "−").replace("%", " %")
