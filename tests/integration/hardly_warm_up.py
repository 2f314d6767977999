"""``-p tests.integration.hardly_warm_up``: a session whose ranks on CPUs train for a moment before they are timed.

Like sessions of `tests.plugin` it draws no figures unless TESTS_DRAW is set.
"""

from __future__ import annotations

from dataclasses import replace

import tests.plugin.quick  # noqa: F401
from pytest_ddpscale.plan.planner import PACES

PACES["cpu"] = replace(PACES["cpu"], warmup_s=0.1)
