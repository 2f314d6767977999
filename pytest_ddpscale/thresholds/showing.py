"""A SKU's requirements row by row, for `ddpscale thresholds show`, and as JSON. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.plan.layout import WorldSize
from pytest_ddpscale.plan.metric import Metric
from pytest_ddpscale.plan.metric_catalogue import METRICS, NODE_CHECK
from pytest_ddpscale.plan.node_check import NODE_CHECKS
from pytest_ddpscale.thresholds.changes import BoundChange, all_changes
from pytest_ddpscale.thresholds.form import did_you_mean
from pytest_ddpscale.thresholds.loading import ThresholdsFile
from pytest_ddpscale.thresholds.model import Requirement, Sku


@dataclass(frozen=True)
class AskedRow:
    """A requirement, and its change.

    Attributes:
        requirement: as in this file.
        change: difference from the file that this one extends; None if there is none, or no such file.
    """

    requirement: Requirement
    change: BoundChange | None = None


@dataclass(frozen=True)
class Asked:
    """A file's requirements of a SKU, or of some of its metrics.

    Attributes:
        file: the thresholds file.
        name: canonical name of the SKU.
        metrics: selected metrics, in the order of the catalogue.
        rows: in the order of the metrics, then of the file.
        removed: requirements that only the file has which this one extends.
    """

    file: ThresholdsFile
    name: str
    metrics: tuple[str, ...]
    rows: tuple[AskedRow, ...]
    removed: tuple[Requirement, ...] = ()

    @property
    def sku(self) -> Sku:
        """The SKU."""
        return self.file.thresholds.skus[self.name]

    def rows_of(self, metric: str) -> list[AskedRow]:
        """The rows of one metric."""
        return [row for row in self.rows if row.requirement.metric == metric]


@dataclass(frozen=True)
class ListedSku:
    """A SKU of a file, in one line.

    Attributes:
        name, aliases, description: of the SKU.
        published: number of requirements with a published value, or that follow from arithmetic.
        provisional: number of other requirements.
        checks: number of node checks.
    """

    name: str
    aliases: tuple[str, ...]
    description: str
    published: int
    provisional: int
    checks: int


def listed_skus(file: ThresholdsFile) -> list[ListedSku]:
    """The SKUs of a file."""
    return [_listed(name, sku) for name, sku in file.thresholds.skus.items()]


def _listed(name: str, sku: Sku) -> ListedSku:
    numbers = [one for one in sku.requirements if not one.check]
    provisional = sum(one.provisional for one in numbers)
    return ListedSku(
        name,
        sku.aliases,
        _one_line(sku.description),
        len(numbers) - provisional,
        provisional,
        len(sku.requirements) - len(numbers),
    )


def asked_of(file: ThresholdsFile, sku: str, metric: str | None = None) -> Asked:
    """A file's requirements of a SKU.

    Args:
        file: the thresholds file.
        sku: a name or alias, in any case.
        metric: only this metric, or those whose names contain this.

    Raises:
        SkuError: unknown SKU.
        OptionError: unknown metric.
        ThresholdsError: its section is not valid, or the file below cannot be read.
    """
    name = file.sku_name(sku)
    metrics = _metrics(metric)
    changes = _changes(file, name)
    changed = {_identity(one.now): one for one in changes if one.now is not None}
    rows = (AskedRow(one, changed.get(_identity(one))) for one in file.thresholds.skus[name].requirements)
    places = {one: place for place, one in enumerate(metrics)}
    mine = sorted((row for row in rows if row.requirement.metric in places), key=lambda row: places[_metric_of(row)])
    gone = tuple(one.was for one in changes if one.now is None and one.was and one.was.metric in places)
    return Asked(file, name, metrics, tuple(mine), gone)


def _metric_of(row: AskedRow) -> str:
    return row.requirement.metric


def _identity(one: Requirement) -> tuple[object, ...]:
    return (*one.key(), one.severity)


def _changes(file: ThresholdsFile, sku: str) -> tuple[BoundChange, ...]:
    return next((one.bounds for one in all_changes(file) if one.sku == sku), ())


def _metrics(asked: str | None) -> tuple[str, ...]:
    if asked is None:
        return tuple(METRICS)
    wanted = asked.casefold().strip().replace(" ", "_").replace("-", "_")
    if wanted in METRICS:
        return (wanted,)
    found = tuple(name for name in METRICS if wanted and wanted in name)
    if not found:
        hint = did_you_mean(wanted, METRICS).removeprefix("; ").capitalize()
        raise OptionError("--metric", f"there is no metric {asked!r}", f"one of {', '.join(METRICS)}", hint)
    return found


def unit_of(metric: Metric) -> str:
    """The metric's unit in words."""
    return {"x": "factor"}.get(metric.unit, metric.unit_of())


def ranks_text(requirement: Requirement) -> str:
    """``8``, ``node``, ``2 nodes``, ``all``; ``8 spread`` if ranks are dealt to all nodes in turn."""
    size: WorldSize = requirement.world_size
    return f"{size} spread" if requirement.placement == "spread" else str(size)


def subject_text(requirement: Requirement) -> str:
    """Its subject, and what it is compared with."""
    versus = f" vs {requirement.versus}" if requirement.versus else ""
    if requirement.one_gpu == "ddp":
        versus += ", ddp@1" if requirement.world_size == 1 else " vs ddp@1"
    return f"{requirement.subject or 'each node'}{versus}"


def margin_text(requirement: Requirement) -> str:
    """``− 5 %`` or ``+ 5 %`` relative to the published value; empty if the bound is stated or nothing was published."""
    margin = requirement.source.margin_pct
    return "" if margin is None else f"{'+' if requirement.definition.upper_bound else '−'} {margin:g} %"


def source_text(requirement: Requirement) -> str:
    """Its source, or why it is provisional, in one line."""
    source = requirement.source
    if requirement.check:
        return NODE_CHECKS[requirement.check].meaning
    told = (f"provisional: {source.reasoning}",) if requirement.provisional else (source.reference, source.reasoning)
    return _one_line("; ".join(part for part in (*told, requirement.one_gpu_text) if part))


def _one_line(text: str) -> str:
    return " ".join(text.split())


def asked_json(asked: Asked) -> str:
    """One JSON object: units, files with their digests, workloads, requirements, and removed ones."""
    used = dict.fromkeys(_metric_of(row) for row in asked.rows)
    workloads = dict.fromkeys(row.requirement.workload for row in asked.rows if row.requirement.workload)
    sku = asked.sku
    return _strict(
        {
            "sku": asked.name,
            "aliases": list(sku.aliases),
            "description": sku.description,
            **files_json(asked.file),
            "metrics": list(asked.metrics),
            "units": {name: METRICS[name].unit_of() for name in used},
            "workloads": {name: sku.workloads[name].settings for name in workloads},
            "requirements": [_row_json(row, sku) for row in asked.rows],
            "removed": [_requirement_json(one, sku) for one in asked.removed],
        }
    )


def listed_json(file: ThresholdsFile) -> str:
    """One JSON object: files with their digests, and SKUs."""
    return _strict({**files_json(file), "skus": [asdict(one) for one in listed_skus(file)]})


def files_json(file: ThresholdsFile) -> dict[str, Any]:
    """Path and digest of a file, and of those that it extends, the nearest first."""
    return {
        "thresholds": {"path": str(file.path), "sha256": file.sha256},
        "extends": [{"path": path, "sha256": sha256} for path, sha256 in file.extended],
    }


def _row_json(row: AskedRow, sku: Sku) -> dict[str, Any]:
    change = row.change
    was = _requirement_json(change.was, sku) if change is not None and change.was is not None else None
    return {
        **_requirement_json(row.requirement, sku),
        "changed": None if change is None else list(change.kinds),
        "weaker": None if change is None else change.is_weaker,
        "was": was,
    }


def _requirement_json(one: Requirement, sku: Sku) -> dict[str, Any]:
    file, _, line = one.where.rpartition(":")
    return {
        "metric": one.metric,
        "unit": sku.unit_of(one),
        "workload": one.workload or None,
        "probe": one.probe or None,
        "check": one.check or None,
        "world_size": one.world_size,
        "placement": one.placement,
        "versus": one.versus,
        "one_gpu": one.one_gpu if one.times_one_gpu else None,
        "published": one.source.measured,
        "margin_pct": one.source.margin_pct,
        "bound": one.bound,
        "bound_is": one.definition.bound_key,
        "sound": one.sound_value,
        "smallest_fault": one.smallest_fault,
        "severity": one.severity,
        "provisional": one.provisional,
        "source": one.source.reference,
        "reasoning": one.source.reasoning,
        "file": file,
        "line": int(line),
    }


def _strict(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False, default=asdict)


def is_of_checks(metrics: Iterable[str]) -> bool:
    """Whether these are only node checks, which have no numbers."""
    return set(metrics) == {NODE_CHECK.name}
