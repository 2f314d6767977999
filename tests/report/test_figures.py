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
import pytest

from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.study import Plan, ProbeStudy, Study
from pytest_ddpscale.report import charts
from pytest_ddpscale.report.charts import About, Bound, Curve, LineAxes, Point, curves, grouped_bars
from pytest_ddpscale.report.csv_tables import render_values
from pytest_ddpscale.report.digits import bare_number
from pytest_ddpscale.report.figures import MOST_BARS, figures, pair_bandwidths_within, pair_matrix, write_pngs
from pytest_ddpscale.report.scaling import scaling_tables
from pytest_ddpscale.report.words.reasons import worded
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.run_json import WATERMARK
from pytest_ddpscale.run.table import Columns
from pytest_ddpscale.run.verdicts import Judgement
from pytest_ddpscale.thresholds.cases import json_of
from pytest_ddpscale.util.digits import percent
from pytest_ddpscale.util.document import Picture, plain
from tests.builders.culprits import gpu, node
from tests.builders.judged import CONFIDENCE, Found, evidence_of_plan, make_case
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
from tests.builders.measurements import Measurement
from tests.builders.probes import measure_probe, pair_columns_of, probe_evidence, steady, with_columns
from tests.judge.runs import Run

EACH = Arm("each", 8, 512)
WEAK = replace(PLAN, studies=tuple(study for study in PLAN.studies if study.scaling == "weak"))
LOG = LineAxes("GPUs", "speed-up", x_is_log=True)
ABOUT = About("key", "A title")


def drawn(evidence: Evidence, judgement: Judgement = ACCEPTED) -> dict[str, Picture]:
    return {one.key: one for one in figures(evidence, judgement, RUN)}


def of_weak(judgement: Judgement = ACCEPTED) -> dict[str, Picture]:
    return drawn(evidence_of_plan(WEAK, MEASUREMENTS), judgement)


def canvas_of(picture: Picture | None) -> Any:
    """Matplotlib's figure."""
    assert picture is not None
    return inspect.getclosurevars(picture.png).nonlocals["canvas"]


def texts(picture: Picture) -> list[str]:
    return [one.text or "" for one in ET.fromstring(picture.svg).iter("{http://www.w3.org/2000/svg}text")]


def marked(axes: Any, marker: str) -> list[list[tuple[float, float]]]:
    """Points of each line with a marker."""
    return [[(float(x), float(y)) for x, y in one.get_xydata()] for one in axes.lines if one.get_marker() == marker]


def upright(axes: Any) -> dict[float, tuple[float, float]]:
    """Ends of the drawn intervals, by x."""
    lines = [line for one in axes.collections for line in one.get_segments() if line[0][0] == line[1][0]]
    return {float(x): (float(low), float(high)) for (x, low), (_, high) in lines}


def shades(picture: Picture) -> Any:
    """Of each cell of a map; None where nothing was measured."""
    return canvas_of(picture).axes[0].images[0].get_array().tolist()


def outlines(picture: Picture) -> set[tuple[float, ...]]:
    """Left, upper, right and lower edge of each."""
    corners = [one.get_xy() for one in canvas_of(picture).axes[0].patches]
    return {(*one[0].tolist(), *one[2].tolist()) for one in corners if len(one) == 5}


def each_run(hosts: int = 1) -> Evidence:
    """All GPUs at once without DDP; GPU 3 of the last host is slower."""
    study = Study("weak", RESNET, (EACH,), 5, 1.0, 1.0)
    blocks = [
        Measurement(study.id, "each@8", number, 8 * host + i, i, f"n{host}", f"GPU-{host}-{i}", 512, 2,
                    2 * (1.2 if (host, i) == (hosts - 1, 3) else 1.0), 1.7e9, (1.0, 1.0), energy_j=600.0)
        for number in range(2) for host in range(hosts) for i in range(8)
    ]  # fmt: skip
    return evidence_of_plan(replace(make_plan(study), nodes=hosts, ranks_per_node=8), blocks)


def pairs_run(pairs: list[tuple[int, int, int, float]]) -> Evidence:
    return with_columns(Evidence(make_plan(), Columns(), {}), pair_columns_of(pairs))


def test_each_workload_has_a_panel_with_the_values_of_the_table_at_its_world_sizes() -> None:
    figure = of_weak(judgement_with(PASSED, FAILED))["weak-efficiency"]
    panels = canvas_of(figure).axes
    names = [axes.get_title(loc="left") for axes in panels]
    assert names == ["resnet152-fp16", "vit-b16-bf16"]
    assert all({*axes.get_xticks()} == {2, 4, 8} for axes in panels)
    shown = [(name, f"{x:g}", bare_number(y, "fraction")) for name, axes in zip(names, panels, strict=True)
             for x, y in marked(axes, "o")[0]]  # fmt: skip
    assert shown == [row[:3] for row in figure.table.rows]
    assert shown[2] == ("resnet152-fp16", "8", "97.4")


def test_only_a_failure_is_crossed_and_only_provisional_bounds_are_dotted() -> None:
    found = of_weak(judgement_with(PASSED, FAILED))
    crosses = [marked(axes, "X") for axes in canvas_of(found["weak-throughput"]).axes]
    assert [*map(len, crosses)] == [1, 0]
    assert "misses its bound" in found["weak-throughput"].alt.split("; ")[1]
    assert "misses its bound" not in texts(found["weak-efficiency"])
    assert {"bound"} == {"bound", "provisional bound"} & {*texts(found["weak-efficiency"])}
    strong = drawn(evidence_of_plan(PLAN, MEASUREMENTS), judgement_with(WARNED))["strong-speedup"]
    assert "provisional bound" in texts(strong)


# Of four nodes with two GPUs each; the first two nodes, of which a size is not judged, are the fast ones.
CASES = [make_case("weak_scaling_efficiency", 0.9, world_size=size) for size in (2, 8)]
CASES += [make_case("throughput_per_gpu", 90.0, world_size=size) for size in (1, 2, 8)]
ASKED = " ".join(f"{one.requirement.metric}:{one.requirement.bound}@{one.world_size}" for one in CASES)


def test_a_quantity_has_one_number_in_whatever_file_and_nodes_of_different_kinds_are_not_joined() -> None:
    evidence = Run(f"{ASKED} 4x2 slow=*1.3/5").judged()[1]
    verdicts = tuple(worded(judge(case, evidence, CONFIDENCE)) for case in CASES)
    judgement = replace(JUDGEMENT, verdicts=verdicts, requirements=json_of(CASES), requirements_sha256="")
    written = csv.DictReader(io.StringIO(render_values(judgement, evidence)))
    told = {row["requirement"]: float(row["value"]) for row in written if row["outcome"]}
    assert told == pytest.approx({one.id: one.value for one in verdicts})
    ((_, numbers, _),) = scaling_tables(evidence, verdicts)
    found = drawn(evidence, judgement)
    for one in verdicts:
        is_rate = one.metric == "throughput_per_gpu"
        figure = found["weak-throughput" if is_rate else "weak-efficiency"]
        axes, size = canvas_of(figure).axes[0], one.world_size
        assert one.value is not None
        assert dict(itertools.chain(*marked(axes, "o")))[size] == pytest.approx(one.value)
        assert upright(axes)[size] == pytest.approx(one.interval)
        assert (size in dict(itertools.chain(*marked(axes, "X")))) == (one.outcome == "failed")
        assert [row[2] for row in figure.table.rows if row[1] == f"{size}"] == [bare_number(one.value, one.unit)]
        (of_size,) = (row for row in numbers.rows if row[0] == f"{size}")
        assert (f"{one.value * size:.0f}" if is_rate else percent(one.value, 1)) in of_size
    weak = found["weak-efficiency"]
    assert [[x for x, _ in line] for line in marked(canvas_of(weak).axes[0], "o")] == [[2], [4, 8]]
    assert [plain(row[5]).removeprefix("misses its bound ") for row in weak.table.rows] == [
        "worst node (n2)", "first 2 of 4 nodes", "",
    ]  # fmt: skip


@pytest.mark.parametrize("interval", [(0.0, math.inf), (math.nan, math.nan)])
def test_an_endless_interval_and_an_undefined_one_stay_inside(interval: tuple[float, float]) -> None:
    top = (
        canvas_of(of_weak(judgement_with(replace(PASSED, interval=interval)))["weak-efficiency"]).axes[0].get_ylim()[1]
    )
    assert top < 3


def test_nothing_measured_draws_nothing(tmp_path: Path) -> None:
    assert drawn(evidence_of_plan(PLAN, []), JUDGEMENT) == {}
    assert write_pngs([], tmp_path / "plots") == []
    assert not (tmp_path / "plots").exists()


def test_every_picture_is_beside_the_page_with_its_title_and_table_and_the_same_each_time(tmp_path: Path) -> None:
    found = drawn(evidence_of_plan(PLAN, MEASUREMENTS), JUDGEMENT)
    written = write_pngs([*found.values()], tmp_path / "new" / "plots")
    assert [path.stem for path in written] == [*found]
    assert {"weak-throughput", "weak-efficiency", "strong-speedup"} <= {*found}
    for figure in found.values():
        assert figure.alt.startswith(f"{figure.title}: ")
        assert figure.table.rows
        assert figure.caption
        assert figure.title in " ".join(texts(figure))
        assert WATERMARK not in texts(figure)
    with matplotlib.rc_context({"font.family": "serif", "font.size": 20, "svg.fonttype": "path", "text.usetex": True}):
        again = of_weak(JUDGEMENT)["weak-efficiency"]
        assert again.png() == (tmp_path / "new" / "plots" / "weak-efficiency.png").read_bytes()
    assert again.svg == found["weak-efficiency"].svg


def test_what_was_simulated_says_so_in_each_picture() -> None:
    for figure in of_weak(replace(ACCEPTED, simulated=True)).values():
        assert WATERMARK in texts(figure)


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
    assert any("evil" in text for text in texts(found["activity"]))


def test_time_is_split_as_far_as_arms_tell() -> None:
    study = Study("weak", RESNET, (EACH, Arm("no_sync", 8, 512), Arm("ddp", 8, 512)), 5, 1.0, 1.0)
    blocks = [
        Measurement(study.id, arm, 0, i, i, "n", f"GPU-{i}", 512, 1, s * (1.2 if i == 3 and arm == "each@8" else 1.0),
                    1.7e9)
        for arm, s in {"each@8": 0.5, "no_sync@8": 0.55, "ddp@8": 1.0}.items() for i in range(8)
    ]  # fmt: skip
    figure = drawn(evidence_of_plan(make_plan(study), blocks))["where-time-goes"]
    assert [bar.get_width() for bar in canvas_of(figure).axes[0].patches] == pytest.approx([0.5, 0.1, 0.0, 0.4])
    assert [row[2] for row in figure.table.rows] == ["50 %", "10 %", "0 %", "40 %"]
    alone = Study("strong", RESNET, (Arm("alone", 1, 256), Arm("ddp", 8, 32)), 5, 1.0, 1.0)
    found = drawn(evidence_of_plan(make_plan(alone), make_measurements(alone, 1000.0, 0.05)))
    assert "where-time-goes" not in found, "nothing to compare with"


def test_the_slow_gpu_is_dark_and_outlined_if_it_is_at_fault() -> None:
    evidence, culprit = each_run(), gpu("n0")
    figure = drawn(evidence)["heat-map"]
    assert shades(figure) == [[0, 0, 0, 2, 0, 0, 0, 0]]
    assert texts(figure).count("1.20") == 1
    assert figure.table.rows[0] == ("n0", "GPU 3", "1.20×", "")
    blamed = drawn(evidence, judgement_with(replace(FAILED, culprits=(culprit, gpu("elsewhere")))))["heat-map"]
    assert outlines(blamed) == {(2.5, -0.5, 3.5, 0.5)}
    assert [row[3] for row in blamed.table.rows[:2]] == ["outlined", ""]
    suspected = judgement_with(replace(FAILED, culprits=(replace(culprit, is_certain=False),)))
    assert drawn(evidence, suspected)["heat-map"].svg == figure.svg


def test_nodes_come_by_number_and_columns_have_the_numbers_of_their_nodes() -> None:
    pairs = [(0, a, b, 20.0) for a in range(11) for b in range(a)]
    axes = canvas_of(drawn(pairs_run(pairs))["pair-matrix"]).axes[0]
    assert [one.get_text() for one in axes.get_yticklabels()] == [f"n{i}" for i in range(11)]
    assert [one.get_text() for one in axes.get_xticklabels()] == [f"{i}" for i in range(11)]
    long = canvas_of(pair_matrix(ABOUT, {("gpu1.site.org", "gpu02.site.org"): 1.0})).axes[0]
    assert [one.get_text() for one in long.get_xticklabels()] == ["1", "02"]


def test_many_nodes_share_rows_and_the_worst_are_listed_first() -> None:
    figure = drawn(each_run(hosts=130))["heat-map"]
    assert (len(shades(figure)), shades(figure)[-1][3], sum(map(any, shades(figure)))) == (44, 2, 1)
    assert "n12 + 2" in texts(figure)
    assert (figure.table.rows[0][:3], len(figure.table.rows)) == (("n129", "GPU 3", "1.20×"), 50)
    pairs = [(0, a, a + 1, gbps) for a, gbps in enumerate([20.0] * 4 + [5.0] + [20.0] * 124)]
    matrix = drawn(pairs_run(pairs))["pair-matrix"]
    assert shades(matrix)[1][1] == 2, "both are nodes of one row"
    assert matrix.table.rows[0][:2] == ("n4", "n5")


def test_the_slow_pair_is_dark_both_ways_its_node_outlined_and_what_was_not_measured_no_zero() -> None:
    pairs = [(0, a, b, 20.0) for a in range(4) for b in range(a)] + [(0, 0, 2, 5.0)] * 3
    slow = replace(FAILED, metric="pair_bandwidth_gbps", culprits=(node("n2"), replace(node("n1"), is_certain=False)))
    figure = drawn(pairs_run(pairs), judgement_with(slow))["pair-matrix"]
    assert shades(figure)[0] == [None, 0, 2, 0]
    assert shades(figure)[2] == [2, 0, None, 0]
    assert "not measured" in texts(figure)
    assert texts(figure).count("5.00") == 2
    assert outlines(figure) == {(-0.5, 1.5, 3.5, 2.5), (1.5, -0.5, 2.5, 3.5)}
    assert figure.table.rows[0] == ("n0", "n2", "5.00 GB/s", "outlined")


def test_the_least_busy_devices_have_a_bar_and_those_below_the_line_another_colour() -> None:
    study = make_study("weak", RESNET, (1, 40))
    blocks = [replace(one, utilization=0.99 - 0.01 * one.rank) for one in make_measurements(study, 1000.0, 0.05)]
    figure = drawn(evidence_of_plan(make_plan(study), blocks))["activity"]
    assert f"utilization of the least busy {MOST_BARS} of 40" in texts(figure)
    assert figure.table.rows[0][3] == "60.0 %, weak ddp@40"
    assert len(figure.table.rows) == MOST_BARS
    assert {row[1] for row in figure.table.rows} == {"below 80 %"}
    assert [row[2] for row in figure.table.rows] == [plain(row[3]).split(".")[0] + " %" for row in figure.table.rows]


def test_a_curve_of_many_points_has_no_marks_and_its_table_some() -> None:
    figure = curves(ABOUT, LineAxes("iteration", "loss"), {"": [Curve("a", [Point(i, 2.0) for i in range(300)])]})
    assert [line.get_marker() for line in canvas_of(figure).axes[0].lines] == [""]
    assert figure is not None
    assert len(figure.table.rows) == 20


def test_intervals_and_bounds_are_drawn_and_a_wide_interval_leaves_room() -> None:
    curve = Curve("reduce", [Point(1, 10.0, (0.1, 1000.0), is_failed=True), Point(2, 10.0)], [Bound(1, 12.0)], float)
    axes = canvas_of(curves(ABOUT, replace(LOG, x_name="{:g} KiB".format), {"": [curve]})).axes[0]
    assert (upright(axes), marked(axes, "X")) == ({1: (5, 20)}, [[(1, 10)]])
    assert axes.get_ylim()[1] < 25
    assert {one.get_text() for one in axes.get_xticklabels()} == {"1 KiB", "2 KiB"}
    assert [line.tolist() for one in axes.collections for line in one.get_segments() if line[0][1] == 12] == [
        [[1 / 1.2, 12], [1.2, 12]]
    ]


def test_what_is_no_curve_is_not_drawn_and_equal_values_are() -> None:
    assert curves(ABOUT, LOG, {"": [Curve("\x1b", [Point(1.0, 4.0), Point(2.0, 4.0)])]}), (
        "a name of which nothing is left"
    )
    for axes in (LOG, replace(LOG, scale="log"), LineAxes("x", "y")):
        assert curves(ABOUT, axes, {"": [Curve("a", [Point(4.0, 4.0)])]}) is None, "one point"
        assert curves(ABOUT, axes, {"": []}) is None
        assert curves(ABOUT, axes, {"": [Curve("a", [Point(1.0, 4.0), Point(2.0, 4.0)])]})
    assert curves(ABOUT, LineAxes("x", "y"), {"": [Curve("a", [Point(0.0, 0.0), Point(1.0, 0.0)])]})


def test_bars_of_each_cell_are_below_each_other_with_their_intervals() -> None:
    found = Found(20.0, (18.0, 30.0))
    figure = grouped_bars(ABOUT, "img/s", ["1", "2"], {"a": [10.0, found], "b": [None, 5.0]})
    axes = canvas_of(figure).axes[0]
    assert [bar.get_width() for bar in axes.patches] == [10, 20, 5]
    assert axes.collections[0].get_segments()[0].tolist() == [[18, 1], [30, 1]]
    assert figure is not None
    assert figure.table.rows == [
        ("1", "a", "10", ""), ("2", "a", "20", ""), ("2", "b", "5", ""),
    ]  # fmt: skip
    assert grouped_bars(ABOUT, "img/s", ["1"], {"a": [None]}) is None


def test_pairs_of_a_node_are_those_of_the_slowest_node_by_the_largest_message() -> None:
    small, large = Arm("send-recv-1mib", 3), Arm("send-recv-4mib", 3)
    plan = Plan("a100", "cuda", (), nodes=2, ranks_per_node=3, probes=ProbeStudy((small, large), 8, 0.1))
    measured = measure_probe(plan, small, steady(1.0)) + measure_probe(plan, large, steady(20.0, {(1, 2): 5.0}))
    assert pair_bandwidths_within(probe_evidence(plan, measured)) == pytest.approx(
        {("rank 0", "rank 1"): 20, ("rank 0", "rank 2"): 20, ("rank 1", "rank 2"): 5}, rel=0.01
    )
    between = Plan("a100", "cuda", (), nodes=3, ranks_per_node=1, probes=ProbeStudy((small,), 8, 0.1))
    assert pair_bandwidths_within(probe_evidence(between, measure_probe(between, small, steady(1.0)))) == {}


def luminance(colour: str, *, is_grey: bool) -> float:
    """Relative luminance as in WCAG 2, 0 to 1, of a colour or of its grey (ITU-R BT.601)."""
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    if is_grey:
        channels = [sum(w * c for w, c in zip((0.299, 0.587, 0.114), channels, strict=True))] * 3
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


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
