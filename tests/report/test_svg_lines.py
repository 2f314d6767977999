"""Curves and bars: what is drawn of them, and what is said for those who do not see them."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from pytest_ddpscale.report.svg_lines import LineAxes, LineCurve, bar_chart, line_chart

POINTS = [(1.0, 240.0), (2.0, 464.0), (32.0, 5205.0)]
LOG = LineAxes("GPUs", "speed-up", x_is_log=True, y_is_log=True, ideal=True)


def marks(chart: str) -> int:
    return len(re.findall("<circle|<path", chart))


def test_a_chart_is_well_formed_and_says_its_numbers() -> None:
    chart = line_chart("k", "Speed <up>", LOG, [LineCurve("micro", POINTS), LineCurve("tiny", POINTS[:2])])
    ElementTree.fromstring(chart)
    assert "micro: 240 at 1, 464 at 2, 5205 at 32; tiny: 240 at 1, 464 at 2" in chart
    assert chart.count("<polyline") == 2
    assert marks(chart) == 3 + 2 + 2, "and one of each in the key"
    assert "ideal" in chart


def test_a_curve_of_many_points_has_no_marks() -> None:
    chart = line_chart("k", "Loss", LineAxes("iteration", "loss"), [LineCurve("a", [(i, 2.0) for i in range(300)])])
    assert marks(chart) == 1, "in the key"
    assert "2 at 0, 2 at 299" in chart


def test_a_second_axis_has_its_own_scale_on_the_right() -> None:
    axes = LineAxes("GPUs", "img/s", x_is_log=True, second="efficiency %")
    curves = [LineCurve("throughput", POINTS), LineCurve("efficiency", [(1.0, 100.0), (32.0, 68.0)], second=True)]
    chart = line_chart("k", "Both", axes, curves)
    ElementTree.fromstring(chart)
    heights = [re.findall(r'points="([^"]+)"', chart)[i].split()[0].split(",")[1] for i in (0, 1)]
    assert float(heights[0]) > float(heights[1]), "240 is low on its axis, 100 % high on the other"
    assert "efficiency %" in chart


def test_one_point_and_equal_values_are_drawn_and_none_are_not() -> None:
    for axes in (LOG, LineAxes("x", "y")):
        ElementTree.fromstring(line_chart("k", "One", axes, [LineCurve("a", [(4.0, 4.0)])]))
        ElementTree.fromstring(line_chart("k", "Zero", LineAxes("x", "y"), [LineCurve("a", [(0.0, 0.0), (1.0, 0.0)])]))
    assert line_chart("k", "None", LOG, [LineCurve("a", [])]) == ""
    assert bar_chart("k", "None", LOG, {}) == ""


def test_bars_stand_beside_each_other_by_category() -> None:
    chart = bar_chart("k", "Throughput", LineAxes("GPUs", "img/s"), {"a": {"1": 10.0, "2": 20.0}, "b": {"2": 5.0}})
    ElementTree.fromstring(chart)
    heights = [float(one) for one in re.findall(r'<rect [^>]*height="([\d.]+)"', chart)]
    assert len(heights) == 3 + 2, "and the key"
    one, two, five = heights[:3]
    assert two / one == pytest.approx(2, rel=0.02)
    assert five / one == pytest.approx(0.5, rel=0.02)
    assert "a: 1 10, 2 20; b: 2 5" in chart
