"""`ddpscale thresholds show`: a SKU's requirements row by row, as blocks for a terminal of 100 columns and as JSON."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.plan.metric_catalogue import METRICS
from pytest_ddpscale.plan.node_check import NODE_CHECKS
from pytest_ddpscale.thresholds.changes import BoundChange, all_changes, bound_text
from pytest_ddpscale.thresholds.loading import ThresholdsFile
from pytest_ddpscale.thresholds.model import Requirement, Sku
from pytest_ddpscale.util.digits import percent
from pytest_ddpscale.util.document import Block, Line, Section, Table, bullets, text_lines
from pytest_ddpscale.util.listing import first_few, shorten
from pytest_ddpscale.util.nearest import did_you_mean

WIDTH = 100  # of lines
LONGEST_SUBJECT = 30
_ABSENT = "–"
_KINDS = ("published", "site", "provisional")


@dataclass(frozen=True)
class Selection:
    """A file's requirements of a SKU, or of some of its metrics.

    Attributes:
        file: the thresholds file.
        name: canonical name of the SKU.
        metrics: selected metrics, in the order of the catalogue.
        rows: in the order of the metrics, then of the file, each with its change, or None if the file below has it so.
        removed: requirements that only the file has which this one extends.
    """

    file: ThresholdsFile
    name: str
    metrics: tuple[str, ...]
    rows: tuple[tuple[Requirement, BoundChange | None], ...]
    removed: tuple[Requirement, ...] = ()

    @property
    def sku(self) -> Sku:
        """The SKU."""
        return self.file.thresholds.skus[self.name]


def listed_skus(file: ThresholdsFile, names: Collection[str] | None = None) -> list[dict[str, Any]]:
    """SKUs of a file, each with the number of its checks, and of its other requirements by where their values are from.

    Counted are values that are published or follow from arithmetic, the site's own, and provisional ones.
    """
    listed: list[dict[str, Any]] = []
    for name in file.thresholds.skus if names is None else names:
        sku = file.thresholds.skus[name]
        numbers = [requirement for requirement in sku.requirements if not requirement.check]
        kinds = Counter(_KINDS[2 if requirement.provisional else requirement.source.is_site] for requirement in numbers)
        listed.append(
            {"name": name, "aliases": sku.aliases, "description": " ".join(sku.description.split())}
            | {kind: kinds[kind] for kind in _KINDS}
            | {"checks": len(sku.requirements) - len(numbers)}
        )
    return listed


def selection_of(file: ThresholdsFile, sku: str, metric: str | None = None) -> Selection:
    """A file's requirements of a SKU.

    Args:
        file: the thresholds file.
        sku: a name or alias, in any case.
        metric: only this metric, or those whose names contain this.

    Raises:
        SkuError: unknown SKU.
        OptionError: unknown metric.
    """
    name, wanted = file.sku_name(sku), (metric or "").casefold().strip().replace(" ", "_").replace("-", "_")
    metrics = tuple(one for one in METRICS if metric is None or (wanted and wanted in one))
    if not metrics:
        hint = did_you_mean(wanted, METRICS).removeprefix("; ").capitalize()
        raise OptionError("--metric", f"there is no metric {metric!r}", f"one of {', '.join(METRICS)}", hint)
    changes = next((change.bounds for change in all_changes(file) if change.sku == name), ())
    changed = {change.now.key(): change for change in changes if change.now is not None}
    mine = [requirement for requirement in file.thresholds.skus[name].requirements if requirement.metric in metrics]
    mine.sort(key=lambda requirement: metrics.index(requirement.metric))
    gone = tuple(change.was for change in changes if change.now is None and change.was and change.was.metric in metrics)
    return Selection(
        file, name, metrics, tuple((requirement, changed.get(requirement.key())) for requirement in mine), gone
    )


def source_text(requirement: Requirement) -> str:
    """Its source, or why it is provisional, in one line."""
    source = requirement.source
    texts = (NODE_CHECKS[requirement.check].meaning,) if requirement.check else (source.reference, source.reasoning)
    return " ".join("; ".join(part for part in (*texts, requirement.one_gpu_text) if part).split())


def selection_json(selection: Selection) -> dict[str, Any]:
    """Units, files with their digests, workloads, requirements, and removed ones."""
    sku, requirements = selection.sku, [requirement for requirement, _ in selection.rows]
    return {
        "sku": selection.name,
        "aliases": sku.aliases,
        "description": sku.description,
        **_files_json(selection.file),
        "metrics": selection.metrics,
        "units": {requirement.metric: sku.unit_of(requirement) for requirement in requirements},
        "workloads": {
            requirement.workload: sku.workloads[requirement.workload].settings
            for requirement in requirements
            if requirement.workload
        },
        "requirements": [
            {
                **_requirement_json(requirement, sku),
                "changed": change and change.kinds,
                "weaker": change and change.is_weaker,
                "was": _requirement_json(change.was, sku) if change and change.was else None,
            }
            for requirement, change in selection.rows
        ],
        "removed": [_requirement_json(requirement, sku) for requirement in selection.removed],
    }


def listed_json(file: ThresholdsFile) -> dict[str, Any]:
    """Files with their digests, and SKUs."""
    return {**_files_json(file), "skus": listed_skus(file)}


def json_text(data: dict[str, Any]) -> str:
    """One JSON object."""
    return json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False, default=asdict)


def _files_json(file: ThresholdsFile) -> dict[str, Any]:
    return {
        "thresholds": {"path": str(file.path), "sha256": file.sha256},
        "extends": [{"path": path, "sha256": sha256} for path, sha256 in file.extended],
    }


def _requirement_json(requirement: Requirement, sku: Sku) -> dict[str, Any]:
    file, _, line = requirement.where.rpartition(":")
    measured, is_site = requirement.source.measured, requirement.source.is_site
    return {
        "metric": requirement.metric,
        "unit": sku.unit_of(requirement),
        **{name: getattr(requirement, name) or None for name in ("workload", "probe", "check")},
        **{name: getattr(requirement, name) for name in ("world_size", "placement", "versus")},
        "one_gpu": requirement.one_gpu if requirement.times_one_gpu else None,
        "published": None if is_site else measured,
        "site_value": measured if is_site else None,
        "is_site": is_site,
        "margin_pct": requirement.source.margin_pct,
        "bound": requirement.bound,
        "bound_is": requirement.definition.bound_key,
        "sound": requirement.sound_value,
        "smallest_fault": requirement.smallest_fault,
        "severity": requirement.severity,
        "provisional": requirement.provisional,
        "source": requirement.source.reference,
        "reasoning": requirement.source.reasoning,
        "file": file,
        "line": int(line),
    }


def selection_blocks(selection: Selection, verbose: bool = False) -> Iterator[Block]:
    """The SKU and its files, then a table for each metric; `verbose` adds each row's line and full source."""
    sku, rows = selection.sku, [requirement for requirement, _ in selection.rows]
    yield from file_blocks(selection.file)
    yield counted(selection.file, [selection.name])
    if not rows:
        known = dict.fromkeys(requirement.metric for requirement in sku.requirements)
        yield Line(f"No requirement on {', '.join(selection.metrics)}. Metrics with one: {', '.join(known)}.")
        return
    for metric, of_metric in groupby(selection.rows, lambda row: row[0].metric):
        yield _section(metric, [*of_metric], sku, verbose)
    gone = bullets(f"{requirement}: {bound_text(requirement)}" for requirement in selection.removed)
    yield Section("Not required here, but in the file that this one extends", [gone])
    if not verbose:
        yield Line("* differs from the file below; -v adds whole sources and lines; see also --format=json.")
    if any(requirement.provisional for requirement in rows if not requirement.check):
        yield Line("Provisional: an estimate without a published value; cannot accept a cluster alone.")


def smallest_blocks(selection: Selection) -> Iterator[Block]:
    """What is rejected, and from which loss on: the nearest row of each metric."""
    yield from file_blocks(selection.file)
    nearest = dict[str, tuple[float, tuple[str, ...]]]()
    for requirement, change in selection.rows:
        if requirement.severity == "warn" or requirement.check:
            continue
        is_of_peers = requirement.metric.endswith("_uniformity")
        fault = requirement.bound - 1 if is_of_peers else requirement.smallest_fault
        loss = "unknown" if fault is None else f"{percent(fault, int(fault < 0.1))}{' (peers)' * is_of_peers}"
        row = requirement.metric, *_cells(requirement, change)[:2], bound_text(requirement), loss
        nearest[requirement.metric] = min(
            nearest.get(requirement.metric, (math.inf, row)), (math.inf if fault is None else fault, row)
        )
    yield Table(("metric", "of", "GPUs", "bound", "rejects from"), [row for _, row in nearest.values()])
    yield Line("Smaller ones are not rejected; ddpscale calibrate has nearer bounds.")


def tell(*blocks: Block, width: int | None = WIDTH) -> None:
    """Print blocks."""
    for line in text_lines(*blocks, width=width):
        print(line)


def listed_blocks(file: ThresholdsFile) -> Iterator[Block]:
    """The SKUs of a file, each in one line."""
    yield from file_blocks(file)
    yield counted(file)
    yield Line("Requirements of one: ddpscale thresholds show --gpu-sku NAME")


def counted(file: ThresholdsFile, names: Collection[str] | None = None) -> Table:
    """SKUs of a file with the number of their requirements, by where the values are from."""
    rows = [
        (
            listed["name"],
            ", ".join(listed["aliases"]),
            *(str(listed[of]) for of in (*_KINDS, "checks")),
            listed["description"],
        )
        for listed in listed_skus(file, names)
    ]
    return Table(("SKU", "also", "published", "site's", "provisional", "checks", "description"), rows)


def file_blocks(file: ThresholdsFile) -> Iterator[Line]:
    """The file and those that it extends, with short digests."""
    files = ("thresholds:", str(file.path), file.sha256), *(("extending", *below) for below in file.extended)
    yield from (Line(f"{word} {path} (sha256 {digest[:12]}…)") for word, path, digest in files)


def _section(metric: str, rows: Sequence[tuple[Requirement, BoundChange | None]], sku: Sku, verbose: bool) -> Section:
    """The rows of one metric, what they were, and lines and sources of rows that have these in common."""
    definition = METRICS[metric]
    units = dict.fromkeys("factor" if definition.unit == "x" else sku.unit_of(requirement) for requirement, _ in rows)
    better = "less" if definition.upper_bound else "more"
    titles = ("of", "GPUs", "value", "margin", "bound", "", "source")
    notes = [f"{requirement} was: {bound_text(change.was)}" for requirement, change in rows if change]
    if verbose:
        for details, alike in groupby(rows, lambda row: f"{row[0].where}: {source_text(row[0])}"):
            names = dict.fromkeys(requirement.subject or "each node" for requirement, _ in alike)
            notes.append(f"{first_few([*names])}: {details}")
    table = Table(titles, [_cells(*row) for row in rows])
    title = f"{metric} ({' or '.join(units)}, {better} is better)"
    return Section(title, [Line(definition.meaning), table, bullets(notes)])


def _cells(row: Requirement, change: BoundChange | None) -> tuple[str, ...]:
    source, measured, is_upper = row.source, row.source.measured, row.definition.upper_bound
    versus = f" vs {row.versus}" if row.versus else ""
    baseline = ", ddp@1" if row.one_gpu == "ddp" else ""
    site = "site's " if source.is_site else ""
    return (
        shorten(f"{'*' if change else ''}{row.subject or 'each node'}{versus}{baseline}", LONGEST_SUBJECT),
        f"{row.world_size}{' spread' if row.placement == 'spread' else ''}",
        "provisional" if row.provisional and not row.check else _ABSENT if measured is None else f"{site}{measured:g}",
        _ABSENT if source.margin_pct is None else f"{'+' if is_upper else '−'} {source.margin_pct:g} %",
        "must pass" if row.check else f"{'≤' if is_upper else '≥'} {row.bound:g}",
        row.severity,
        source_text(row),
    )
