"""A quantity of a run has one number, in whatever file somebody looks for it."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace

import pytest

from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.report.csv_tables import render_values
from pytest_ddpscale.report.figures.of_run import Figure, figures
from pytest_ddpscale.report.scaling_table import scaling_tables
from pytest_ddpscale.report.words.reasons import worded
from pytest_ddpscale.run.verdicts import Judgement
from pytest_ddpscale.thresholds.cases import json_of
from pytest_ddpscale.util.digits import percent
from pytest_ddpscale.util.document import plain
from tests.builders.judged import CONFIDENCE, make_case
from tests.builders.judgements import JUDGEMENT, RUN
from tests.judge.runs import Run
from tests.report.drawn import canvas_of, crosses, description, intervals, points, texts

# Of four nodes with two GPUs each; the first two nodes, of which a size is not judged, are the fast ones.
EFFICIENCY = {size: make_case("weak_scaling_efficiency", 0.9, world_size=size) for size in (2, 8)}
THROUGHPUT = {size: make_case("throughput_per_gpu", 90.0, world_size=size) for size in (1, 2, 8)}
CASES = (*EFFICIENCY.values(), *THROUGHPUT.values())
ASKED = " ".join(f"{one.requirement.metric}:{one.requirement.bound}@{one.world_size}" for one in CASES)
EVIDENCE = Run(f"{ASKED} 4x2 slow=*1.3/5").judged()[1]


def judged() -> Judgement:
    verdicts = tuple(worded(judge(case, EVIDENCE, CONFIDENCE)) for case in CASES)
    return replace(JUDGEMENT, verdicts=verdicts, requirements=json_of(CASES), requirements_sha256="")


def drawn(judgement: Judgement) -> dict[str, Figure]:
    """The figures by id."""
    return {figure.id: figure for figure in figures(EVIDENCE, judgement, RUN)}


def test_every_view_has_the_number_of_the_verdict() -> None:
    judgement = judged()
    values = {one.id: one.value or 0.0 for one in judgement.verdicts}
    written = list(csv.DictReader(io.StringIO(render_values(judgement, EVIDENCE))))
    told = {row["requirement"]: float(row["value"]) for row in written if row["outcome"]}
    assert told == pytest.approx(values)
    of_two = [row for row in written if row["requirement"] == EFFICIENCY[2].id]
    assert [(row["place"], row["outcome"]) for row in of_two] == [("n2", "failed"), ("n0", ""), ("n1", ""), ("n3", "")]
    assert min(of_two, key=lambda row: float(row["value"]))["place"] == "n2"
    efficiency = {size: values[case.id] for size, case in EFFICIENCY.items()}
    throughput = {size: values[case.id] for size, case in THROUGHPUT.items()}
    found = drawn(judgement)
    for key, expected, factor in (("weak-efficiency", efficiency, 100.0), ("weak-throughput", throughput, 1.0)):
        words = re.findall(r"([\d.]+) (?:%|img/s) on (\d+)", description(found[key]))
        said = {int(size): float(value) for value, size in words}
        shown = {int(size): value for size, value in points(canvas_of(found[key]).axes[0])}
        for size, value in expected.items():
            assert said[size] == pytest.approx(value * factor, abs=0.051)
            assert shown[size] == pytest.approx(value * factor)
        assert set(said) == set(shown) == {*expected, 4, *([1] if factor == 1.0 else [])}
        assert said[4] == pytest.approx(shown[4], abs=0.051)
    ((_, table, _),) = scaling_tables(EVIDENCE, judgement.verdicts)
    rows = {int(plain(row[0])): dict(zip(table.titles, row, strict=True)) for row in table.rows}
    for size, value in efficiency.items():
        assert (rows[size]["efficiency"], rows[size]["speed-up"]) == (percent(value, 1), f"{value * size:.2f}x")
    for size, value in throughput.items():
        assert rows[size]["img/s"] == f"{value * size:.0f}"


def test_pictures_show_the_interval_that_decides_a_cross_where_it_fails_and_the_nodes() -> None:
    judgement = judged()
    by_id = {one.id: one for one in judgement.verdicts}
    two, eight = (by_id[case.id] for case in EFFICIENCY.values())
    assert (two.outcome, two.place, eight.outcome) == ("failed", "n2", "failed")
    figure = drawn(judgement)["weak-efficiency"]
    axes = canvas_of(figure).axes[0]
    for verdict in (two, eight):
        assert verdict.interval is not None
        assert intervals(axes)[verdict.world_size] == pytest.approx([100 * end for end in verdict.interval])
    assert dict(crosses(axes)) == pytest.approx({one.world_size: 100 * (one.value or 0) for one in (two, eight)})
    assert {"95 % confidence interval", "misses its bound"} <= set(texts(figure))
    assert "2 GPUs: worst node (n2). 4 GPUs: first 2 of 4 nodes." in figure.caption
    said = f"{percent(two.value or 0, 1)} on 2 GPUs (worst node (n2)), misses its bound"
    assert said in description(figure)
