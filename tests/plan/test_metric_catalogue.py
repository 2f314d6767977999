"""Every entry of the catalogue says all that is needed of a metric, and nothing else knows one by its name."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from pytest_ddpscale.plan.arm import USUAL
from pytest_ddpscale.plan.metric import Metric
from pytest_ddpscale.plan.metric_catalogue import METRICS
from pytest_ddpscale.util.packaged import packaged
from tests.rows import rows

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "pytest_ddpscale"
# Keys of records, parameters and units that are called as a metric is, and mean something else.
NAMESAKES = {
    ("simulate/performance.py", "ddp_overhead"),
}

of_every_metric = rows("metric", METRICS.values(), ids=METRICS)


@of_every_metric
def test_it_has_words_for_people(metric: Metric) -> None:
    assert re.fullmatch(r"[a-z][a-z0-9_]+", metric.name)
    assert metric.title[0].isupper() or metric.title[0].isdigit()
    assert metric.meaning.endswith(".")
    assert len(metric.formula) > 5
    assert len({metric.title, metric.meaning, metric.formula}) == 3


def test_no_two_have_the_same_words() -> None:
    for words in ("title", "meaning", "formula"):
        assert len({getattr(metric, words) for metric in METRICS.values()}) == len(METRICS), words


@of_every_metric
def test_what_is_plausible_is_a_range_in_which_bounds_lie(metric: Metric) -> None:
    least, most = metric.range_at(8)
    assert 0 <= least < most < float("inf")
    lowest, highest = metric.range_at(8, "credible")
    assert lowest <= least
    assert highest >= most or highest >= 1


@of_every_metric
def test_it_has_arms_and_ranks_for_which_it_means_something(metric: Metric) -> None:
    assert 1 <= metric.minimum_world_size <= (metric.maximum_world_size or metric.minimum_world_size)
    assert metric.measured != metric.baseline or metric.baseline_variant != USUAL
    assert (len(metric.probes) > 0) == (metric.subject == "probe")


@of_every_metric
def test_an_acceptance_test_asks_for_it(metric: Metric) -> None:
    marks = [path.read_text(encoding="utf-8") for path in packaged("acceptance").glob("test_*.py")]
    assert sum(len(re.findall(rf'requirement\([^)]*"{metric.name}"', text)) for text in marks) == 1


def test_only_their_functions_know_them_by_name() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}
    any_name = re.compile("|".join(METRICS))  # most modules have none, and need not be parsed
    named = {
        (str(path.relative_to(PACKAGE)), node.value)
        for path, text in texts.items()
        if any_name.search(text) and path.name not in ("metric_catalogue.py", "operation.py", "metrics.py")
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and node.value in METRICS
    }
    assert named == NAMESAKES
