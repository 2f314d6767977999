"""A value with its interval: as cells of a table, and for suite.json."""

from __future__ import annotations

from typing import Any

from pytest_ddpscale.report.text import ABSENT
from pytest_ddpscale.verdict.estimating import Found


def found_cells(found: Found | None, form: str = "{:.4g}") -> tuple[str, str]:
    """The value, and its interval; a dash for what there is not."""
    if found is None:
        return ABSENT, ABSENT
    ends = [_text(end, form) for end in found.estimate.interval] if found.estimate else []
    return _text(found.value, form), " … ".join(ends) or ABSENT


def found_value(found: Found | None) -> dict[str, Any] | None:
    """The same as JSON."""
    if found is None:
        return None
    return {"value": found.value, "interval": list(found.estimate.interval) if found.estimate else None}


def _text(value: float, form: str) -> str:
    return form.format(value).replace("-", "−")
