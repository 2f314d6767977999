"""Curves and bars of any quantity, as suites draw them."""

from __future__ import annotations

import pytest

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.study import Plan, ProbeStudy
from pytest_ddpscale.report.figures.bars import Bars, grouped_bars
from pytest_ddpscale.report.figures.drawing import svg_of
from pytest_ddpscale.report.figures.lines import Bound, Curve, LineAxes, Point, line_chart
from pytest_ddpscale.report.figures.maps import pair_bandwidths_within, pair_matrix
from tests.builders.judged import Found
from tests.builders.probes import measure_probe, probe_evidence, steady
from tests.report.drawn import bounds, crosses, description, intervals, painted, points, texts

SPEEDS = [Point(1.0, 240.0), Point(2.0, 464.0), Point(32.0, 5205.0)]
LOG = LineAxes("GPUs", "speed-up", x_is_log=True, values="log 2", ideal="diagonal")


def test_a_chart_has_its_curves_and_says_its_numbers() -> None:
    chart = line_chart(LOG, [Curve("micro", SPEEDS), Curve("tiny", SPEEDS[:2])])
    assert chart is not None
    assert chart.said == "micro, speed-up: 240 at 1, 464 at 2, 5205 at 32; tiny, speed-up: 240 at 1, 464 at 2"
    axes = painted(chart).axes[0]
    assert points(axes) == [(1, 240), (2, 464), (32, 5205)]
    assert [*axes.get_xticks()] == [1, 2, 32]
    assert {"micro", "tiny", "ideal"} <= set(texts(svg_of("k", "Speed-up", chart)))


def test_a_curve_of_many_points_has_no_marks() -> None:
    chart = line_chart(LineAxes("iteration", "loss"), [Curve("a", [Point(i, 2.0) for i in range(300)])])
    assert chart is not None
    assert "2 at 0, 2 at 299" in chart.said
    assert [line.get_marker() for line in painted(chart).axes[0].lines] == [""]


def test_a_second_axis_has_its_own_scale_on_the_right() -> None:
    axes = LineAxes("GPUs", "img/s", x_is_log=True, second="efficiency (%)")
    share = Curve("efficiency", [Point(1.0, 100.0), Point(32.0, 68.0)], is_second=True)
    left, right = painted(line_chart(axes, [Curve("throughput", SPEEDS), share])).axes
    assert (left.get_ylim()[1] > 5205, right.get_ylim()[1] < 150) == (True, True)


def test_intervals_bounds_and_misses_are_marked_and_a_wide_interval_leaves_room() -> None:
    curve = Curve("reduce", [Point(1, 10.0, (0.1, 1000.0), is_failed=True), Point(2, 10.0)], [Bound(1, 12.0)])
    axes = LineAxes("message size", "busbw", x_is_log=True, x_name="{:g} KiB".format)
    chart = line_chart(axes, [curve])
    plot = painted(chart).axes[0]
    assert (crosses(plot), intervals(plot), bounds(plot)) == ([(1, 10)], {1: (5, 20)}, [(1, 12, False)])
    assert plot.get_ylim()[1] < 25
    shown = svg_of("k", "t", chart)
    assert {"1 KiB", "2 KiB", "bound", "misses its bound"} <= set(texts(shown))
    assert "misses its bound at 1 KiB" in description(shown)


def test_what_is_no_curve_is_not_drawn_and_equal_values_are() -> None:
    for axes in (LOG, LineAxes("x", "y")):
        assert line_chart(axes, [Curve("a", [Point(4.0, 4.0)])]) is None, "one point"
        assert line_chart(axes, []) is None
        painted(line_chart(axes, [Curve("a", [Point(1.0, 4.0), Point(2.0, 4.0)])]))
    painted(line_chart(LineAxes("x", "y"), [Curve("a", [Point(0.0, 0.0), Point(1.0, 0.0)])]))
    assert svg_of("k", "None", None) == ""


def test_a_key_and_names_from_outside_are_harmless() -> None:
    hostile = '<script>"alert&#1;'
    shown = svg_of(hostile, hostile, line_chart(LineAxes(hostile, hostile), [Curve(hostile, SPEEDS)]))
    assert "<script" not in shown
    assert any(text.startswith(hostile) for text in texts(shown))


def test_bars_of_each_cell_are_below_each_other_with_their_intervals() -> None:
    found = Found(20.0, (18.0, 30.0))
    chart = grouped_bars(("GPUs", "img/s"), ["1", "2"], [Bars("a", [10.0, found]), Bars("b", [None, 5.0])])
    assert chart is not None
    assert chart.said == "a: 1 10, 2 20; b: 2 5"
    axes = painted(chart).axes[0]
    widths = [bar.get_width() for bar in axes.patches]
    assert [width / widths[0] for width in widths] == pytest.approx([1, 2, 0.5])
    ((low, _), (high, _)) = axes.collections[0].get_segments()[0]
    assert (high - low) / widths[0] == pytest.approx(1.2)
    assert grouped_bars(("GPUs", "img/s"), ["1"], [Bars("a", [None])]) is None


def test_pairs_of_a_node_are_those_of_the_slowest_node_by_the_largest_message() -> None:
    small, large = Arm("send-recv-1mib", 3), Arm("send-recv-4mib", 3)
    study = ProbeStudy((small, large), 8, 0.1)
    plan = Plan("a100", "cuda", (), nodes=2, ranks_per_node=3, probes=study)
    measured = measure_probe(plan, small, steady(1.0)) + measure_probe(plan, large, steady(20.0, {(4, 5): 5.0}))
    found = pair_bandwidths_within(probe_evidence(plan, measured))
    assert found == pytest.approx(
        {("rank 0", "rank 1"): 20, ("rank 0", "rank 2"): 20, ("rank 1", "rank 2"): 5}, rel=0.01
    )
    drawing = pair_matrix(found)
    assert drawing is not None
    assert "slowest: rank 1 and rank 2 with 5.0" in drawing.said


def test_pairs_of_several_nodes_are_no_pairs_of_one() -> None:
    probe = Arm("send-recv-1mib", 4)
    plan = Plan("a100", "cuda", (), nodes=4, ranks_per_node=1, probes=ProbeStudy((probe,), 8, 0.1))
    assert pair_bandwidths_within(probe_evidence(plan, measure_probe(plan, probe, steady(1.0)))) == {}
