"""Compiles thresholds as written into requirements: computes bounds and merges rows of several files.

A SKU's row replaces a family's row for the same metric, subject, world size, placement and reference, and a file's row
replaces that of the file it extends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from pytest_ddpscale.errors import ThresholdsError
from pytest_ddpscale.plan.layout import WorldSize
from pytest_ddpscale.plan.metric_catalogue import METRICS, NODE_CHECK
from pytest_ddpscale.plan.workload import Data, ImageFolderData, Workload
from pytest_ddpscale.thresholds.form import (
    MOST_REQUIREMENTS,
    BatchForm,
    Change,
    CheckRow,
    NamedMargin,
    Removal,
    Row,
    RowName,
    SkuForm,
    WaiverRow,
    WorkloadForm,
)
from pytest_ddpscale.thresholds.layer import Layer, YamlPath, shown
from pytest_ddpscale.thresholds.model import PeerLimits, Requirement, RequirementKey, Sku, Source, check_of_nodes
from pytest_ddpscale.thresholds.names import Names, Placed, Rows
from pytest_ddpscale.thresholds.peer_limits import PeersForm, limits_of, requirements_by_peers
from pytest_ddpscale.thresholds.validating import PartError, validated
from pytest_ddpscale.thresholds.waiver import Waiver, why_never_waived

_ROW_LISTS = ("requirements", "remove", "change", "waivers")
RUN_PREFIX = "run:"
_MERGED = ("detect", "peak", "peers", "node", "checks", "batch")
# Significant digits of computed bounds: 480.1 less 5 % is 456.095, not 456.09499999999997.
_DIGITS = 6
# More errors at once would not be read.
MOST_PROBLEMS = 100


def problems_of(names: Names) -> list[ThresholdsError]:
    """Problems of all entries that rows may name, whether or not a SKU uses them."""
    found: list[ThresholdsError] = []
    for kind, entries in names.entries.items():
        for name, entry in entries.items():
            try:
                names.checked(kind, entry)
                if kind == "families":
                    _family(name, names, entry)
            except PartError as error:
                found += error.problems
    return found


def compiled_sku(name: str, layers: Sequence[Layer], names: Names) -> Sku:
    """Compile a SKU from all files.

    Args:
        name: its name, present in at least one of the files.
        layers: the files, the nearest last.
        names: the entries that rows may name.

    Raises:
        PartError: it is not valid.
    """
    at = ("skus", name)
    odd = [error for layer in layers for path, error in layer.odd if path[:2] == at]
    if odd:
        raise PartError(*odd)
    read = [(layer, layer.section("skus")) for layer in layers]
    sections = [Placed(layer, at, skus[name]) for layer, skus in read if name in skus]
    for section in sections:
        if not isinstance(section.data, dict):
            raise section.wrong("it is not a mapping; expected the keys of a SKU")
    form = _form(sections)
    _check_sources(form, names, sections)
    rows = [one for found in _rows_of(form, sections, names).values() for one in found]
    return Sku(
        form.description,
        form.detect,
        tuple(form.aliases),
        form.peak,
        form.node,
        {one: _workload(one, batch, names, _part(sections, "batch", one)) for one, batch in form.batch.items()},
        form.beyond_node,
        (*rows, *_by_peers(form, rows, sections, layers)),
        _limits(form, layers),
    )


def _limits(form: SkuForm, layers: Sequence[Layer]) -> PeerLimits:
    """The limits of `peers` of the files and of the SKU, which comes first."""
    forms: list[PeersForm] = [
        Placed(layer, ("peers",), layer.data["peers"]).checked(PeersForm) for layer in layers if "peers" in layer.data
    ]
    return limits_of([*forms, *([form.peers] if form.peers is not None else [])])


def _by_peers(
    form: SkuForm, rows: Sequence[Requirement], sections: Sequence[Placed], layers: Sequence[Layer]
) -> list[Requirement]:
    """The requirements that follow from `peers` of the files and of the SKU, which comes first."""
    parts = [Placed(layer, ("peers",), layer.data["peers"]) for layer in layers if "peers" in layer.data]
    where: dict[str, str] = {}
    for name in PeersForm.model_fields:
        layer = next((part.layer for part in reversed(parts) if part.layer.has(("peers", name))), layers[-1])
        where[name] = layer.where(("peers", name))
        if any(one.layer.has((*one.at, "peers", name)) for one in sections):
            where[name] = _where(sections, (*sections[-1].at, "peers", name))
    return list(requirements_by_peers(_limits(form, layers), rows, where))


def _form(sections: Sequence[Placed]) -> SkuForm:
    """A SKU without its rows; some mappings are merged from all files, all else comes from the nearest file."""
    merged: dict[str, Any] = {}
    for section in sections:
        for key, value in section.data.items():
            below = merged.get(key)
            if key in _MERGED and isinstance(value, dict) and isinstance(below, dict):
                merged[key] = {**below, **(_with_batches(below, value) if key == "batch" else value)}
            else:
                merged[key] = value
    alone = {key: value for key, value in merged.items() if key not in _ROW_LISTS}
    nearest = sections[-1]
    found: SkuForm = validated(SkuForm, alone, nearest.at, lambda at: _where(sections, at), nearest.layer.path)
    return found


def _with_batches(below: Mapping[str, Any], batches: Mapping[str, Any]) -> dict[str, Any]:
    """Batches of a nearer file; one with only `per_gpu` keeps the `global` of the file below."""
    found = dict(batches)
    for name, batch in batches.items():
        if isinstance(batch, dict) and isinstance(below.get(name), dict):
            found[name] = {**below[name], **batch}
    return found


def _where(sections: Sequence[Placed], at: YamlPath) -> str:
    """``file:line`` of an entry in the nearest file that has it, or has the longest part of its path."""
    for end in range(len(at), 0, -1):
        for section in reversed(sections):
            if section.layer.has(at[:end]):
                return section.layer.where(at[:end])
    return sections[-1].layer.where(at)


def _part(sections: Sequence[Placed], *below: str | int) -> Placed:
    """A part of a SKU in the nearest file that has it."""
    having = [one for one in sections if one.layer.has((*one.at, *below))]
    return Placed(having[-1].layer, (*having[-1].at, *below), None) if having else sections[-1]


def _check_sources(form: SkuForm, names: Names, sections: Sequence[Placed]) -> None:
    for key, part in (("peak", form.peak), ("node", form.node)):
        if part is not None and part.published is not None:
            names.get("sources", part.published, _part(sections, key, "published"))


def _workload(name: str, batch: int | BatchForm, names: Names, placed: Placed) -> Workload:
    form: WorkloadForm = names.get("workloads", name, placed)
    size = BatchForm.model_validate({"per_gpu": batch}) if isinstance(batch, int) else batch
    data: Data = "synthetic" if form.data == "synthetic" else ImageFolderData(**form.data.model_dump())
    return Workload(name, form.family, form.precision, size.per_gpu, size.in_all, form.compile, data=data)


def _rows_of(form: SkuForm, sections: Sequence[Placed], names: Names) -> Rows:
    """All requirements of a SKU: checks first, then its own rows, then rows of families that it does not replace."""
    shared = _shared_rows(form, sections, names)
    rows = _own_rows(form, sections[0], names)
    rows |= {key: found for key, found in shared.items() if key not in rows}
    rows = _edited(rows, sections[0])
    for section in sections[1:]:
        rows |= _own_rows(form, section, names)
        rows = _edited(rows, section)
    if sum(map(len, rows.values())) > MOST_REQUIREMENTS:
        raise sections[-1].wrong(f"it has more than {MOST_REQUIREMENTS} requirements")
    return dict(sorted(rows.items(), key=lambda row: row[0][0] != NODE_CHECK.name))


def _own_rows(form: SkuForm, section: Placed, names: Names) -> Rows:
    """The section's own requirements: its `checks` and `requirements`."""
    rows = _expanded(_entries(section, "requirements"), names)
    checks, said = {}, section.data.get("checks")
    for name in said if isinstance(said, dict) else ():
        placed = Placed(section.layer, (*section.at, "checks", name), name)
        check = check_of_nodes(name, form.checks[name], section.layer.where(placed.at))
        if check.key() in rows:
            raise placed.wrong(f"{name} also has a row under `requirements`; expected one of them")
        checks[check.key()] = [check]
    return checks | rows


def _shared_rows(form: SkuForm, sections: Sequence[Placed], names: Names) -> Rows:
    """The rows of its families."""
    found: Rows = {}
    for i, name in enumerate(form.families):
        by = _part(sections, "families", i)
        for key, rows in _family(name, names, by).items():
            if key in found:
                raise by.wrong(f"{rows[0]} is required by two of the SKU's families")
            found[key] = rows
    return found


def _entries(section: Placed, key: str) -> list[Placed]:
    """The items of a list of a SKU."""
    found = section.data.get(key, [])
    if not isinstance(found, list):
        raise Placed(section.layer, (*section.at, key), found).wrong(f"it is {shown(found)}; expected a list")
    if len(found) > MOST_REQUIREMENTS:
        raise Placed(section.layer, (*section.at, key), found).wrong(f"more than {MOST_REQUIREMENTS} items")
    return [Placed(section.layer, (*section.at, key, i), one) for i, one in enumerate(found)]


def _family(name: str, names: Names, by: Placed) -> Rows:
    """The rows of a family, compiled once for all SKUs."""
    if name not in names.expanded:
        rows, entry = names.get("families", name, by), names.entries["families"][name]
        placed = [Placed(entry.layer, (*entry.at, i), one) for i, one in enumerate(rows)]
        names.expanded[name] = _expanded(placed, names)
    return names.expanded[name]


def _expanded(rows: Iterable[Placed], names: Names) -> Rows:
    """The requirements of rows, one per metric, subject and world size. Raises PartError."""
    found: Rows = {}
    problems: list[ThresholdsError] = []
    for placed in rows:
        try:
            if len(found) > MOST_REQUIREMENTS:
                raise placed.wrong(f"these are more than {MOST_REQUIREMENTS} requirements")
            for one in _requirements(placed, names):
                twins = found.setdefault(one.key(), [])
                if any(twin.severity == one.severity for twin in twins):
                    raise placed.wrong(f"{one} is required twice: {twins[0].bound:g} and {one.bound:g}")
                twins.append(one)
        except PartError as error:
            problems += error.problems
        if len(problems) > MOST_PROBLEMS:
            break
    if problems:
        raise PartError(*problems)
    return found


def _requirements(placed: Placed, names: Names) -> list[Requirement]:
    where = placed.layer.where(placed.at)
    if isinstance(placed.data, dict) and "check" in placed.data:
        checks: CheckRow = placed.checked(CheckRow)
        return [check_of_nodes(name, severity, where) for name, severity in checks.severities.items()]
    row: Row = placed.checked(Row)
    if sum(map(len, row.metrics.values())) * len(row.subjects) > MOST_REQUIREMENTS:
        raise placed.wrong(f"it is more than {MOST_REQUIREMENTS} requirements")
    try:
        return [
            _requirement(row, value, _source(row, value, placed, names), placed)
            for metric, by_size in row.metrics.items()
            for size, told in by_size.items()
            for value in _values(row, metric, size, told)
        ]
    except ValueError as error:
        raise placed.wrong(str(error)) from None


@dataclass(frozen=True)
class _Value:
    """One number of a row."""

    metric: str
    subject: str
    world_size: WorldSize
    number: float


def _values(row: Row, metric: str, size: WorldSize, told: float | Mapping[str, float]) -> list[_Value]:
    if not isinstance(told, Mapping):
        return [_Value(metric, subject, size, told) for subject in row.subjects]
    if row.subjects != [""] or row.bound is not None:
        raise ValueError(f"{metric} has a value for each name; expected no `of`, `probe` or `bound` in the row")
    return [_Value(metric, subject, size, number) for subject, number in told.items()]


def _requirement(row: Row, value: _Value, source: Source, placed: Placed) -> Requirement:
    versus, versus_run = _reference(row, placed)
    definition = METRICS[value.metric]
    kind = "workload" if row.of else "probe" if row.probe else definition.subject
    times_one_gpu = definition.times_one_gpu(is_of_one=value.world_size == 1)
    return Requirement(
        value.metric,
        _bound(row, value, source),
        source,
        workload=value.subject if kind == "workload" else "",
        probe=value.subject if kind == "probe" else "",
        world_size=value.world_size,
        placement=row.placement,
        versus=versus,
        severity=row.severity or ("warn" if row.provisional else "fail"),
        provisional=row.provisional is not None,
        where=placed.layer.where(placed.at),
        versus_run=versus_run,
        one_gpu=row.baseline if times_one_gpu else "alone",
        sound=row.sound_at(value.world_size, value.subject),
    )


def _reference(row: Row, placed: Placed) -> tuple[str | None, str]:
    """The name of a ratio's reference, and its path if it is a run."""
    if row.versus is None or not row.versus.startswith(RUN_PREFIX):
        return row.versus, ""
    path = (placed.layer.path.parent / row.versus.removeprefix(RUN_PREFIX)).resolve()
    return f"run-{path.name}", str(path)


def _source(row: Row, value: _Value, placed: Placed, names: Names) -> Source:
    because = None if row.because is None else names.reason(row.because, placed)
    if row.published is None:
        return Source(reasoning=names.reason(row.provisional, placed) if row.provisional else because)
    reference = names.get("sources", row.published, placed)
    if row.bound is not None:
        return Source(value.number, None, reference, because)
    if row.margin_pct is not None:
        return Source(value.number, row.margin_pct, reference, because)
    name = row.margin or value.metric
    margin: NamedMargin | float | None = names.margin(name, placed) if row.margin else names.metric_margin(name)
    if isinstance(margin, NamedMargin):
        because, margin = because or margin.because, margin.metrics.get(value.metric)
    if margin is None:
        expected = f"`margin: 5 %` here, `{value.metric}: 5 %` under `margins`, or a `bound`"
        raise ValueError(f"there is no margin for {value.metric}; expected {expected}")
    return Source(value.number, margin, reference, because)


def _bound(row: Row, value: _Value, source: Source) -> float:
    """The stated bound, the bound given by the margin, or the value itself."""
    stated = row.bound_at(value.world_size)
    if stated is not None:
        return stated
    if source.measured is None or source.margin_pct is None:
        return value.number
    sign = 1 if METRICS[value.metric].upper_bound else -1
    return float(f"{source.measured * (1 + sign * source.margin_pct / 100):.{_DIGITS}g}")


def _edited(rows: Rows, section: Placed) -> Rows:
    """Apply a section's `remove`, `change` and `waivers` to rows."""
    for placed in _entries(section, "remove"):
        gone = _meant(placed.checked(Removal), rows, placed)
        rows = {key: found for key, found in rows.items() if key not in gone}
    for placed in _entries(section, "change"):
        change: Change = placed.checked(Change)
        for key in _meant(change, rows, placed):
            rows[key] = [replace(rows[key][0], severity=change.severity, where=placed.layer.where(placed.at))]
    return _with_waivers(rows, section)


def _with_waivers(rows: Rows, section: Placed) -> Rows:
    """Apply a section's waivers, which replace those of files below for the same rows."""
    waived: set[RequirementKey] = set()
    for placed in _entries(section, "waivers"):
        row: WaiverRow = placed.checked(WaiverRow)
        for key in _meant(row, rows, placed):
            if key in waived:
                raise placed.wrong(f"{rows[key][0]} is waived twice")
            waived.add(key)
            rows[key] = _waived(rows[key], Waiver(row.who, row.why, row.until), placed)
    return rows


def _waived(twins: Sequence[Requirement], waiver: Waiver, placed: Placed) -> list[Requirement]:
    """Add a waiver to those of the requirements that can reject. Raises PartError if none can be waived."""
    reasons = [why_never_waived(one) for one in twins]
    if all(reasons):
        raise placed.wrong(f"{twins[0]} cannot be waived: {reasons[0]}")
    return [one if why else replace(one, waiver=waiver) for one, why in zip(twins, reasons, strict=True)]


def _meant(name: RowName, rows: Rows, placed: Placed) -> list[RequirementKey]:
    """Keys of the rows that a name selects.

    Raises:
        PartError: it selects none.
    """
    alike = _alike(name, rows)
    missing = [size for size in name.world_sizes if size not in [key[2] for key in alike]]
    if missing or not alike:
        there = ", ".join(str(key[2]) for key in alike)
        expected = (
            f"at world size {there}" if there else f"one of {', '.join(sorted({f'{k[0]} of {k[1]}' for k in rows}))}"
        )
        at = f" at world size {missing[0]}" if missing else ""
        of = name.of or name.probe or name.check or "nodes"
        raise placed.wrong(f"there is no {name.metric} of {of}{at} to change; expected {expected}")
    return [key for key in alike if not name.world_sizes or key[2] in name.world_sizes]


def _alike(name: RowName, keys: Iterable[RequirementKey]) -> list[RequirementKey]:
    """Those that a name selects, at any world size."""
    wanted = (name.metric, name.of or name.probe or name.check, name.placement, name.versus)
    return [key for key in keys if (key[0], key[1], key[3], key[4]) == wanted]


def is_selected(one: Requirement, layer: Layer, sku: str, entries: Literal["change", "waivers"]) -> bool:
    """Whether a valid SKU's `change` or `waivers` in one file select a requirement."""
    form = Change if entries == "change" else WaiverRow
    section = Placed(layer, ("skus", sku), layer.section("skus").get(sku, {}))
    names: list[RowName] = [placed.checked(form) for placed in _entries(section, entries)]
    alike = [name for name in names if _alike(name, [one.key()])]
    return any(not name.world_sizes or one.world_size in name.world_sizes for name in alike)
