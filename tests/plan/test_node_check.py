"""The catalogue of node checks."""

from __future__ import annotations

import re

from pytest_ddpscale.plan.node_check import NODE_CHECKS, NodeCheck
from tests.rows import rows


@rows("check", NODE_CHECKS.values(), ids=NODE_CHECKS)
def test_a_check_is_named_and_explained(check: NodeCheck) -> None:
    assert re.fullmatch("[a-z][a-z0-9_]*", check.name)
    assert NODE_CHECKS[check.name] is check
    assert check.title
    assert check.meaning
    assert not check.meaning.endswith(".")


def test_what_is_seen_only_under_load_reads_telemetry() -> None:
    under_load = {name for name in NODE_CHECKS if name.endswith("_under_load")}
    assert {name for name, check in NODE_CHECKS.items() if check.reads == "telemetry"} == under_load


def test_without_a_gpu_a_few_checks_mean_something() -> None:
    assert {name for name, check in NODE_CHECKS.items() if check.on_cpu} == {"gpus", "versions", "disk"}
