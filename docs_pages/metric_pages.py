"""A page for each metric, from its entry in the catalogue and its rows in the packaged thresholds.yaml."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from docs_pages.packaged_rows import Entry, rows
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.metric import Metric
from pytest_ddpscale.plan.metric_catalogue import METRICS, NODE_CHECK
from pytest_ddpscale.plan.node_check import NODE_CHECKS
from pytest_ddpscale.report.explain import explain
from pytest_ddpscale.results.verdicts import Verdict
from pytest_ddpscale.thresholds.cases import AnyCase, cases_for
from pytest_ddpscale.thresholds.loading import load_thresholds

# In the order in which examples are looked for: a cluster's GPU first.
_EXAMPLE_SKUS = ("a100-sxm4-80gb", "b200", "h100", "v100-sxm2-16gb", "cpu")
_NODE = Layout(1, 8)
_WORKLOAD = "resnet152-fp16"
# How far the invented value of an example lies beyond its bound, and how wide its interval is.
_BEYOND, _HALF_WIDTH = 0.1, 0.01
_UNITS = {
    "fraction": "fraction, 0 … 1; reports show per cent",
    "x": "a ratio",
    "img/s": "images per second and GPU",
    "GB/s": "10⁹ bytes per second",
    "TFLOPS": "10¹² floating-point operations per second",
    "img/J": "images per joule",
}


def metric_pages(file: Path) -> dict[str, str]:
    """Markdown of each page, by its path from docs/; `file` is the packaged thresholds.yaml."""
    thresholds = load_thresholds(file)
    cases = [(sku, case) for sku in _EXAMPLE_SKUS for case in cases_for(thresholds, sku, _NODE)]
    packaged = list(rows(file))
    return {f"metrics/{metric.name}.md": _page(metric, packaged, cases) for metric in METRICS.values()}


def example_row(metric: Metric, packaged: Iterable[Entry]) -> tuple[str, str]:
    """A row of a metric in the packaged file, and its place; without one, a row with a value to fill in."""
    key = "check" if metric is NODE_CHECK else metric.name
    word = re.compile(rf"[{{ ]{key}:")
    found = [(text, ".".join(path)) for path, text in packaged if word.search(text)]
    if found:
        return min(found, key=lambda row: "published:" not in row[0])  # the first published one
    size = "1" if metric.maximum_world_size == 1 else "8"
    subject = {"workload": f", of: {_WORKLOAD}", "probe": f", probe: {(*metric.probes, '')[0]}"}
    value = f"{_example_bound(metric):.2g}"
    return f"- {{{key}: {{{size}: {value}}}{subject.get(metric.subject, '')}, provisional: 'why this value'}}", ""


def _example_bound(metric: Metric) -> float:
    """A number in the middle of its range, for a metric without a packaged row."""
    least, most = metric.range_at(1)
    return math.sqrt(max(least, 1e-3 * most) * most)


def _page(metric: Metric, packaged: Iterable[Entry], cases: Iterable[tuple[str, AnyCase]]) -> str:
    row, where = example_row(metric, packaged)
    row_from = f"From the packaged file, `{where}`:" if where else "The packaged file has no such row. An example:"
    better, end = ("Less", "maximum") if metric.upper_bound else ("More", "minimum")
    parts = [
        f"# {metric.title}",
        f"`{metric.name}`: {metric.meaning}",
        "| | |\n| --- | --- |\n" + "".join(_facts(metric)).rstrip(),
        f"{better} is better: the bound is a {end}."
        if metric.only_bound is None
        else f"The only bound that makes sense is {metric.only_bound:g}.",
        f"## In thresholds.yaml\n\n{row_from}\n\n```yaml\n{row}\n```",
        _failure(metric, cases),
        *([_checks()] if metric is NODE_CHECK else []),
        f"## More\n\n{_more(metric)}",
    ]
    return "\n\n".join(parts) + "\n"


def _facts(metric: Metric) -> Iterator[str]:
    least, most = metric.range_at(1)
    per_rank = " per rank" if metric.grows_with_ranks else ""
    told = {
        "unit": _UNITS.get(metric.unit, metric.unit),
        "in one round": metric.formula,
        "source of the formula": metric.origin or "defined by this project",
        "measured by": _measured_by(metric),
        "world size": _world_sizes(metric),
        "allowed bounds": f"{least:g} … {most:g}{per_rank}",
        "one slow rank": "slows all ranks" if metric.slowed_by_one_rank else "",
        "needs of the SKU": "its peak in the workload's precision (`peak`)" if metric.takes_peak else "",
        "needs of the row": "`versus`, the reference SKU" if metric.takes_versus else "",
        "accepts a machine": "yes, if the bound is published" if metric.carries_acceptance else "no, not alone",
    }
    return (f"| {name} | {text.replace('|', chr(92) + '|')} |\n" for name, text in told.items() if text)


def _measured_by(metric: Metric) -> str:
    if metric.subject == "probe":
        return "probes " + ", ".join(f"`{kind}`" for kind in metric.probes)
    if metric.subject == "check":
        return "the survey of each node, its telemetry and NCCL's log"
    if metric.subject == "node":
        return "values of each node in this run, compared with the site's history"
    arm = "`ddp@k`, at world size 1 `alone`" if metric.measured == "ddp" else f"`{metric.measured}@k`"
    baseline = {None: "", "alone": ", relative to `alone` (or `ddp@1`)"}.get(
        metric.baseline, f", relative to `{metric.baseline}@k`"
    )
    return f"arm {arm}{baseline}, in a study of {metric.scaling} scaling"


def _world_sizes(metric: Metric) -> str:
    least, most = metric.minimum_world_size, metric.maximum_world_size
    if metric.subject in ("check", "node"):
        return "none: it applies to whole nodes"
    return f"from {least}" if most is None else f"{least}" if least == most else f"{least} to {most}"


def _failure(metric: Metric, cases: Iterable[tuple[str, AnyCase]]) -> str:
    """The report's explanation of a value beyond the bound of the first requirement of this metric."""
    own = ((sku, case) for sku, case in cases if case.requirement.metric == metric.name)
    sku, case = next(own, (_EXAMPLE_SKUS[0], None))
    bound = case.requirement.bound if case else _example_bound(metric)
    value = bound * (1 + (_BEYOND if metric.upper_bound else -_BEYOND))
    verdict = Verdict(
        id=case.id if case else f"{metric.name}[{_WORKLOAD}-8gpu]", metric=metric.name,
        workload=case.requirement.subject if case else _WORKLOAD, world_size=case.world_size if case else 8,
        severity=case.requirement.severity if case else "warn", bound={metric.bound_key: bound}, outcome="failed",
        value=value, interval=(value * (1 - _HALF_WIDTH), value * (1 + _HALF_WIDTH)), rounds=8,
        provisional=case is None or case.requirement.provisional,
    )  # fmt: skip
    where = case.where.rsplit("/", 1)[-1] if case else "thresholds.yaml"
    shown = explain(verdict, where, f"pytest --gpu-sku={sku} -k {metric.name}")
    return f"## What a failure looks like\n\nWith an invented value, 10 % beyond the bound:\n\n```text\n{shown}\n```"


def _checks() -> str:
    lines = "".join(f"| `{check.name}` | {check.title} | {check.meaning} |\n" for check in NODE_CHECKS.values())
    return f"## Checks\n\n| name | title | a node passes if |\n| --- | --- | --- |\n{lines.rstrip()}"


def _more(metric: Metric) -> str:
    pages = {
        "probe": "[Sweep collectives](../how-to/collectives.md)",
        "check": "[Node health](../evidence/node-health.md)",
        "node": "[Compare runs](../how-to/compare.md)",
    }
    measuring = "[How a run is measured](../measuring.md)"
    first = (
        "[Measure inference](../how-to/inference.md)"
        if metric.measured == "infer"
        else pages.get(metric.subject, measuring)
    )
    return (
        f"{first} · [From rounds to verdicts](../judging.md) · [Read and change thresholds.yaml](../thresholds.md) · "
        "[All metrics](../metrics.md) · [Add a metric](../how-to/metric.md)"
    )
