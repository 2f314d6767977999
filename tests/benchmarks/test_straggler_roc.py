"""The simulation behind docs/evidence/stragglers.md names whom it should."""

from __future__ import annotations

from pytest_ddpscale.simulate.round_noise import RoundNoise
from tests.benchmarks.scripts import benchmark

straggler_roc = benchmark("straggler_roc")
NOISE = RoundNoise(0.003)


def test_a_slow_rank_is_counted_as_named_or_noted_by_its_gap() -> None:
    clear, slight = (straggler_roc.measure(8, 16, NOISE, 0.0, [3], straggler_roc.always(gap), 5) for gap in (0.1, 0.04))
    assert (clear.named, clear.noted, clear.false) == (100, 0, 0)
    assert (slight.named, slight.noted, slight.false) == (0, 100, 0)


def test_nobody_is_counted_where_nobody_is_slow() -> None:
    alike = straggler_roc.measure(8, 16, NOISE, 0.0, [], straggler_roc.always(0.0), 5)
    assert (alike.named, alike.noted, alike.false, alike.false_notes) == (0, 0, 0, 0)


def test_who_is_slow_unexpectedly_is_counted_as_a_false_name() -> None:
    differing = straggler_roc.measure(8, 16, NOISE, 0.2, [], straggler_roc.always(0.0), 5)
    assert differing.false > 0


def test_a_gpu_between_two_bounds_fails_one_and_passes_the_other() -> None:
    told = dict(zip(straggler_roc.BOUNDS, straggler_roc.judged_uniformity(0.003, 0.0, 0.05, runs=2), strict=True))
    assert (told[1.04], told[1.06]) == ("0/100/0", "100/0/0")
