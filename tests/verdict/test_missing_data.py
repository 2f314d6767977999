"""What is missing or implausible never passes: it may be what would have failed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_ddpscale.plan.study import DeviceType
from pytest_ddpscale.verdict.evaluation import judge
from tests.verdict.sample import judge_values, make_case, make_evidence, make_measurements

GOOD = [0.98, 0.981, 0.979, 0.98, 0.98, 0.981, 0.979]


def test_a_rank_missing_in_some_rounds_decides_nothing() -> None:
    case = make_case("weak_scaling_efficiency", 0.9)
    measurements = make_measurements(case, GOOD)
    kept = [m for m in measurements if not (m.arm == "ddp@2" and m.rank == 1 and m.round >= 5)]
    assert judge(case, make_evidence(case, measurements), 0.95).passed
    verdict = judge(case, make_evidence(case, kept), 0.95)
    assert verdict.outcome == "inconclusive"
    assert verdict.reason.startswith("only 5 of 7 rounds are complete")


def test_a_baseline_missing_in_some_rounds_decides_nothing() -> None:
    case = make_case("weak_scaling_efficiency", 0.9)
    kept = [m for m in make_measurements(case, GOOD) if not (m.arm == "alone" and m.round == 3)]
    assert judge(case, make_evidence(case, kept), 0.95).outcome == "inconclusive"


def test_a_reading_missing_in_some_rounds_decides_nothing() -> None:
    case = make_case("device_utilization", 0.9)
    measurements = make_measurements(case, GOOD)
    blind = [replace(m, utilization=None) if m.round == 2 else m for m in measurements]
    assert judge(case, make_evidence(case, blind), 0.95).outcome == "inconclusive"


def test_gpus_clearly_faster_together_than_alone_do_not_pass() -> None:
    verdict = judge_values("weak_scaling_efficiency", 0.9, [1.3, 1.301, 1.299, 1.3, 1.3])
    assert verdict.outcome == "inconclusive"
    assert verdict.reason.startswith("implausible")


@pytest.mark.parametrize(("device_type", "outcome"), [("cuda", "inconclusive"), ("cpu", "passed")])
def test_a_gpu_is_not_more_than_busy_but_a_cpu_may_have_threads_to_spare(device_type: DeviceType, outcome: str) -> None:
    case = make_case("device_utilization", 0.9)
    busy = [replace(m, utilization=1.02) for m in make_measurements(case, GOOD)]
    assert judge(case, make_evidence(case, busy, device_type), 0.95).outcome == outcome
