"""A plugin of pytest for sessions of tests: quick, as they draw no figures and share the byte code that they make."""

from __future__ import annotations

import os
import sys

from pytest_ddpscale.report import charts
from tests.builders.sessions import not_drawn

sys.pycache_prefix = os.environ.get("TESTS_BYTE_CODE")
if "TESTS_DRAW" not in os.environ:  # which takes half of a session, and tests/report/test_figures.py does it
    vars(charts)["_drawn"] = not_drawn
