"""Figures show the values that verdicts have, and nothing that is not there."""

from __future__ import annotations

import csv
import inspect
import io
import itertools
import math
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_rgb

from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.study import Plan, ProbeStudy
from pytest_ddpscale.report import charts
from pytest_ddpscale.report.charts import About, BarRow, Curve, LineAxes, Point, bars, curves
from pytest_ddpscale.report.csv_tables import render_values
from pytest_ddpscale.report.digits import bare_number
from pytest_ddpscale.report.figures import figures, pair_bandwidths, pair_matrix, write_pngs
from pytest_ddpscale.report.scaling import scaling_tables
from pytest_ddpscale.report.where_time_goes import breakdown
from pytest_ddpscale.report.words.reasons import worded
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.run_json import WATERMARK
from pytest_ddpscale.run.table import Columns
from pytest_ddpscale.run.verdicts import Judgement
from pytest_ddpscale.thresholds.cases import json_of
from pytest_ddpscale.util.digits import percent
from pytest_ddpscale.util.document import Picture, Table, first_rows, html, text_lines
from tests.approved import assert_approved
from tests.builders.culprits import gpu, node
from tests.builders.judged import CONFIDENCE, evidence_of_plan, make_case
from tests.builders.judgements import (
    ACCEPTED,
    FAILED,
    HOSTILE,
    JUDGEMENT,
    MEASUREMENTS,
    PASSED,
    PLAN,
    RESNET,
    RUN,
    WARNED,
    hostile_judgement,
    judgement_with,
    make_measurements,
    make_plan,
    make_study,
)
from tests.builders.probes import measure_probe, pair_columns_of, probe_evidence, steady, with_columns
from tests.judge.runs import Run

DOUBT = gpu("n0", is_certain=False)
ALL = evidence_of_plan(PLAN, MEASUREMENTS)
LOG = LineAxes("GPUs", "speed-up", x_is_log=True)
ABOUT = About("key", "A title")


def drawn(evidence: Evidence, judgement: Judgement = ACCEPTED) -> dict[str, Picture]:
    return {one.key: one for one in figures(evidence, judgement, RUN)}


def axes_of(picture: Picture) -> Any:
    """Matplotlib's, of each panel."""
    return inspect.getclosurevars(picture.png).nonlocals["canvas"].axes


def texts(picture: Picture | None) -> list[str]:
    assert picture is not None
    return [one.text or "" for one in ET.fromstring(picture.svg).iter("{http://www.w3.org/2000/svg}text")]


def told(picture: Picture | None) -> str:
    """Each panel with its ticks, points, segments, bars, outlines and rows with a dark cell; and the table."""
    assert picture is not None
    lines = [f"== {picture.title}: {picture.caption}"]
    for axes in axes_of(picture):
        ticks = [[one.get_text() for one in labels] for labels in (axes.get_xticklabels(), axes.get_yticklabels())]
        lines.append(f"{axes.get_title(loc='left')} {ticks}"[:400])
        parts = [(f"{line.get_label()} {line.get_marker()}", line.get_xydata()) for line in axes.lines]
        parts += [(one.get_label(), part) for one in axes.collections for part in one.get_segments()]
        boxes = [one for one in axes.patches if hasattr(one, "get_width")]
        parts += [("bar", [one.get_bbox().intervalx]) for one in boxes if one.get_fill()]
        lines += [f"  {name}: {np.round(points[:6], 4).tolist()}" for name, points in parts if not name.startswith("_")]
        lines += [f"  outlined from {one.get_xy()}" for one in boxes[::2] if not one.get_fill()]
        for image in axes.images:
            shades = ["".join(map(str, row)) for row in image.get_array().filled(9).tolist()]
            named = zip(ticks[1], shades, strict=True)
            lines += [f"  {name}: {row}" for name, row in named if {*row} & {"1", "2"}]
    return "\n".join([*lines, *text_lines(first_rows(picture.table, 9)), "", ""])


def pairs_run(pairs: list[tuple[int, int, int, float]]) -> Evidence:
    return with_columns(Evidence(make_plan(), Columns(), {}), pair_columns_of(pairs))


# Of four nodes with two GPUs each; the first two nodes, of which a size is not judged, are the fast ones.
CASES = [make_case("weak_scaling_efficiency", 0.9, world_size=size) for size in (2, 8)]
CASES += [make_case("throughput_per_gpu", 90.0, world_size=size) for size in (1, 2, 8)]
ASKED = " ".join(f"{one.requirement.metric}:{one.requirement.bound}@{one.world_size}" for one in CASES)
OF_NODES = Run(f"{ASKED} 4x2 slow=*1.3/5").judged()[1]
VERDICTS = tuple(worded(judge(case, OF_NODES, CONFIDENCE)) for case in CASES)
# GPU 3 of the last node is slower where all train at once without DDP.
UNEVEN, MANY_NODES = "rank_uniformity:1.05@8 slow=*1.2/3", "rank_uniformity:1.05@1040 130x8 slow=*1.2/1035"
STEPS = f"{UNEVEN} exposed_communication:0.4@8 slow=*1.1/no_sync@8 slow=*1.6/ddp@8"


def test_what_is_drawn_is_what_was_approved() -> None:
    """Crosses, bounds, outlines of who is certainly at fault, the slowest of many nodes; kinds of nodes not joined."""
    found = drawn(ALL, judgement_with(PASSED, FAILED, WARNED))
    shown: list[Picture | None] = [found[key] for key in ("weak-efficiency", "weak-throughput", "strong-speedup")]
    assert "misses its bound" in found["weak-throughput"].alt.split("; ")[0]
    shown.append(drawn(OF_NODES, judgement_with(*VERDICTS))["weak-efficiency"])
    fault, doubt = replace(FAILED, culprits=(gpu("n0"), gpu("elsewhere"))), replace(FAILED, culprits=(DOUBT,))
    for line, verdict in ((UNEVEN, fault), (UNEVEN, doubt), (MANY_NODES, doubt)):
        shown.append(drawn(Run(line).judged()[1], judgement_with(verdict))["heat-map"])
    slow = replace(FAILED, metric="pair_bandwidth_gbps", culprits=(node("n2"), node("n1", is_certain=False)))
    pairs = [(0, a, b, 20.0) for a in range(11) for b in range(a)] + [(0, 0, 2, 5.0)] * 3
    many = [(0, a, a + 1, 5.0 if a == 99 else 20.0) for a in range(129)]
    shown += [drawn(pairs_run(one), judgement_with(slow))["pair-matrix"] for one in (pairs, many)]
    shown.append(drawn(Run(STEPS).judged()[1])["where-time-goes"])
    loss = {"": [Curve("a", [Point(i, 2.0) for i in range(300)])]}
    curve = Curve("reduce", [Point(1, 10.0, (0.1, 1000.0), is_failed=True), Point(2, 10.0)], [Point(1, 12.0)])
    named = replace(LOG, x_name="{:g} KiB".format, ideal=float)
    shown += [curves(ABOUT, LineAxes("iteration", "loss"), loss), curves(ABOUT, named, {"": [curve]})]
    rates = [("1", "a", 10.0), ("2", "a", 20.0), ("2", "b", 5.0)]
    shown.append(bars(ABOUT, "img/s", [BarRow(cell, [(name, rate)]) for cell, name, rate in rates]))
    shown.append(found["scaling-overview"])
    assert_approved("figures.txt", "".join(map(told, shown)))


# Nodes that wait differently, skipped steps, a rank that a round lacks, a slow node; no FLOPS, an arm that is lost.
ARMS = (
    "+throughput_per_gpu:90@1 exposed_communication:0.4@4 2x2 rounds=3 uneven=0.2 slow=*2/3 lost/2:1 "
    "skipped_steps=1/ddp@4 waited_s=0.1/n0.ddp@4 waited_s=0.3/n1.ddp@4 peak_memory_bytes=2e9/1",
    "exposed_communication:0.4@2 rounds=3 slow=*2/1 slow=*3/ddp@2:2 flops=0 lost/no_sync@2",
)


def test_every_arm_that_was_measured_says_where_its_time_went_as_it_was_approved() -> None:
    tables = [breakdown(Run(line).judged()[1]) for line in ARMS]
    assert_approved("breakdown.txt", "\n".join([*text_lines(*tables, width=200), ""]))


def test_a_quantity_has_one_number_in_whatever_file() -> None:
    judgement = replace(JUDGEMENT, verdicts=VERDICTS, requirements=json_of(CASES), requirements_sha256="")
    written = csv.DictReader(io.StringIO(render_values(judgement, OF_NODES)))
    told = {row["requirement"]: float(row["value"]) for row in written if row["outcome"]}
    assert told == pytest.approx({one.id: one.value for one in VERDICTS})
    (numbers,) = (one.blocks[0] for one in scaling_tables(OF_NODES, VERDICTS))
    assert isinstance(numbers, Table)
    found = drawn(OF_NODES, judgement)
    for one in VERDICTS:
        is_rate, size = one.metric == "throughput_per_gpu", one.world_size
        figure = found["weak-throughput" if is_rate else "weak-efficiency"]
        assert one.value is not None
        assert [row[2] for row in figure.table.rows if row[1] == f"{size}"] == [bare_number(one.value, one.unit)]
        (of_size,) = (row for row in numbers.rows if row[0] == f"{size}")
        assert (f"{one.value * size:.0f}" if is_rate else percent(one.value, 1)) in of_size


@pytest.mark.parametrize("interval", [(0.0, math.inf), (math.nan, math.nan)])
def test_an_endless_interval_and_an_undefined_one_stay_inside(interval: tuple[float, float]) -> None:
    found = drawn(ALL, judgement_with(replace(PASSED, interval=interval)))
    assert axes_of(found["weak-efficiency"])[0].get_ylim()[1] < 3


@pytest.mark.parametrize(
    ("value", "interval", "drawn_ends", "goes_on"),
    [
        (10.0, (9.0, 11.0), (9.0, 11.0), []),
        (10.0, (-40.0, 11.0), (5.0, 11.0), ["v"]),
        (10.0, (9.0, math.inf), (9.0, 20.0), ["^"]),
        (-10.0, (-90.0, 90.0), (-20.0, -5.0), ["v", "^"]),
    ],
)  # fmt: skip
def test_an_interval_that_is_cut_shows_where_it_goes_on(
    value: float, interval: tuple[float, float], drawn_ends: tuple[float, float], goes_on: list[str]
) -> None:
    picture = curves(ABOUT, LOG, {"": [Curve("one", [Point(1, value, interval), Point(2, value)])]})
    assert picture is not None
    (plot,) = axes_of(picture)
    (segment,) = plot.collections[0].get_segments()
    assert [end for _, end in segment] == [*drawn_ends]
    assert [line.get_marker() for line in plot.lines if line.get_marker() in ("v", "^")] == goes_on
    assert ("interval goes on" in texts(picture)) is bool(goes_on)


def test_nothing_measured_draws_nothing(tmp_path: Path) -> None:
    assert drawn(evidence_of_plan(PLAN, []), JUDGEMENT) == {}
    write_pngs([], tmp_path / "plots")
    assert not (tmp_path / "plots").exists()


def test_every_picture_is_beside_the_page_with_its_title_and_table_and_the_same_each_time(tmp_path: Path) -> None:
    found = drawn(ALL, JUDGEMENT)
    written = [*found.values()]
    write_pngs(written, tmp_path / "new" / "plots")
    assert [one.path for one in written] == [f"plots/{key}.png" for key in found]
    for figure in found.values():
        assert figure.alt.startswith(f"{figure.title}: ")
        assert figure.table.rows
        assert figure.caption
        assert figure.title in " ".join(texts(figure))
        assert WATERMARK not in texts(figure)
    with matplotlib.rc_context({"font.family": "serif", "font.size": 20, "svg.fonttype": "path", "text.usetex": True}):
        again = drawn(ALL, JUDGEMENT)["weak-efficiency"]
        assert again.png() == (tmp_path / "new" / "plots" / "weak-efficiency.png").read_bytes()
    assert again.svg == found["weak-efficiency"].svg
    assert all(WATERMARK in texts(one) for one in drawn(ALL, replace(ACCEPTED, simulated=True)).values())


def test_what_cannot_be_drawn_has_its_numbers_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    lost = bars(ABOUT, "img/s", [BarRow("1", [("a", 10.0)])])
    assert lost is not None
    with pytest.raises(OSError, match=r"^ModuleNotFoundError: import of matplotlib"):
        lost.png()
    page = html(lost)
    assert "<img" not in page
    assert "<figcaption>could not be drawn: ModuleNotFoundError" in page
    assert '<td class="n">10</td>' in page


def test_hostile_names_stay_text() -> None:
    names = [f"{prefix}{HOSTILE}測試" for prefix in ("", "_", "$x^2$", "\\")]
    studies = [make_study("weak", replace(RESNET, name=name), (1, 2)) for name in names]
    hostile = [
        replace(one, host=HOSTILE, utilization=0.5)
        for study in studies for one in make_measurements(study, 1000.0, 0.05)
    ]  # fmt: skip
    found = drawn(evidence_of_plan(make_plan(*studies), hostile), hostile_judgement())
    for figure in found.values():
        assert not {one.tag for one in ET.fromstring(figure.svg).iter() if "script" in one.tag}
        assert b"\x1b" not in figure.svg
        assert len(figure.png()) > 5_000
    assert any(text.startswith("$x^2$") for text in texts(found["weak-throughput"]))
    assert any("evil" in text for text in texts(pair_matrix(ABOUT, {(HOSTILE, "n1"): 1.0})))


@pytest.mark.parametrize("axes", [LOG, replace(LOG, scale="log"), LineAxes("x", "y")])
def test_what_is_no_curve_is_not_drawn_and_equal_values_are(axes: LineAxes) -> None:
    def of(name: str, *points: Point, axes: LineAxes = axes) -> Picture | None:
        return curves(ABOUT, axes, {"": [Curve(name, points)] if points else []})

    assert of("a", Point(4.0, 4.0)) is None, "one point"
    assert of("a") is None
    zero = of("a", Point(0.0, 0.0), Point(1.0, 0.0), axes=LineAxes("x", "y"))
    assert all(one and one.svg for one in (zero, of("\x1b", Point(1.0, 4.0), Point(2.0, 4.0))))


def test_nothing_to_compare_with_is_not_drawn() -> None:
    assert bars(ABOUT, "img/s", []) is None
    strong = make_study("strong", RESNET, (1, 8))
    evidence = evidence_of_plan(make_plan(strong), make_measurements(strong, 1000.0, 0.05))
    assert "where-time-goes" not in drawn(evidence)


def test_pairs_are_those_of_the_slowest_node_by_the_largest_message() -> None:
    small, large = Arm("send-recv-1mib", 3), Arm("send-recv-4mib", 3)
    plan = Plan("a100", "cuda", (), nodes=2, ranks_per_node=3, probes=ProbeStudy((small, large), 8, 0.1))
    measured = measure_probe(plan, small, steady(1.0)) + measure_probe(plan, large, steady(20.0, {(1, 2): 5.0}))
    within = pair_bandwidths(probe_evidence(plan, measured), within_nodes=True)
    assert [*within] == [("rank 0", "rank 1"), ("rank 0", "rank 2"), ("rank 1", "rank 2")]
    assert [*within.values()] == pytest.approx([20, 20, 5], rel=0.01)


def luminance(colour: str, *, is_grey: bool) -> float:
    """Relative luminance as in WCAG 2, 0 to 1, of a colour or of its grey (ITU-R BT.601)."""
    channels = np.array(to_rgb(colour))
    if is_grey:
        channels = np.full(3, channels @ (0.299, 0.587, 0.114))
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return float(linear @ (0.2126, 0.7152, 0.0722))


@pytest.mark.parametrize("is_grey", [False, True])
def test_colours_that_touch_have_contrast_also_in_grey(is_grey: bool) -> None:
    on_paper = [(one, charts.PAPER) for one in (*charts.SERIES, charts.INK, charts.FAINT, charts.BAD)]
    pairs = [*on_paper, *itertools.combinations(charts.SHADES, 2), *zip(charts.SHADES, charts.ON_SHADES, strict=True)]
    for pair in pairs:
        low, high = sorted(luminance(one, is_grey=is_grey) for one in pair)
        assert (high + 0.05) / (low + 0.05) >= 3, pair


def test_reports_that_draw_nothing_import_no_library_and_drawing_leaves_pyplot_alone() -> None:
    code = (
        "from pytest_ddpscale.report import terminal, junit; import sys; "
        "assert not {'matplotlib', 'torch', 'pydantic', 'yaml', 'pytest'} & set(sys.modules); "
        "from pytest_ddpscale.report.figures import figures; "
        "from tests.report.written import page_of; "
        "from tests.builders.judged import evidence_of_plan; "
        "from tests.builders.judgements import MEASUREMENTS, PLAN, JUDGEMENT, RUN; "
        "page_of(JUDGEMENT, RUN, evidence_of_plan(PLAN, []), goes_on=True); "
        "assert 'matplotlib' not in sys.modules; "
        "figures(evidence_of_plan(PLAN, MEASUREMENTS), JUDGEMENT, RUN)[0].png(); "
        "assert 'matplotlib.figure' in sys.modules; assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=True, timeout=60)
