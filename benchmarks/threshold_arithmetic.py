"""Numbers of a thresholds file that follow from others: bounds from margins, published ratios, provisional formulas."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from statistics import mean
from typing import Any

from cited_files import Wrong

from pytest_ddpscale.thresholds.loading import ThresholdsFile
from pytest_ddpscale.thresholds.model import Requirement

WITHIN = 0.01  # of numbers computed from rounded ones
SPEED = "throughput_per_gpu"
FUNCTIONS = {"mean": mean, "min": min, "max": max, "round": round, "int": int, "zip": zip}
Key = tuple[str, str, str, str]  # SKU, metric, workload or probe, world size
Rows = dict[Key, Requirement]


def rows_of(file: ThresholdsFile) -> Rows:
    """All rows of a file but node checks. Raises SystemExit if two differ only in placement or versus."""
    every = [(sku, one) for sku, entry in file.thresholds.skus.items() for one in entry.requirements if not one.check]
    rows = {(sku, one.metric, one.subject, str(one.world_size)): one for sku, one in every}
    if len(rows) < len(every):
        raise SystemExit(
            f"{file.path}: rows that differ only in placement or versus; sources.yaml has no way to name them"
        )
    return rows


def value_of(one: Requirement) -> float:
    """The published value, or the bound of a row without one."""
    return one.bound if one.source.measured is None else one.source.measured


def listed_values(row: Mapping[str, Any]) -> Iterator[tuple[Key, str]]:
    """Key and expression of each value of a row of sources.yaml, which has the form of a row of thresholds.yaml."""
    lists = {key: row[key] if isinstance(row.get(key), list) else [row.get(key, "")] for key in ("sku", "of", "probe")}
    for metric in (one for one in row if one not in lists):
        for size, expression in (row[metric] if isinstance(row[metric], dict) else {1: row[metric]}).items():
            for subject in lists["of" if "of" in row else "probe"]:
                yield from (((sku, metric, subject, str(size)), str(expression)) for sku in lists["sku"])


def compare(expression: str, names: Mapping[str, Any], written: float, within: float) -> None:
    """Raise Wrong if the expression cannot be computed, or differs from a number by more than `within`."""
    try:
        number = eval(expression, {"__builtins__": {}, **FUNCTIONS, **names})
        differs = abs(number - written) > within * 1.0001
    except (TypeError, NameError, KeyError, AttributeError, ZeroDivisionError) as error:
        raise Wrong(f"{expression}: {type(error).__name__} {error}") from error
    if differs:
        raise Wrong(f"found {number:.6g} = {expression}, expected {written:.10g}")


def arithmetic(file: ThresholdsFile, formulas: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Kind of each check, and what is wrong or nothing: of all margins, of ratios, and of the listed formulas."""
    rows = rows_of(file)
    for key, one in rows.items():
        measured, margin = one.source.measured, one.source.margin_pct
        if measured is not None and margin is not None:
            side = 1 if one.definition.upper_bound else -1
            yield _checked("margin", key, f"{measured} * (1 + {side * margin} / 100)", {}, one, one.bound)
        expression = _ratio(rows, key)
        if measured is not None and expression:
            yield _checked("ratio", key, expression, {}, one, measured)
    for key, expression in (one for row in formulas for one in listed_values(row)):
        found = rows.get(key)
        names, written = ({}, 0.0) if found is None else (_names(file, rows, key), value_of(found))
        yield _checked("formula", key, expression, names, found, written)


def _checked(
    kind: str, key: Key, expression: str, names: Mapping[str, Any], one: Requirement | None, written: float
) -> tuple[str, str]:
    if one is None:
        return kind, f"{' '.join(key)}: {kind}: the thresholds have no such row"
    try:
        compare(expression, names, written, WITHIN * abs(written))
    except Wrong as wrong:
        return kind, f"{one.where}: {' '.join(key)}: {kind}: {wrong}"
    return kind, ""


def _ratio(rows: Rows, key: Key) -> str:
    """What a published ratio should be by the numbers beside it; empty if it is none, or they are of other sources."""
    sku, metric, subject, size = key
    one = rows[key]
    over: Requirement | None
    under: Requirement | None
    if metric == "weak_scaling_efficiency":
        over, under = rows.get((sku, SPEED, subject, size)), rows.get((sku, SPEED, subject, "1"))
    elif metric == "strong_scaling_efficiency":
        over = rows.get((sku, "strong_scaling_speedup", subject, size))
        return f"{value_of(over)} / {size}" if over is not None and size.isdigit() else ""
    elif metric == "generation_ratio":
        over, under = rows.get((sku, SPEED, subject, "1")), rows.get((str(one.versus), SPEED, subject, "1"))
    else:
        return ""
    published = over is not None and under is not None and None not in (over.source.measured, under.source.measured)
    return f"{over.source.measured} / {under.source.measured}" if published and over and under else ""


def _names(file: ThresholdsFile, rows: Rows, key: Key) -> dict[str, Any]:
    """What the formula of a row may use: its workload or probe, other rows' values and bounds, the batch, the peak."""
    sku, _, subject, _ = key

    def value(metric: str, subject: str = subject, size: object = 1, of: str = sku) -> float:
        return value_of(rows[of, metric, subject, str(size)])

    def bound(metric: str, subject: str = subject, size: object = 1, of: str = sku) -> float:
        return rows[of, metric, subject, str(size)].bound

    entry = file.thresholds.skus[sku]
    batch = entry.workloads[subject].batch_size if subject in entry.workloads else None
    return {"subject": subject, "value": value, "bound": bound, "batch": batch, "peak": entry.peak}
