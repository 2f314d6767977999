"""A plugin of pytest for sessions of tests: quick, as they draw no figures and share the byte code that they make."""

from __future__ import annotations

import os
import sys
from typing import Any

from pytest_ddpscale.report import charts
from pytest_ddpscale.util.document import Picture


def not_drawn(about: Any, *given: Any) -> Picture:
    """A picture of nothing, with its table."""
    return Picture(about.key, about.title, about.caption, about.title, b"<svg></svg>", bytes, given[-1], False)


sys.pycache_prefix = os.environ.get("TESTS_BYTE_CODE")
if "TESTS_DRAW" not in os.environ:  # which takes half of a session, and tests/report/test_figures.py does it
    vars(charts)["_drawn"] = not_drawn
