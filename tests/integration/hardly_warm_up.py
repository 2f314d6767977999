"""``-p tests.integration.hardly_warm_up``: a session whose ranks on CPUs train for a moment before they are timed."""

from __future__ import annotations

from dataclasses import replace

from pytest_ddpscale.plan.planner import PACES

PACES["cpu"] = replace(PACES["cpu"], warmup_s=0.1)
