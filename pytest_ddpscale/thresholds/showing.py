"""`ddpscale thresholds show`: a SKU's requirements row by row, as text for a terminal of 100 columns and as JSON."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.plan.metric_catalogue import METRICS, NODE_CHECK
from pytest_ddpscale.plan.node_check import NODE_CHECKS
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.thresholds.changes import BoundChange, all_changes, bound_text
from pytest_ddpscale.thresholds.loading import ThresholdsFile
from pytest_ddpscale.thresholds.model import Requirement, Sku
from pytest_ddpscale.thresholds.site_file import site_example, site_row
from pytest_ddpscale.util.document import Column, Table, shortened, table, text_lines
from pytest_ddpscale.util.nearest import did_you_mean
from pytest_ddpscale.util.packaged import THRESHOLDS, packaged

WIDTH = 100
LONGEST_SUBJECT = 30
_SHORT_DIGEST = 12
_ABSENT = "–"
_PROVISIONAL = (
    "Provisional: no value is published for this SKU. The bound is an estimate and cannot accept a cluster alone."
)


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
        site: number of those whose value is the site's own.
        provisional: number of other requirements.
        checks: number of node checks.
    """

    name: str
    aliases: tuple[str, ...]
    description: str
    published: int
    site: int
    provisional: int
    checks: int


def listed_skus(file: ThresholdsFile) -> list[ListedSku]:
    """The SKUs of a file."""
    found: list[ListedSku] = []
    for name, sku in file.thresholds.skus.items():
        numbers = [one for one in sku.requirements if not one.check]
        provisional = sum(one.provisional for one in numbers)
        site = sum(one.source.is_site and not one.provisional for one in numbers)
        published, checks = len(numbers) - provisional - site, len(sku.requirements) - len(numbers)
        text = " ".join(sku.description.split())
        found.append(ListedSku(name, sku.aliases, text, published, site, provisional, checks))
    return found


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
    changes = next((one.bounds for one in all_changes(file) if one.sku == name), ())
    changed = {one.now.key(): one for one in changes if one.now is not None}
    rows = [AskedRow(one, changed.get(one.key())) for one in file.thresholds.skus[name].requirements]
    mine = [row for one in metrics for row in rows if row.requirement.metric == one]
    gone = tuple(one.was for one in changes if one.now is None and one.was and one.was.metric in metrics)
    return Asked(file, name, metrics, tuple(mine), gone)


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


def source_text(requirement: Requirement) -> str:
    """Its source, or why it is provisional, in one line."""
    source = requirement.source
    if requirement.check:
        return NODE_CHECKS[requirement.check].meaning
    told = (f"provisional: {source.reasoning}",) if requirement.provisional else (source.reference, source.reasoning)
    return " ".join("; ".join(part for part in (*told, requirement.one_gpu_text) if part).split())


def asked_json(asked: Asked) -> str:
    """One JSON object: units, files with their digests, workloads, requirements, and removed ones."""
    sku, requirements = asked.sku, [row.requirement for row in asked.rows]
    return _strict(
        {
            "sku": asked.name,
            "aliases": list(sku.aliases),
            "description": sku.description,
            **_files_json(asked.file),
            "metrics": list(asked.metrics),
            "units": {one.metric: sku.unit_of(one) for one in requirements},
            "workloads": {one.workload: sku.workloads[one.workload].settings for one in requirements if one.workload},
            "requirements": [_row_json(row, sku) for row in asked.rows],
            "removed": [_requirement_json(one, sku) for one in asked.removed],
        }
    )


def listed_json(file: ThresholdsFile) -> str:
    """One JSON object: files with their digests, and SKUs."""
    return _strict({**_files_json(file), "skus": [asdict(one) for one in listed_skus(file)]})


def _files_json(file: ThresholdsFile) -> dict[str, Any]:
    return {
        "thresholds": {"path": str(file.path), "sha256": file.sha256},
        "extends": [{"path": path, "sha256": sha256} for path, sha256 in file.extended],
    }


def _row_json(row: AskedRow, sku: Sku) -> dict[str, Any]:
    change = row.change
    return {
        **_requirement_json(row.requirement, sku),
        "changed": None if change is None else list(change.kinds),
        "weaker": None if change is None else change.is_weaker,
        "was": _requirement_json(change.was, sku) if change is not None and change.was is not None else None,
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
        "published": None if one.source.is_site else one.source.measured,
        "site_value": one.source.measured if one.source.is_site else None,
        "is_site": one.source.is_site,
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


def asked_lines(asked: Asked, verbose: bool = False) -> Iterator[str]:
    """Requirements of a SKU, grouped by metric; with `verbose` the full source of each row, and its line."""
    sku = asked.sku
    also = f" (also {', '.join(sku.aliases)})" if sku.aliases else ""
    yield from _wrapped(f"{asked.name}{also}: {sku.description}")
    yield from file_lines(asked.file)
    yield from _wrapped(_counts(asked))
    if not asked.rows:
        known = dict.fromkeys(one.metric for one in sku.requirements)
        yield from _wrapped(f"No requirement on {', '.join(asked.metrics)}. Metrics with one: {', '.join(known)}.")
        return
    for metric in asked.metrics:
        rows = asked.rows_of(metric)
        if rows:
            yield ""
            yield from _wrapped(_heading(metric, {sku.unit_of(row.requirement): None for row in rows}), "", "  ")
            yield from _table(rows, verbose)
    if asked.removed:
        yield ""
        yield "Not required here, but in the file that this one extends:"
        yield from (f"  {one}: {bound_text(one)}" for one in asked.removed)
    used = {row.requirement.workload: None for row in asked.rows if row.requirement.workload}
    if verbose:
        yield from ("", "Workloads:") if used else ()
        for name in used:
            yield from _wrapped(_workload_text(sku.workloads[name]), "  ", "    ")
    else:
        yield from ("", "-v adds the full source and the line of each row; see also --format=json.")
    yield from _ending(asked)


def listed_lines(file: ThresholdsFile) -> Iterator[str]:
    """The SKUs of a file, each in one line."""
    yield from file_lines(file)
    yield ""
    skus = listed_skus(file)
    has_own = any(one.site for one in skus)
    head = ("SKU", "also", "published", *["site's"] * has_own, "provisional", "checks")
    rows = [
        (one.name, ", ".join(one.aliases), str(one.published), *[str(one.site)] * has_own, str(one.provisional),
         str(one.checks), one.description)
        for one in skus
    ]  # fmt: skip
    yield from text_lines(_table_of(head, "description", rows), width=WIDTH)
    yield ""
    yield "Requirements of one: ddpscale thresholds show --gpu-sku NAME"


def counted_lines(file: ThresholdsFile) -> Iterator[str]:
    """Checks and requirements of the SKUs that the file itself names, or of all, and where their values are from."""
    own = file.layers[-1].form.skus or file.thresholds.skus
    head = ("SKU", "checks", "requirements", "published", "site's", "provisional")
    rows = [
        (one.name, *map(str, (one.checks, one.published + one.site + one.provisional, one.published, one.site,
                              one.provisional)))
        for one in listed_skus(file) if one.name in own
    ]  # fmt: skip
    yield from text_lines(table(head, rows, of_numbers=True))


def file_lines(file: ThresholdsFile) -> Iterator[str]:
    """The file and those that it extends, with short digests."""
    yield f"thresholds: {file.path} (sha256 {file.sha256[:_SHORT_DIGEST]}…)"
    yield from (f"  extending {path} (sha256 {digest[:_SHORT_DIGEST]}…)" for path, digest in file.extended)


def _counts(asked: Asked) -> str:
    numbers = [row.requirement for row in asked.rows if not row.requirement.check]
    provisional = sum(one.provisional for one in numbers)
    rejecting = sum(row.requirement.severity == "fail" for row in asked.rows)
    changed = sum(row.change is not None for row in asked.rows) + len(asked.removed)
    told = f"{len(numbers)} requirements, {provisional} of them provisional"
    if len(asked.rows) > len(numbers):
        told += f", and {len(asked.rows) - len(numbers)} node checks"
    told += f"; {rejecting} reject, {len(asked.rows) - rejecting} only warn"
    return f"{told}. This file changes {changed} (marked *)." if changed else f"{told}."


def _heading(metric: str, units: Iterable[str]) -> str:
    definition = METRICS[metric]
    unit = {"x": "factor"}.get(definition.unit, " or ".join(units))
    better = f" ({unit}, {'less' if definition.upper_bound else 'more'} is better)"
    return f"{metric}{'' if metric == NODE_CHECK.name else better}: {definition.meaning}"


def _table(rows: Sequence[AskedRow], verbose: bool) -> Iterator[str]:
    value = "value" if any(row.requirement.source.is_site for row in rows) else "published"
    of_checks = all(row.requirement.check for row in rows)
    head = (" ", "check", "") if of_checks else (" ", "of", "GPUs", value, "margin", "bound", "")
    told = [(*_cells(row), source_text(row.requirement).removeprefix("provisional: ")) for row in rows]
    shown = table(head, [cells[:-1] for cells in told]) if verbose else _table_of(head, "source", told)
    title, *lines = text_lines(shown, width=None if verbose else WIDTH)
    yield title
    for row, line, following in zip(rows, lines, [*rows[1:], None], strict=True):
        yield line
        # Rows with the same source and line have these printed once.
        is_last = following is None or row.change or following.change or _details(row) != _details(following)
        if verbose and is_last:
            yield f"      {row.requirement.where}"
        if row.change is not None:
            yield f"      was: {bound_text(row.change.was)}"
        if verbose and is_last:
            yield from _wrapped(source_text(row.requirement), "      ", "      ")


def _table_of(titles: Sequence[str], last: str, rows: Sequence[Sequence[str]]) -> Table:
    """A table whose last column may shrink."""
    return Table([*map(Column, titles), Column(last, may_shrink=True)], rows)


def _details(row: AskedRow) -> tuple[str, str]:
    return row.requirement.where, source_text(row.requirement)


def _cells(row: AskedRow) -> tuple[str, ...]:
    one, mark = row.requirement, "*" if row.change else " "
    if one.check:
        return mark, one.check, one.severity
    measured, site = one.source.measured, "site's " if one.source.is_site else ""
    value = f"{site}{measured:g}" if measured is not None else "provisional" if one.provisional else _ABSENT
    is_upper, margin = one.definition.upper_bound, one.source.margin_pct
    less = (
        f"{'+' if is_upper else '−'} {margin:g} %" if margin is not None else _ABSENT if measured is None else "stated"
    )
    sign = "≤" if is_upper else "≥"
    versus = f" vs {one.versus}" if one.versus else ""
    if one.one_gpu == "ddp":
        versus += ", ddp@1" if one.world_size == 1 else " vs ddp@1"
    subject = shortened(f"{one.subject or 'each node'}{versus}", LONGEST_SUBJECT)
    ranks = f"{one.world_size}{' spread' if one.placement == 'spread' else ''}"
    return mark, subject, ranks, value, less, f"{sign} {one.bound:g}", one.severity


def _workload_text(one: Workload) -> str:
    shared = f", {one.global_batch_size} in all for strong scaling" if one.global_batch_size else ""
    family = one.family
    what = ", ".join(filter(None, [family.trained, one.precision, family.form]))
    what += f", {one.batch_size} {family.samples} per GPU"
    return f"{one.name}: {what}{shared}"


def _ending(asked: Asked) -> Iterator[str]:
    numbers = [row.requirement for row in asked.rows if not row.requirement.check]
    if any(one.provisional for one in numbers):
        yield from _wrapped(_PROVISIONAL)
    # A site most likely replaces a row without a published value.
    numbers = [one for one in numbers if one.definition.only_bound is None and one.versus is None]
    example = next((one for one in numbers if one.provisional), numbers[0] if numbers else None)
    if example is None:
        return
    if asked.file.path == packaged(THRESHOLDS):
        yield f"To change one: ddpscale init --gpu-sku {asked.name} DIR, and in DIR/thresholds.yaml:"
        yield from (f"  {line}" for line in site_example(asked.name, example))
    else:
        yield f"To change one, write its row under `skus: {asked.name}: requirements:` of {asked.file.path}:"
        yield f"  - {site_row(example)}"
    yield "Then: ddpscale thresholds check FILE"


def _wrapped(text: str, first: str = "", further: str = "  ") -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=further, break_on_hyphens=False)
