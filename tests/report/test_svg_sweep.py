"""Curves over message sizes lie where their axes say."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.study import Plan, ProbeStudy
from pytest_ddpscale.report.svg_maps import pair_bandwidths_within, pair_matrix
from pytest_ddpscale.report.svg_sweep import SweptCurve, SweptPoint, sweep_chart
from tests.judge.probed import measure_probe, probe_evidence, steady

SVG = "{http://www.w3.org/2000/svg}"
KIB = 1024
RISING = SweptCurve(
    "all-reduce", (SweptPoint(KIB, 10.0, (9.0, 11.0)), SweptPoint(32 * KIB, 50.0), SweptPoint(1024 * KIB, 100.0)), 0
)


def chart(*curves: SweptCurve, is_log: bool = False) -> ET.Element:
    root = ET.fromstring(sweep_chart("k", "Bus bandwidth", "busbw, GB/s", curves, is_log=is_log))
    for element in root.iter():
        assert not re.search(r"nan|inf\b", " ".join(v for k, v in element.items() if k not in ("style", "class")))
    return root


def line_of(root: ET.Element) -> list[tuple[float, float]]:
    [polyline] = root.iter(f"{SVG}polyline")
    points = (pair.split(",") for pair in polyline.get("points", "").split())
    return [(float(x), float(y)) for x, y in points]


def texts(root: ET.Element) -> list[str]:
    return [one.text or "" for one in root.iter(f"{SVG}text")]


def test_sizes_lie_on_a_logarithmic_axis_and_bandwidths_on_a_linear_one() -> None:
    (x1, y1), (x2, y2), (x3, y3) = line_of(chart(RISING))
    assert x2 - x1 == pytest.approx(x3 - x2, abs=0.2)
    assert (y1 - y3) / (y2 - y3) == pytest.approx(90 / 50, abs=0.01)


def test_times_lie_on_logarithmic_axes() -> None:
    times = SweptCurve("all-reduce", tuple(SweptPoint(KIB * 10**i, 10.0**i) for i in range(3)), 0)
    (_, y1), (_, y2), (_, y3) = line_of(chart(times, is_log=True))
    assert y1 - y2 == pytest.approx(y2 - y3, abs=0.2)


def test_sizes_are_named_in_their_unit_and_not_more_of_them_than_fit() -> None:
    assert {"1 KiB", "32 KiB", "1 MiB", "all-reduce"} <= set(texts(chart(RISING)))
    many = SweptCurve("all-reduce", tuple(SweptPoint(KIB * 2**i, 1.0) for i in range(21)), 0)
    assert [text for text in texts(chart(many)) if text.endswith("iB")] == [
        "1 KiB", "16 KiB", "256 KiB", "4 MiB", "64 MiB", "1 GiB"
    ]  # fmt: skip


def test_a_bound_and_what_misses_it_are_marked() -> None:
    point = SweptPoint(KIB, 10.0, None, bound=20.0, has_failed=True)
    root = chart(SweptCurve("broadcast", (point,), 3))
    assert [one.get("class") for one in root.iter(f"{SVG}line") if one.get("class")] == ["bound"]
    assert sum(one.get("class") == "failed" for one in root.iter(f"{SVG}path")) == 2, "at the value and in the key"
    assert {"bound", "misses its bound"} <= set(texts(root))
    assert "misses its bound at 1 KiB" in (root.findtext(f"{SVG}desc") or "")


def test_without_bounds_the_key_speaks_of_none() -> None:
    assert not {"bound", "misses its bound"} & set(texts(chart(RISING)))
    assert sum(one.get("class") == "interval" for one in chart(RISING).iter(f"{SVG}path")) == 1


def test_a_name_is_escaped_and_nothing_is_drawn_of_nothing() -> None:
    assert "<script>" not in sweep_chart("k", "t", "GB/s", [SweptCurve("<script>", RISING.points, 0)])
    assert sweep_chart("k", "t", "GB/s", [SweptCurve("all-reduce", (), 0)]) == ""


def test_a_wide_interval_leaves_the_others_room() -> None:
    wide = SweptCurve("reduce", (SweptPoint(KIB, 10.0, (0.1, 1000.0)), SweptPoint(2 * KIB, 10.0)), 0)
    ticks = [float(one.text or 0) for one in chart(wide).iter(f"{SVG}text") if one.get("text-anchor") == "end"]
    assert max(ticks) <= 25


def test_pairs_of_a_node_are_those_of_the_slowest_node_by_the_largest_message() -> None:
    small, large = Arm("send-recv-1mib", 3), Arm("send-recv-4mib", 3)
    study = ProbeStudy((small, large), 8, 0.1)
    plan = Plan("a100", "cuda", (), nodes=2, ranks_per_node=3, probes=study)
    measured = measure_probe(plan, small, steady(1.0)) + measure_probe(plan, large, steady(20.0, {(4, 5): 5.0}))
    found = pair_bandwidths_within(probe_evidence(plan, measured))
    assert found == pytest.approx(
        {("rank 0", "rank 1"): 20, ("rank 0", "rank 2"): 20, ("rank 1", "rank 2"): 5}, rel=0.01
    )
    drawn = pair_matrix("pairs", found, "Bandwidth between ranks of a node")
    assert "slowest: rank 1 and rank 2 with 5.0" in drawn
    assert ET.fromstring(drawn).findtext(f"{SVG}title") == "Bandwidth between ranks of a node"


def test_pairs_of_several_nodes_are_no_pairs_of_one() -> None:
    probe = Arm("send-recv-1mib", 4)
    plan = Plan("a100", "cuda", (), nodes=4, ranks_per_node=1, probes=ProbeStudy((probe,), 8, 0.1))
    assert pair_bandwidths_within(probe_evidence(plan, measure_probe(plan, probe, steady(1.0)))) == {}
