"""A bound decides to the last bit of the interval, whatever the interval is: no line has such a bound."""

from __future__ import annotations

import math

import pytest

from pytest_ddpscale.plan.metric_catalogue import METRICS
from tests.judge.runs import Run

WORDS = "rounds=16 net=*0.84,0.88,0.82,0.9,0.8,0.86,0.84,0.88,0.83"
OF_METRICS = {
    "throughput_per_gpu": 85.0,
    "weak_scaling_efficiency": 0.85,
    "strong_scaling_speedup": 1.7,
    "exposed_communication": 0.15,
    "step_time_p95": 47.0,
}


@pytest.mark.parametrize("metric", OF_METRICS)
def test_a_bound_is_held_against_the_interval_to_the_last_bit(metric: str) -> None:
    def outcome(bound: float) -> str:
        return Run(f"{metric}:{bound!r}@2 {WORDS}").verdict().outcome

    found = Run(f"{metric}:{OF_METRICS[metric]}@2 {WORDS}").verdict()
    assert found.interval is not None
    low, high = found.interval
    assert low < OF_METRICS[metric] < high
    kept, missed = (high, low) if METRICS[metric].upper_bound else (low, high)
    inside, beyond = (0, math.inf) if METRICS[metric].upper_bound else (math.inf, 0)
    assert outcome(kept) == "passed"
    assert outcome(math.nextafter(kept, inside)) == "inconclusive"
    assert outcome(missed) == "inconclusive"
    assert outcome(math.nextafter(missed, inside)) == "failed"
    assert outcome(math.nextafter(kept, beyond)) == "passed"
