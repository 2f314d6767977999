"""The report says how rarely a failure is chance, and which loss would not show."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_ddpscale.report.sentences import uniform_loss_text
from pytest_ddpscale.run.reason import because
from pytest_ddpscale.run.verdicts import Judgement, UniformLoss
from tests.builders.judgements import FAILED, PASSED

LOSS = UniformLoss(0.0028, 0.051, 0.95, "throughput_per_gpu[a]", 5)
ACCEPTED = Judgement("a100", "accepted", "1 of 1", (PASSED,), uniform_loss=LOSS)


def test_no_limit_is_claimed_beside_a_throughput_that_fails() -> None:
    missed = replace(FAILED, published=1200.0)
    said = uniform_loss_text(replace(ACCEPTED, verdicts=(missed,), uniform_loss=None))
    assert said == "All devices alike slow: 1 requirement on throughput fails for which no device is named."


@pytest.mark.parametrize(
    ("largest", "workloads", "words"),
    [
        (0.0510001, 5, "at least 94.8 % of the published one for each of 5 workloads (95 % confidence)."),
        (0.44, 1, "at least 56.0 % of the published one (95 % confidence)."),
        (0.0, 1, "at least the published one (95 % confidence)."),
    ],
)
def test_the_lower_limit_of_the_slowest_workload_is_told_rounded_down(
    largest: float, workloads: int, words: str
) -> None:
    judgement = replace(ACCEPTED, uniform_loss=replace(LOSS, fraction=0.0, largest=largest, workloads=workloads))
    assert uniform_loss_text(judgement) == f"Throughput per GPU in this run: {words}"


def test_no_speed_is_claimed_by_a_bound_far_below_the_gpus_own() -> None:
    judgement = replace(
        ACCEPTED,
        uniform_loss=replace(LOSS, largest=0.0),
        notes=("no published speed",),
        remarks=(because("unseen-loss"),),
    )
    assert uniform_loss_text(judgement) == ""
