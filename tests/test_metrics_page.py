"""docs/metrics.md is what the catalogue says.

`python -m tests.test_metrics_page` writes the page.
"""

from __future__ import annotations

from pathlib import Path

from pytest_ddpscale.plan.metric import Metric
from pytest_ddpscale.plan.metric_catalogue import METRICS

PAGE = Path(__file__).parents[1] / "docs" / "metrics.md"
HEAD = """\
# Metrics

What a requirement may be about. In formulas t is the throughput per GPU of an arm in one round, and k the number of
ranks. A bound beyond the range judges nothing and is refused. Written from `pytest_ddpscale/plan/metric_catalogue.py`
by `python -m tests.test_metrics_page`. The site has a page for each, with an example and what a failure looks like. How
to add one: [how-to/metric.md](how-to/metric.md).

| metric | what it says | in one round | bound | range |
| --- | --- | --- | --- | --- |
"""


def row(metric: Metric) -> str:
    least, most = metric.range_at(1)
    ends = f"{least:g} … {most:g}{' a rank' if metric.grows_with_ranks else ''}"
    unit = "" if metric.unit == "fraction" else f" {metric.unit}"
    cells = [
        f"`{metric.name}`",
        f"{metric.title}. {metric.meaning}",
        metric.formula,
        f"`{metric.bound_key}`",
        f"{ends}{unit}",
    ]
    return f"| {' | '.join(cells)} |\n"


def page() -> str:
    return HEAD + "".join(map(row, METRICS.values()))


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "write it: python -m tests.test_metrics_page"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
