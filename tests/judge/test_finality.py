"""A verdict says why the numbers do not decide yet although the whole interval keeps, or misses, the bound."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pytest_ddpscale.judge.bounds import against_bound, blank_verdict
from pytest_ddpscale.judge.estimating import estimate_of, stretched_interval
from pytest_ddpscale.run.verdicts import Verdict
from pytest_ddpscale.simulate.round_noise import RoundNoise
from tests.builders.judged import CONFIDENCE, make_case
from tests.rows import rows

RAMP = [100.0 * 0.999**number for number in range(8)]
# Of eight rounds: 31 with an interval of 16 … 63, correlation 0.95. So a busy CPU looks.
BIG_WAVES = [29.0 * math.exp(0.3 * math.sin(2 * math.pi * (number + 0.5) / 6)) for number in range(8)]
WAVES = [100.0 * (1 + 0.03 * math.sin(2 * math.pi * number / 16)) for number in range(32)]


def judged(values: list[float], bound: float, limit: int, metric: str = "throughput_per_gpu") -> Verdict:
    case = make_case(metric, bound, world_size=1)
    found = estimate_of(values, "factors", CONFIDENCE, limit)
    return against_bound(blank_verdict(case, CONFIDENCE), case.requirement, np.array(values), lambda: found)


@rows(("bound", "limit", "outcome"), [(98.5, 32, "inconclusive"), (98.5, 8, "passed"), (95.0, 32, "passed")])
def test_a_ramp_towards_the_bound_is_watched_to_the_limit_of_rounds(bound: float, limit: int, outcome: str) -> None:
    verdict = judged(RAMP, bound, limit)
    assert verdict.outcome == outcome
    if outcome == "inconclusive":
        assert verdict.is_open
        assert verdict.reason == (
            "not final after 8 of 32 rounds: a trend within the noise or one odd round may still cross the bound"
        )


def test_a_ramp_upwards_is_not_failed_before_it_ends() -> None:
    rising = [200.0 - value for value in RAMP]
    assert judged(rising, 102.0, 32).outcome == "inconclusive"
    assert judged(rising, 105.0, 32).outcome == "failed"


@rows("bound", [93.0, 100.0, 107.0])
def test_rounds_that_hang_together_too_much_decide_nothing(bound: float) -> None:
    verdict = judged(WAVES, bound, 32)
    assert verdict.outcome == "inconclusive"
    assert verdict.correlation == pytest.approx(0.95, abs=0.05)
    assert verdict.reason in {
        f"successive rounds correlate by {share}, more than the 0.5 that the interval allows for"
        for share in ("0.9", "1.0")
    }


def test_a_bound_far_beyond_what_correlation_may_do_is_decided() -> None:
    assert judged(WAVES, 60.0, 32).outcome == "passed"
    assert judged(WAVES, 160.0, 32).outcome == "failed"


def test_what_errs_by_factors_is_stretched_by_factors() -> None:
    """Nothing that is positive is in doubt down to nought, and as far up as down."""
    assert judged(BIG_WAVES, 0.1, 8).outcome == "passed"
    assert judged(BIG_WAVES, 5.0, 8).outcome == "inconclusive"
    assert judged(BIG_WAVES, 200.0, 8).outcome == "inconclusive"
    assert judged(BIG_WAVES, 800.0, 8).outcome == "failed"


def test_a_ratio_and_its_inverse_are_stretched_alike() -> None:
    found, inverse = (estimate_of([value**sign for value in BIG_WAVES], "factors", CONFIDENCE) for sign in (1, -1))
    assert found.estimate is not None
    assert inverse.estimate is not None
    low, high = stretched_interval(found, found.estimate)
    assert found.exceeds
    assert stretched_interval(inverse, inverse.estimate) == pytest.approx((1 / high, 1 / low))


@rows(("rho", "most"), [(0.7, 0.05), (0.9, 0.10)])
def test_factors_that_vary_much_are_covered_as_those_that_vary_little(rho: float, most: float) -> None:
    """Of 300 runs of 32 rounds; that 0.9 is beyond what the interval allows for costs the same at any noise."""
    missed = []
    for sd in (0.003, 0.3):
        logs = RoundNoise(sd, rho).series(np.random.default_rng(20261123), 32, 300)
        found = [estimate_of(np.exp(row), "factors", CONFIDENCE) for row in logs]
        ends = [stretched_interval(one, one.estimate) for one in found if one.estimate is not None]
        missed.append(sum(not low <= 1.0 <= high for low, high in ends))
    assert missed[0] == missed[1]
    assert missed[0] <= most * 300


def test_the_correlation_is_kept_whatever_the_outcome() -> None:
    mixed = [100.0, 101.0, 99.5, 100.2, 99.8, 100.6, 99.3, 100.4]
    verdict = judged(mixed, 50.0, 32)
    assert verdict.outcome == "passed"
    assert verdict.correlation is not None
    assert verdict.correlation < 0
