"""Chapter 12 of Jordi Torres' "Supercomputing for AI": from the measured columns of its tables we compute the others.

Each has to lie within what the rounding of what it is computed from, and of what was printed, allows.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from pytest_ddpscale.suites.whole_run_tables import (
    WholeRunSeries,
    bottleneck,
    compared_efficiency_table,
    conclusions,
    efficiency_table,
    figures,
    gain_table,
    result_table,
    time_table,
)
from tests.suites.published_whole_runs import (
    IDEAL_SAMPLES_PER_S,
    MICRO_DERIVED,
    TINY_DERIVED,
    Derived,
    published,
)

SERIES = published()
DERIVED = dict(zip(("micro-224", "tiny-224"), (MICRO_DERIVED, TINY_DERIVED), strict=True))
ROUNDING = 0.5  # of every measured number: whole seconds, whole images per second
PERCENT, TENTH = 0.5, 0.05  # of what was printed


def ends(value: float) -> tuple[float, float]:
    return value - ROUNDING, value + ROUNDING


def agrees(printed: float, low: float, high: float, rounding: float) -> bool:
    return low - rounding <= printed <= high + rounding


@pytest.mark.parametrize("series", SERIES, ids=lambda one: one.name)
def test_derived_columns_are_the_printed_ones_within_rounding(series: WholeRunSeries) -> None:
    derived: Mapping[int, Derived] = DERIVED[series.name]
    first_rate, first_time = ends(series.sizes[0].samples_per_s), ends(series.sizes[0].complete_s)
    before = None
    for size, fact in zip(series.sizes, series.facts, strict=True):
        printed, rate, time = derived[size.gpus], ends(size.samples_per_s), ends(size.complete_s)
        if printed.efficiency_percent is not None and before is not None:
            low, high = (100 * one / other / size.gpus for one, other in zip(rate, reversed(first_rate), strict=True))
            assert agrees(printed.efficiency_percent, low, high, TENTH), size
            assert low <= 100 * fact.efficiency <= high
        if printed.gain_percent is not None:
            assert before is not None
            old_rate = ends(before.samples_per_s)
            assert fact.more_samples_per_s == pytest.approx(printed.marginal_samples_per_s), "whole numbers, subtracted"
            low, high = (100 * (one / old - 1) for one, old in zip(rate, reversed(old_rate), strict=True))
            assert agrees(printed.gain_percent, low, high, PERCENT), size
            assert low <= 100 * (fact.gain or 0.0) <= high
        if printed.saved_s is not None:
            assert before is not None
            old_time = ends(before.complete_s)
            assert before.complete_s - size.complete_s == printed.saved_s
            assert printed.saved_percent is not None
            low, high = (100 * (1 - new / old) for new, old in zip(reversed(time), old_time, strict=True))
            assert agrees(printed.saved_percent, low, high, TENTH if printed.saved_percent < 1 else PERCENT), size
            assert low <= 100 * (fact.saved_share or 0.0) <= high
        if printed.saved_of_one_percent is not None:
            low, high = (100 * (1 - new / old) for new, old in zip(reversed(time), first_time, strict=True))
            assert agrees(printed.saved_of_one_percent, low, high, PERCENT), size
        before = size


def test_ideal_throughput_is_the_printed_one_but_for_an_erratum() -> None:
    """docs/evidence/documents.md: 8 times 240 is 1920."""
    found = {one.gpus: one.samples_per_s / one.efficiency for one in SERIES[0].facts}
    deviating = [gpus for gpus, printed in IDEAL_SAMPLES_PER_S.items() if found[gpus] != pytest.approx(printed)]
    assert deviating == [8]
    assert found[8] == pytest.approx(1920)


def test_the_text_disagrees_with_its_own_tables_in_one_number() -> None:
    """Throughput grows "by more than 22x" in one sentence, 21x in another, more than 20x in a third."""
    micro, tiny = SERIES
    assert 21 < micro.facts[-1].speedup < 22
    assert micro.sizes[0].complete_s / micro.sizes[-1].complete_s == pytest.approx(1.7, abs=0.05)
    by_gpus = {one.gpus: one for one in tiny.facts}
    assert by_gpus[8].speedup > 7
    assert by_gpus[16].speedup / by_gpus[8].speedup == pytest.approx(2, rel=0.02), "16 GPUs double that again"
    assert (by_gpus[32].more_samples_per_s or 0) / (by_gpus[2].more_samples_per_s or 1) > 10, (
        "an order of magnitude more"
    )


def test_the_tables_are_printed_as_in_the_chapter() -> None:
    micro, tiny = SERIES
    assert result_table(tiny, "").rows[-1] == ("32", "310", "6914", "53")
    assert efficiency_table(micro).rows[4] == ("16", "3840", "3075", "80.1 %")
    assert gain_table(micro).rows[4] == ("16→32", "3075 → 5205", "+2130", "+69 %")
    assert gain_table(tiny).rows[0] == ("1→2", "242 → 475", "+233", "+96 %")
    assert time_table(micro).rows[1] == ("2", "439", "−117 s (−21.0 %)", "−21.0 %")
    assert time_table(micro).rows[5] == ("32", "328", "−2 s (−0.6 %)", "−41.0 %")
    assert compared_efficiency_table(SERIES).rows[4] == ("16", "80.1 %", "92.9 %")


def test_it_is_concluded_what_the_chapter_concludes() -> None:
    micro, tiny = SERIES
    assert (micro.saturation, tiny.saturation) == (8, None), "beyond 8 GPUs the curve flattens; tiny-224's does not"
    assert tiny.sweet_spot == [8, 16], "a reasonable sweet spot for tiny-224 could be 8 to 16 GPUs"
    assert micro.sweet_spot == []
    assert tiny.fastest == 32, "a tight deadline with no GPU availability constraints"
    assert tiny.most_efficient == 16, "a limited GPU allocation where efficiency matters"
    said = [*conclusions(micro), *conclusions(tiny, deadline_s=500)]
    assert "micro-224: from 1 to 32 GPUs throughput grows 21.7x, complete time shrinks 1.7x." in said
    assert "micro-224: complete time saturates at 8 GPUs: the next doubling saves less than 5 % of it." in said
    assert "tiny-224: deadline of 500 s: met from 16 GPUs on." in said
    assert any(line.startswith("tiny-224: sweet spot") and line.endswith("8 to 16 GPUs.") for line in said)
    assert list(bottleneck(SERIES)) == [
        "micro-224, the smaller data set, is bound by overhead on 32 GPUs, in 3 iterations an epoch: 67.8 % efficient, "
        "tiny-224 89.3 %. Of the complete time 58 % does not shrink on micro-224 (Amdahl's law), 10 % on tiny-224."
    ]


def test_each_figure_of_the_chapter_is_drawn() -> None:
    drawn = [one for one in figures(SERIES) if one]
    assert [one.key for one in drawn] == [
        "bars-micro-224", "bars-tiny-224", "speedup", "both-micro-224", "both-tiny-224",
    ]  # fmt: skip
    assert b">ideal<" in drawn[2].svg
    assert {row[0] for row in drawn[2].table.rows} == {"micro-224", "tiny-224"}
    assert drawn[3].table.rows[-1][:3] == ("efficiency (%)", "32", "67.77")
