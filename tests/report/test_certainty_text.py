"""The report says which loss of all devices would not show, and claims no speed that was not shown."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_ddpscale.report.sentences import uniform_loss_text
from pytest_ddpscale.run.reason import because
from pytest_ddpscale.run.verdicts import Judgement, UniformLoss
from tests.builders.judgements import FAILED, PASSED

LOSS = UniformLoss(0.0, 0.0510001, 0.95, "throughput_per_gpu[a]", 5)
FAST = replace(LOSS, largest=0.0, workloads=1)
SLOWER = replace(FAST, largest=0.44)
NO_SPEED: dict[str, Any] = {"notes": ("no published speed",), "remarks": (because("unseen-loss"),)}
NARROW = replace(PASSED, flags=("this-launch-only",))


@pytest.mark.parametrize(("changes", "words"), [
    ({"uniform_loss": LOSS}, "at least 94.8 % of the published one for each of 5 workloads (95 % confidence)."),
    ({"uniform_loss": SLOWER}, "at least 56.0 % of the published one (95 % confidence)."),
    ({"uniform_loss": FAST}, "at least the published one (95 % confidence)."),
    ({"uniform_loss": FAST, **NO_SPEED}, ""), ({"uniform_loss": LOSS, "verdicts": (NARROW,)}, ""),
    ({"verdicts": (replace(FAILED, published=1200.0),)}, ""), (NO_SPEED, ""),
    ({}, "no published throughput to compare with, so a loss of any size could stay hidden."),
])  # fmt: skip
def test_the_lower_limit_of_the_slowest_workload_is_told_rounded_down(changes: dict[str, Any], words: str) -> None:
    said = uniform_loss_text(replace(Judgement("a100", "accepted", "1 of 1", (PASSED,)), **changes))
    assert said.endswith(words)
    assert bool(said) == bool(words)
