"""Figures show the values that verdicts have, where their axes say, and nothing that is not there."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.report.svg_bars import MOST_BARS
from pytest_ddpscale.report.svg_figures import Figure, figures
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.verdicts import GenerationComparison, Judgement
from tests.builders.judged import evidence_of_plan
from tests.builders.judgements import (
    ACCEPTED,
    FAILED,
    HOSTILE,
    JUDGEMENT,
    MEASUREMENTS,
    PASSED,
    PLAN,
    RATIO,
    RESNET,
    RUN,
    WARNED,
    hostile_judgement,
    judgement_with,
    make_measurements,
    make_plan,
    make_study,
)
from tests.builders.measurements import Measurement
from tests.builders.probes import pair_columns_of, with_columns
from tests.builders.rounds import columns_of

SVG = "{http://www.w3.org/2000/svg}"
EACH = Arm("each", 8, 512)


def drawn(
    measurements: list[Measurement], plan: Plan, judgement: Judgement = ACCEPTED, evidence: Evidence | None = None
) -> dict[str, Figure]:
    """By id; all of it is XML without a number that is none."""
    evidence = evidence or evidence_of_plan(plan, measurements)
    found = {figure.id: figure for figure in figures(evidence, judgement, RUN)}
    for figure in found.values():
        for element in ET.fromstring(figure.svg).iter():
            assert not re.search(r"nan|inf\b", " ".join(v for k, v in element.items() if k not in ("style", "class")))
    return found


def axis_value(root: ET.Element, y: float) -> float:
    """What the labels of a linear y axis say of a height; a label lies 4 below its tick."""
    ticks = [
        (float(one.get("y", "")) - 4, float(one.text or ""))
        for one in root.iter(f"{SVG}text")
        if one.get("text-anchor") == "end"
    ]
    (y0, low), (y1, high) = ticks[0], ticks[-1]
    return low + (y - y0) / (y1 - y0) * (high - low)


def points_of(root: ET.Element) -> list[tuple[float, float]]:
    """Of the first curve."""
    line = next(root.iter(f"{SVG}polyline")).get("points", "")
    return [(float(x), float(y)) for x, y in (point.split(",") for point in line.split())]


def marked(root: ET.Element, kind: str) -> list[str]:
    """Paths of a class, outside of the legend."""
    return [one.get("d", "") for one in root.findall(f"{SVG}path[@class='{kind}']")]


def each_study(slow: float = 1.2, hosts: int = 1) -> tuple[Plan, list[Measurement]]:
    """All GPUs at once without DDP; GPU 3 of the last host is slower."""
    study = Study("weak", RESNET, (EACH,), 5, 1.0, 1.0)
    blocks = [
        Measurement(study.id, "each@8", number, 8 * host + i, i, f"n{host:04d}", f"GPU-{host}-{i}", 512, 2,
                    2 * (slow if (host, i) == (hosts - 1, 3) else 1.0), 1.7e9, (1.0, 1.0), energy_j=600.0)
        for number in range(2) for host in range(hosts) for i in range(8)
    ]  # fmt: skip
    return replace(make_plan(study), nodes=hosts, ranks_per_node=8), blocks


def test_a_judged_value_lies_where_the_axis_says_with_the_ends_of_its_interval() -> None:
    root = ET.fromstring(drawn(MEASUREMENTS, PLAN, judgement_with(PASSED))["weak-efficiency"].svg)
    assert axis_value(root, points_of(root)[-1][1]) == pytest.approx(97.45, abs=0.02)
    (interval,) = marked(root, "interval")
    low, high = re.findall(r"M[\d.]+ ([\d.]+)h8m-4 0V([\d.]+)", interval)[0]
    assert axis_value(root, float(low)) == pytest.approx(97.12, abs=0.02)
    assert axis_value(root, float(high)) == pytest.approx(97.71, abs=0.02)


def test_only_a_failure_is_crossed() -> None:
    charts = drawn(MEASUREMENTS, PLAN, judgement_with(PASSED, FAILED))
    root = ET.fromstring(charts["weak-throughput"].svg)
    (cross,) = marked(root, "failed")
    x, y = points_of(root)[-1]
    found = [float(number) for number in re.findall(r"[\d.]+", cross)[:2]]
    assert found == pytest.approx([x - 7, y - 7], abs=0.11)
    assert "misses its bound" not in charts["weak-efficiency"].svg


def test_ids_are_unique_in_a_page() -> None:
    found = drawn(MEASUREMENTS, PLAN, JUDGEMENT)
    ids = [one.get("id") for figure in found.values() for one in ET.fromstring(figure.svg).iter() if one.get("id")]
    assert len(ids) == len(set(ids)) > 12


def test_what_was_simulated_says_so_in_each_picture() -> None:
    real, simulated = (
        [ET.fromstring(figure.svg).findall(f".//{SVG}text[@class='watermark']") for figure in found.values()]
        for found in (drawn(MEASUREMENTS, PLAN), drawn(MEASUREMENTS, PLAN, replace(ACCEPTED, simulated=True)))
    )
    assert not any(real)
    assert [len(marks) for marks in simulated] == [3, 1, 1, 1, 1, 1, 0, 1]


def test_only_provisional_bounds_are_dotted() -> None:
    charts = drawn(MEASUREMENTS, PLAN, judgement_with(PASSED, WARNED))
    bound = f"{SVG}line[@class='bound']"
    dots = {
        name: [one.get("stroke-dasharray") for one in ET.fromstring(charts[name].svg).findall(bound)]
        for name in ("weak-efficiency", "strong-speedup")
    }
    assert dots == {"weak-efficiency": [None], "strong-speedup": ["2 2"]}


def test_an_endless_interval_and_an_undefined_one_stay_inside() -> None:
    for interval in ((0.0, math.inf), (math.nan, math.nan)):
        drawn(MEASUREMENTS, PLAN, judgement_with(replace(PASSED, interval=interval)))


def test_nothing_measured_draws_nothing() -> None:
    assert drawn([], PLAN, JUDGEMENT) == {}
    assert drawn(MEASUREMENTS, make_plan(), JUDGEMENT) == {}


@pytest.mark.parametrize(("sizes", "rounds"), [((1,), 1), ((1,), 3), ((8,), 1), ((1, 8), 1)])
def test_one_gpu_and_one_round_draw_what_they_can(sizes: tuple[int, ...], rounds: int) -> None:
    study = make_study("weak", RESNET, sizes)
    charts = drawn(make_measurements(study, 1000.0, 0.05, rounds), make_plan(study))
    assert ("weak-efficiency" in charts) == (len(sizes) > 1)
    assert "weak-throughput" in charts


def test_hostile_names_stay_text() -> None:
    study = make_study("weak", replace(RESNET, name=HOSTILE), (1, 2))
    hostile = [replace(one, host=HOSTILE, utilization=0.5) for one in make_measurements(study, 1000.0, 0.05)]
    each_plan, blocks = each_study()
    on_hostile = [replace(one, host=HOSTILE) for one in blocks]
    found = {**drawn(hostile, make_plan(study), hostile_judgement()), **drawn(on_hostile, each_plan)}
    assert {"weak-throughput", "activity", "heat-map", "weak-table"} <= set(found)
    for figure in found.values():
        tags = {element.tag for element in ET.fromstring(figure.svg).iter()}
        assert not {tag for tag in tags if "script" in tag}
        assert "\x1b" not in figure.svg
    assert all("evil" in found[name].svg for name in ("weak-throughput", "activity", "heat-map", "weak-table"))


def test_tables_tell_efficiency_and_both_sides_of_a_ratio() -> None:
    both = GenerationComparison(1190.0, 503.2, "v100-sxm2-16gb", "a paper")
    found = drawn(MEASUREMENTS, PLAN, judgement_with(PASSED, replace(RATIO, compared=both)))
    weak, generation = (
        [["".join(cell.itertext()) for cell in row] for row in ET.fromstring(found[name].svg).iter("tr")]
        for name in ("weak-table", "generation-table")
    )
    assert weak[1][1:3] == ["resnet152-fp16", "512"]
    assert weak[1][4] == "97.4 % on 8"
    assert generation[1][3:7] == ["1190.0 img/s", "v100-sxm2-16gb", "503.2 img/s", "2.36×"]


def test_time_is_split_as_far_as_arms_tell() -> None:
    arms = (EACH, Arm("no_sync", 8, 512), Arm("ddp", 8, 512))
    study = Study("weak", RESNET, arms, 5, 1.0, 1.0)
    seconds = {"each@8": 0.5, "no_sync@8": 0.7, "ddp@8": 1.0}
    blocks = [
        Measurement(study.id, arm, 0, i, i, "n", f"GPU-{i}", 512, 1, s * (1.2 if i == 3 and arm == "each@8" else 1.0),
                    1.7e9)
        for arm, s in seconds.items() for i in range(8)
    ]  # fmt: skip
    root = ET.fromstring(drawn(blocks, make_plan(study))["where-time-goes"].svg)
    widths = [float(one.get("width", "")) / 464 for one in root.iter(f"{SVG}rect") if one.get("height") == "11"]
    assert widths == pytest.approx([0.5, 0.1, 0.1, 0.3], abs=0.001)


def test_a_step_without_anything_to_compare_with_is_not_split() -> None:
    study = Study("strong", RESNET, (Arm("alone", 1, 256), Arm("ddp", 8, 32)), 5, 1.0, 1.0)
    assert "where-time-goes" not in drawn(make_measurements(study, 1000.0, 0.05), make_plan(study))


def test_the_slow_gpu_is_the_dark_cell() -> None:
    plan, blocks = each_study()
    root = ET.fromstring(drawn(blocks, plan)["heat-map"].svg)
    assert [len(re.findall("M", d)) for shade in range(5) for d in marked(root, f"shade-{shade}")] == [7, 1]
    assert len(marked(root, "shade-4")) == 1


def test_nodes_come_by_number() -> None:
    plan, blocks = each_study(hosts=11)
    renamed = [replace(one, host=f"n{int(one.host[1:])}") for one in blocks]
    root = ET.fromstring(drawn(renamed, plan)["heat-map"].svg)
    names = [one.text for one in root.iter(f"{SVG}text") if one.get("text-anchor") == "end"]
    assert names == [f"n{i}" for i in range(11)]


def test_many_nodes_share_rows_and_the_worst_are_listed() -> None:
    plan, blocks = each_study(hosts=130)
    found = drawn(blocks, plan)
    root = ET.fromstring(found["heat-map"].svg)
    assert sum(len(re.findall("M", one.get("d", ""))) for one in root.iter(f"{SVG}path")) == 44 * 8
    rows = [["".join(cell.itertext()) for cell in row] for row in ET.fromstring(found["slowest-gpus"].svg).iter("tr")]
    assert (rows[1], len(rows)) == (["n0129", "3", "1.20×"], 51)


def test_the_slow_pair_is_dark_both_ways() -> None:
    pairs = [(0, a, b, 20.0) for a in range(4) for b in range(a)] + [(0, 0, 2, 5.0)] * 3
    columns = columns_of(MEASUREMENTS)
    found = drawn(MEASUREMENTS, PLAN, evidence=with_columns(Evidence(PLAN, columns, {}), pair_columns_of(pairs)))
    root = ET.fromstring(found["pair-matrix"].svg)
    assert [len(re.findall("M", d)) for d in marked(root, "shade-0")] == [10]
    assert [len(re.findall("M", d)) for d in marked(root, "shade-4")] == [2]


def test_of_pairs_that_share_a_cell_the_slow_one_shows_and_is_listed_first() -> None:
    pairs = [(0, a, a + 1, gbps) for a, gbps in enumerate([20.0] * 4 + [5.0] + [20.0] * 124)]
    found = drawn(
        MEASUREMENTS, PLAN, evidence=with_columns(Evidence(PLAN, columns_of(MEASUREMENTS), {}), pair_columns_of(pairs))
    )
    root = ET.fromstring(found["pair-matrix"].svg)
    assert [len(re.findall("M", d)) for d in marked(root, "shade-4")] == [1]  # both are nodes of one row
    rows = [["".join(cell.itertext()) for cell in row] for row in ET.fromstring(found["slowest-pairs"].svg).iter("tr")]
    assert (rows[1][:2], len(rows)) == (["n4", "n5"], 51)


def test_a_device_below_the_line_is_flagged() -> None:
    study = make_study("weak", RESNET, (1, 2))
    blocks = [replace(one, utilization=0.75 if one.rank else 0.95) for one in make_measurements(study, 1000.0, 0.05)]
    figure = drawn(blocks, make_plan(study))["activity"]
    bold = [one.text for one in ET.fromstring(figure.svg).iter(f"{SVG}text") if one.get("font-weight") == "bold"]
    assert bold == ["low: 75.0 %, weak ddp@2"]
    lines = {float(one.get("x1", "")) for one in ET.fromstring(figure.svg).iter(f"{SVG}line")}
    assert list(lines) == pytest.approx([8 + 0.8 * 464], abs=0.1)


def test_only_as_many_devices_as_fit_on_paper_have_a_bar_the_least_busy_of_all() -> None:
    study = make_study("weak", RESNET, (1, 40))
    blocks = [
        replace(one, utilization=0.99 - 0.01 * one.rank) for one in make_measurements(study, 1000.0, 0.05)
    ]  # fmt: skip
    svg = drawn(blocks, make_plan(study))["activity"].svg
    texts = [one.text or "" for one in ET.fromstring(svg).iter(f"{SVG}text")]
    assert f"The {MOST_BARS} least busy of 40" in texts
    assert sum(text.startswith("GPU ") for text in texts) == MOST_BARS
    assert not any(text.startswith("GPU 0 ") for text in texts), "the busiest"


def test_the_ideal_speed_up_is_drawn_from_one_to_the_largest_size() -> None:
    study = make_study("strong", RESNET, (1, 8))
    root = ET.fromstring(drawn(make_measurements(study, 1000.0, 0.05), make_plan(study))["strong-speedup"].svg)
    (ideal,) = [one for one in root.findall(f"{SVG}line") if one.get("stroke-dasharray") == "7 4"]
    ticks = {one.text: float(one.get("x", "")) for one in root.iter(f"{SVG}text") if one.get("text-anchor") == "middle"}
    assert float(ideal.get("x1", "")) <= ticks["1"]
    assert float(ideal.get("x2", "")) >= ticks["8"]
