"""The interval holds at all rounds together, for correlated and heavy-tailed noise, and narrows."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.stats.sequential import EProcess
from tests.rows import rows

MODERATE = st.floats(-100, 100, allow_nan=False).map(lambda value: round(value, 6))
SERIES = st.lists(MODERATE, min_size=5, max_size=30)


class TestLogEvidence:
    def test_is_small_for_the_mean_itself(self) -> None:
        assert EProcess([1.0, 2.0, 3.0, 2.0, 1.0]).log_evidence(1.8) < 0

    def test_grows_with_distance_from_the_values(self) -> None:
        process = EProcess([1.0, 1.1, 0.9, 1.05, 0.95, 1.0])
        found = [process.log_evidence(mean) for mean in (1.0, 1.1, 1.3, 2.0)]
        assert found == sorted(found)

    def test_of_one_value_is_never_enough_to_rule_out_anything(self) -> None:
        assert EProcess([5.0]).interval(0.9) is None

    def test_says_nothing_where_every_value_equals_the_mean(self) -> None:
        assert EProcess([2.0] * 8).log_evidence(2.0) == -math.inf

    def test_is_the_same_in_other_units(self) -> None:
        values = [3.0, 3.2, 2.9, 3.1, 3.05]
        here, there = EProcess(values), EProcess([1000 * value for value in values])
        assert here.log_evidence(3.5) == pytest.approx(there.log_evidence(3500))

    def test_for_independent_values_is_at_most_that_of_a_t_mixture(self) -> None:
        """The best-fitting correlation can only speak for the mean in question, never against it."""
        values = [0.3, -0.2, 0.8, 0.5, 0.1, 0.9]
        n, total, squares = len(values), sum(values), sum(v * v for v in values)
        g2 = 9.0
        left = squares - g2 / (1 + g2 * n) * total**2
        bayes_factor = -0.5 * math.log1p(g2 * n) - n / 2 * math.log(left / squares)
        assert EProcess(values).log_evidence(0.0) <= bayes_factor + 1e-12

    def test_refuses_values_that_are_not_finite(self) -> None:
        with pytest.raises(ValueError, match="finite"):
            EProcess([1.0, math.nan])


class TestInterval:
    @given(SERIES)
    def test_holds_the_mean(self, values: list[float]) -> None:
        interval = EProcess(values).interval(0.95)
        assert interval is not None
        mean = sum(values) / len(values)
        slack = 1e-9 * max(1.0, *map(abs, values))
        assert interval[0] - slack <= mean <= interval[1] + slack

    @given(SERIES, st.floats(0.05, 20))
    def test_rules_out_everything_beyond_its_limits(self, values: list[float], beyond: float) -> None:
        process = EProcess(values)
        interval = process.interval(0.95)
        assert interval is not None
        width = max(interval[1] - interval[0], 1e-6)
        for outside in (interval[0] - beyond * width, interval[1] + beyond * width):
            assert process.log_evidence(outside) >= math.log(20) - 1e-6

    @given(SERIES)
    def test_is_wider_at_more_confidence(self, values: list[float]) -> None:
        process = EProcess(values)
        narrow, wide = process.interval(0.8), process.interval(0.95)
        assert narrow is not None
        assert wide is not None
        assert wide[0] <= narrow[0]
        assert narrow[1] <= wide[1]

    @given(SERIES)
    def test_is_mirrored_by_mirrored_values(self, values: list[float]) -> None:
        here, mirrored = EProcess(values).interval(0.95), EProcess([-value for value in values]).interval(0.95)
        assert here is not None
        assert mirrored is not None
        scale = max(1.0, *map(abs, values))
        assert mirrored[0] == pytest.approx(-here[1], abs=1e-6 * scale)
        assert mirrored[1] == pytest.approx(-here[0], abs=1e-6 * scale)

    def test_of_equal_values_is_that_value(self) -> None:
        assert EProcess([0.5] * 5).interval(0.95) == (0.5, 0.5)

    def test_needs_more_rounds_for_more_confidence(self) -> None:
        assert EProcess([0.5] * 5).interval(0.9999) is None
        assert EProcess([0.5] * 12).interval(0.9999) == (0.5, 0.5)

    def test_narrows_as_rounds_come_in(self) -> None:
        chance = random.Random(4)
        values = [chance.gauss(10, 0.2) for _ in range(60)]
        widths = []
        for rounds in (5, 15, 60):
            interval = EProcess(values[:rounds]).interval(0.95)
            assert interval is not None
            widths.append(interval[1] - interval[0])
        assert widths == sorted(widths, reverse=True)
        assert widths[-1] < widths[0] / 3

    def test_is_wider_for_values_that_hang_together(self) -> None:
        """The same values, in waves instead of mixed, say less about their mean."""
        mixed, in_waves = [1.0, -1.0] * 8, [1.0] * 4 + [-1.0] * 4 + [1.0] * 4 + [-1.0] * 4
        narrow, wide = EProcess(mixed).interval(0.95), EProcess(in_waves).interval(0.95)
        assert narrow is not None
        assert wide is not None
        assert wide[1] - wide[0] > 1.5 * (narrow[1] - narrow[0])

    def test_limits_are_the_nearest_means_that_are_ruled_out(self) -> None:
        chance, threshold = random.Random(0), -math.log(0.05)
        for rounds in (5, 6, 8, 12, 30) * 20:
            process = EProcess([chance.gauss(100, 1) for _ in range(rounds)])
            interval = process.interval(0.95)
            assert interval is not None
            for limit in interval:
                assert process.log_evidence(limit) >= threshold - 1e-9
                assert process.log_evidence(limit - 1e-6 * (limit - process.centre)) < threshold

    def test_limits_are_found_in_few_steps(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A judgement of hundreds of nodes asks for tens of thousands of intervals."""
        asked: list[float] = []
        evidence_of = EProcess.log_evidence

        def log_evidence(self: EProcess, mean: float) -> float:
            asked.append(mean)
            return evidence_of(self, mean)

        monkeypatch.setattr(EProcess, "log_evidence", log_evidence)
        chance = random.Random(0)
        for _ in range(100):
            EProcess([chance.gauss(100, 1) for _ in range(8)]).interval(0.95)
        assert len(asked) < 100 * 40

    @rows("confidence", [0.0, 1.0, -1.0, math.nan])
    def test_refuses_a_confidence_that_is_none(self, confidence: float) -> None:
        with pytest.raises(ValueError, match="confidence"):
            EProcess([1.0, 2.0]).interval(confidence)
