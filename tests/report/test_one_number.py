"""A quantity of a run has one number, in whatever file somebody looks for it."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.report import plots
from pytest_ddpscale.report.csv_tables import render_requirements
from pytest_ddpscale.report.scaling_table import scaling_tables
from pytest_ddpscale.report.svg_figures import figures
from pytest_ddpscale.run.verdicts import Judgement
from pytest_ddpscale.util.digits import percent
from tests.builders.judged import CONFIDENCE, make_case
from tests.builders.judgements import JUDGEMENT, RUN
from tests.judge.nodes import measure_nodes, nodes_evidence, plan_of_nodes, slow_rank

# Of four nodes with two GPUs each; the first two nodes, of which a size is not judged, are the fast ones.
EFFICIENCY = {size: make_case("weak_scaling_efficiency", 0.9, world_size=size) for size in (2, 8)}
THROUGHPUT = {size: make_case("throughput_per_gpu", 90.0, world_size=size) for size in (1, 2, 8)}
CASES = (*EFFICIENCY.values(), *THROUGHPUT.values())
PLAN = plan_of_nodes(CASES, 4, 2)
EVIDENCE = nodes_evidence(PLAN, measure_nodes(PLAN, slow_rank(2, 1)))


def judged() -> Judgement:
    return replace(JUDGEMENT, verdicts=tuple(judge(case, EVIDENCE, CONFIDENCE) for case in CASES))


def drawn(judgement: Judgement, directory: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Figure]:
    """The figures of the PNG files, by title."""
    found: dict[str, Figure] = {}
    pixels = plots._pixels

    def keep(figure: Figure) -> plots._Pixels:
        found[figure.axes[0].get_title(loc="left").splitlines()[0]] = figure
        return pixels(figure)

    monkeypatch.setattr(plots, "_pixels", keep)
    plots.write_plots(EVIDENCE, judgement, directory)
    return found


def test_every_view_has_the_number_of_the_verdict(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    judgement = judged()
    values = {one.id: one.value or 0.0 for one in judgement.verdicts}
    assert {row["id"]: float(row["value"]) for row in csv.DictReader(io.StringIO(render_requirements(judgement)))} == (
        pytest.approx(values)
    )
    efficiency = {size: values[case.id] for size, case in EFFICIENCY.items()}
    throughput = {size: values[case.id] for size, case in THROUGHPUT.items()}
    svgs = {figure.id: figure.svg for figure in figures(EVIDENCE, judgement, RUN)}
    pngs = drawn(judgement, tmp_path, monkeypatch)
    for key, title, expected, factor in (
        ("weak-efficiency", "Weak scaling: efficiency against one GPU", efficiency, 100.0),
        ("weak-throughput", "Weak scaling: throughput per GPU", throughput, 1.0),
    ):
        words = re.findall(r"([\d.]+) (?:%|img/s) on (\d+)", re.findall(r"<desc[^>]*>(.*?)</desc>", svgs[key])[0])
        said = {int(size): float(value) for value, size in words}
        line: Any = pngs[title].axes[0].lines[0]
        points = dict(zip(map(int, line.get_xdata()), map(float, line.get_ydata()), strict=True))
        for size, value in expected.items():
            assert said[size] == pytest.approx(value * factor, abs=0.051)
            assert points[size] == pytest.approx(value * factor)
        assert set(said) == set(points) == {*expected, 4, *([1] if factor == 1.0 else [])}
        assert said[4] == pytest.approx(points[4], abs=0.051)
    (table,) = scaling_tables(EVIDENCE, judgement.verdicts)
    shown = {int(row[0]): dict(zip(table.headings, row, strict=True)) for row in table.rows}
    for size, value in efficiency.items():
        assert (shown[size]["efficiency"], shown[size]["speed-up"]) == (percent(value, 1), f"{value * size:.2f}x")
    for size, value in throughput.items():
        assert shown[size]["img/s"] == f"{value * size:.0f}"


def test_pictures_show_the_interval_that_decides_a_cross_where_it_fails_and_the_nodes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    judgement = judged()
    by_id = {one.id: one for one in judgement.verdicts}
    two, eight = (by_id[case.id] for case in EFFICIENCY.values())
    assert (two.outcome, two.place, eight.outcome) == ("failed", "n2", "failed")
    figure = drawn(judgement, tmp_path, monkeypatch)["Weak scaling: efficiency against one GPU"]
    axes: Any = figure.axes[0]
    (bars,) = axes.collections
    ends = {round(bar[0][0]): (bar[0][1], bar[1][1]) for bar in bars.get_segments()}
    for verdict in (two, eight):
        assert verdict.interval is not None
        assert ends[verdict.world_size] == pytest.approx([100 * end for end in verdict.interval])
    crosses = [tuple(line.get_xydata()[0]) for line in axes.lines if line.get_marker() == "x"]
    assert dict(crosses) == pytest.approx({one.world_size: 100 * (one.value or 0) for one in (two, eight)})
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    told = ["95 % confidence interval", "misses its bound", "2 GPUs: worst node (n2)", "4 GPUs: first 2 of 4 nodes"]
    assert legend[-4:] == told
    svg = next(one.svg for one in figures(EVIDENCE, judgement, RUN) if one.id == "weak-efficiency")
    assert all(f">{text}</text>" in svg for text in told)
    assert f"{percent(two.value, 1)} on 2 (worst node (n2)), misses its bound" in svg
