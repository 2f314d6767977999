"""docs/metrics.md matches the metric catalogue.

`python -m tests.test_metrics_page` writes the page.
"""

from __future__ import annotations

from pathlib import Path

from pytest_ddpscale.plan.metric import Metric
from pytest_ddpscale.plan.metric_catalogue import METRICS

PAGE = Path(__file__).parents[1] / "docs" / "metrics.md"
HEAD = """\
# Metrics

Every metric that a requirement can use. In formulas t is the throughput per GPU of an arm in one round, and k the
number of ranks. A bound outside the range is refused, because every value would pass or fail it.
`python -m tests.test_metrics_page` writes this page from `pytest_ddpscale/plan/metric_catalogue.py`. The site has a
page for each metric, with an example row and an example of a failure. To add one: [how-to/metric.md](how-to/metric.md).

| metric | meaning | in one round | bound | range |
| --- | --- | --- | --- | --- |
"""


def row(metric: Metric) -> str:
    least, most = metric.range_at(1)
    ends = f"{least:g} … {most:g}{' per rank' if metric.grows_with_ranks else ''}"
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
