"""Per-round values become a value with an interval that says what is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pytest_ddpscale.judge.bounds import against_bound, blank_verdict
from pytest_ddpscale.judge.estimating import (
    estimate,
    estimate_of,
)
from pytest_ddpscale.judge.sequential import EProcesses
from pytest_ddpscale.plan.metric_catalogue import Scale
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.run.verdicts import Verdict
from pytest_ddpscale.simulate.round_noise import RoundNoise
from tests.builders.judged import CONFIDENCE, make_case
from tests.rows import rows

FALLING = [1.0 - 0.01 * i for i in range(9)]
WAVES = [1 + 0.03 * math.sin(2 * math.pi * i / 16) for i in range(32)]
VALUES = [0.95, 0.96, 0.955, 0.949, 0.958, 0.951, 0.957, 0.952, 0.954]


@rows("scale", ["factors", "differences"])
def test_the_interval_is_that_of_logarithms_or_of_values(scale: Scale) -> None:
    to, back = (math.log, np.exp) if scale == "factors" else (float, np.asarray)
    process = EProcesses(np.array([[to(value) for value in VALUES]]))
    found = estimate_of(VALUES, scale, 0.95)
    assert found is not None
    assert found.value == back(process.centres)
    assert found.interval == tuple(back(process.intervals(0.95))[0].tolist())


def test_the_fewest_rounds_may_be_too_few_for_the_confidence_asked_for() -> None:
    found = estimate_of([1.0] * FEWEST_ROUNDS, "factors", 1 - 1e-9)
    assert found.interval is None
    assert "too few for a confidence of 1" in found.too_few


def test_what_drifts_is_judged_as_if_it_went_on() -> None:
    found = estimate_of(FALLING, "differences", 0.95)
    assert found.interval is not None
    assert found.interval[0] == pytest.approx(0.93 - 0.06)
    assert found.note == ("not steady: -0.06 from the first to the last third of 9 rounds; judged as if this continued")


@rows("scale", ["factors", "differences"])
def test_of_many_places_each_has_its_own(scale: Scale) -> None:
    """Whatever the others are, and however many rounds they have."""
    series = [[2.5] * 9, VALUES, FALLING, WAVES[:12], VALUES[:3], [0.0, *VALUES[1:]], [math.inf, *VALUES[1:]], []]
    table = np.full((len(series), 12), math.nan)
    for row, values in enumerate(series):
        table[row, 12 - len(values) :] = values
    places = estimate(table, scale, 0.95, 32)
    for row, values in enumerate(series):
        found, alone = places.found(row), estimate_of(values, scale, 0.95, 32)
        assert str(found._replace(series=None)) == str(alone._replace(series=None))
    impossible = [5, 6] if scale == "factors" else [6]
    assert all(places.found(row).too_few.startswith("an impossible value was measured: [") for row in impossible)
    assert [math.isnan(value) for value in places.low.tolist()] == [row in (4, 7, *impossible) for row in range(8)]
    assert places.leave(0.01, 1)[:3].all()
    assert not places.leave(0.01, 1)[4:].any() or scale == "differences"


def test_the_more_rounds_correlate_the_wider_is_the_interval() -> None:
    found, shuffled = (estimate_of(values, "factors", 0.95) for values in (WAVES, sorted(WAVES, key=math.sin)))
    assert found.correlation is not None
    assert found.correlation > 0.8
    assert shuffled.correlation is not None
    assert shuffled.correlation < 0.5
    widths = [math.log(one.interval[1] / one.interval[0]) for one in (found, shuffled) if one.interval]
    assert widths[0] > 2 * widths[1]


def test_an_imported_sample_may_not_change() -> None:
    assert estimate_of([100.0], "factors", 0.95, error=0.01).series is None


RAMP = [100.0 * 0.999**number for number in range(8)]
# Of eight rounds: 31 with an interval of 16 … 63, correlation 0.95. So a busy CPU looks.
BIG_WAVES = [29.0 * math.exp(0.3 * math.sin(2 * math.pi * (number + 0.5) / 6)) for number in range(8)]
SLOW_WAVES = [100.0 * (1 + 0.03 * math.sin(2 * math.pi * number / 16)) for number in range(32)]


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
    verdict = judged(SLOW_WAVES, bound, 32)
    assert verdict.outcome == "inconclusive"
    assert verdict.correlation == pytest.approx(0.95, abs=0.05)
    assert verdict.reason == "the bound lies inside the interval"


def test_what_no_round_comes_near_is_decided_however_much_they_hang_together() -> None:
    """They lie between 21 and 39."""
    outcomes = {bound: judged(BIG_WAVES, bound, 8) for bound in (5.0, 12.0, 60.0, 80.0)}
    assert [one.outcome for one in outcomes.values()] == ["passed", "inconclusive", "inconclusive", "failed"]
    assert outcomes[5.0].reason == "no round comes within a factor of 2 of the bound"


def test_what_would_come_near_if_it_drifted_on_is_not_far() -> None:
    ramp = [100.0 * 0.9**number for number in range(8)]
    assert [judged(ramp, 20.0, limit).outcome for limit in (8, 32)] == ["passed", "inconclusive"]


def test_a_ratio_and_its_inverse_have_inverse_intervals() -> None:
    found, inverse = (estimate_of([value**sign for value in BIG_WAVES], "factors", CONFIDENCE) for sign in (1, -1))
    assert found.interval is not None
    low, high = found.interval
    assert inverse.interval == pytest.approx((1 / high, 1 / low))


@rows(("rho", "most"), [(0.7, 0.05), (0.9, 0.10)])
def test_factors_that_vary_much_are_covered_as_those_that_vary_little(rho: float, most: float) -> None:
    """Of 300 runs of 32 rounds; that 0.9 is beyond what the interval allows for costs the same at any noise."""
    missed = []
    for sd in (0.003, 0.3):
        logs = RoundNoise(sd, rho).series(np.random.default_rng(20261123), 32, 300)
        found = [estimate_of(np.exp(row), "factors", CONFIDENCE) for row in logs]
        ends = [one.interval for one in found if one.interval is not None]
        missed.append(sum(not low <= 1.0 <= high for low, high in ends))
    assert missed[0] == missed[1]
    assert missed[0] <= most * 300
