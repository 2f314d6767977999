"""How large a loss of all GPUs alike could hide behind published throughputs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_ddpscale.judge.uniform_loss import uniform_loss
from pytest_ddpscale.run.verdicts import UniformLoss, Verdict, VerdictOutcome
from tests.judge.test_run_outcome import PASSED
from tests.rows import rows


def throughput(workload: str, low: float, gpus: int = 8, outcome: VerdictOutcome = "passed") -> Verdict:
    """Of which 100 img/s were published."""
    return replace(
        PASSED, id=f"{workload}-{gpus}", workload=workload, world_size=gpus, value=low + 1, interval=(low, low + 2),
        published=100.0, outcome=outcome,
    )  # fmt: skip


def loss_of(*verdicts: Verdict) -> UniformLoss | None:
    """As found where another confidence changes no interval."""
    return uniform_loss(verdicts, 0.95, lambda name, _: next(one for one in verdicts if one.id == name))


def test_it_is_the_distance_from_the_published_value_to_the_lower_limit() -> None:
    found = loss_of(throughput("a", 75.0))
    assert found == UniformLoss(0.25, 0.25, 0.95, "a-8", 1)


def test_the_workload_that_limits_it_most_counts_and_the_one_that_limits_it_least_is_told() -> None:
    found = loss_of(throughput("a", 75.0), throughput("b", 93.75), throughput("c", 87.5))
    assert found == UniformLoss(0.0625, 0.25, 0.95, "b-8", 3)


def test_each_of_several_workloads_is_judged_at_a_share_of_the_level() -> None:
    asked: list[tuple[str, float]] = []

    def judge_at(name: str, confidence: float) -> Verdict:
        asked.append((name, confidence))
        return throughput(name[0], 90.0)

    found = uniform_loss([throughput("a", 99.0), throughput("b", 99.0, outcome="failed")], 0.95, judge_at)
    ((name, confidence),) = asked
    assert name == "a-8"
    assert confidence == pytest.approx(0.975)
    assert found is not None
    assert found.fraction == pytest.approx(0.1)


def test_of_a_workload_the_most_gpus_count_and_throughput_before_a_ratio() -> None:
    ratio = replace(throughput("a", 99.0, 64), id="ratio", metric="generation_ratio")
    found = loss_of(throughput("a", 99.0, 1), ratio, throughput("a", 95.0, 8))
    assert found is not None
    assert found.requirement == "a-8"
    of_ratio = loss_of(ratio)
    assert of_ratio is not None
    assert of_ratio.requirement == "ratio"


def test_machines_that_beat_the_published_value_lose_nothing() -> None:
    found = loss_of(throughput("a", 101.0))
    assert found is not None
    assert found.fraction == 0.0


@rows(
    "verdict",
    [
        throughput("a", 94.0, outcome="failed"),
        throughput("a", 94.0, outcome="inconclusive"),
        replace(throughput("a", 94.0), published=None),
        replace(throughput("a", 94.0), metric="weak_scaling_efficiency"),
    ],
)
def test_what_did_not_pass_or_was_not_published_says_nothing(verdict: Verdict) -> None:
    assert loss_of(verdict) is None


def test_too_few_rounds_for_the_higher_confidence_say_nothing() -> None:
    without = replace(throughput("a", 94.0), interval=None, outcome="inconclusive")
    assert uniform_loss([throughput("a", 94.0)], 0.95, lambda *_: without) is None
