"""Compiles a SKU as written into requirements: merges files, computes bounds, applies changes.

A SKU's row replaces a family's row for the same metric, subject, world size, placement and reference, and a file's row
replaces that of the file it extends. A file's `change` applies to what is then there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from pytest_ddpscale.errors import ThresholdsError
from pytest_ddpscale.plan.layout import WorldSize
from pytest_ddpscale.plan.metric_catalogue import METRICS, NODE_CHECK
from pytest_ddpscale.plan.workload import Data, ImageFolderData, Workload
from pytest_ddpscale.thresholds.form import (
    MOST_REQUIREMENTS,
    Change,
    CheckRow,
    NamedMargin,
    Row,
    SkuForm,
    at_size,
)
from pytest_ddpscale.thresholds.model import (
    Requirement,
    RequirementKey,
    Sku,
    Source,
    check_of_nodes,
    why_it_stands,
    why_never_waived,
)
from pytest_ddpscale.thresholds.parts import BatchForm, WorkloadForm
from pytest_ddpscale.thresholds.peer_limits import PeersForm, limits_of, requirements_by_peers
from pytest_ddpscale.thresholds.reading import Layer, Mark, MarkedList, MarkedMapping, placed, shown
from pytest_ddpscale.thresholds.validating import MOST_PROBLEMS, Names, PartError, validated
from pytest_ddpscale.thresholds.waiver import LONGEST_DAYS, Waiver, today
from pytest_ddpscale.util.packaged import THRESHOLDS, packaged

Rows: TypeAlias = dict[RequirementKey, Requirement]
_MERGED = ("detect", "peak", "peers", "node", "batch", "environment")
# Significant digits of computed bounds: 480.1 less 5 % is 456.095, not 456.09499999999997.
_DIGITS = 6
MOST_MARGIN_PCT = 50.0  # beyond it a row has to say why


class Compiler:
    """Compiles the SKUs of some files.

    Args:
        layers: the files, the nearest last.
    """

    def __init__(self, layers: Sequence[Layer]) -> None:
        self._layers = layers
        self._names = Names(layers)
        self._families: dict[str, Rows | PartError] = {}
        shipped = packaged(THRESHOLDS)
        self._sites = {layer.path for layer in layers if not layer.path.samefile(shipped)}
        self._peers = [(one.data["peers"], one.data.marks["peers"]) for one in layers if "peers" in one.data]

    def problems(self) -> list[ThresholdsError]:
        """Problems of all entries that rows may name, whether or not a SKU uses them."""
        found: list[ThresholdsError] = []
        for kind in Names.FORMS:
            for name in self._names.all_of(kind):
                try:
                    self._family(name) if kind == "families" else self._names.checked(kind, name)
                except PartError as error:
                    found += error.problems
        return found

    def sku(self, name: str) -> Sku:
        """A SKU that at least one of the files has. Raises PartError if it is not valid."""
        odd = [error for layer in self._layers for at, error in layer.odd if at[:2] == ("skus", name)]
        if odd:
            raise PartError(*odd)
        read = [layer.section("skus") for layer in self._layers]
        sections = [(skus[name], skus.marks[name]) for skus in read if name in skus]
        for section, mark in sections:
            if not isinstance(section, MarkedMapping):
                raise PartError(mark.error("it is not a mapping; expected the keys of a SKU"))
        data, mark = _merged(sections), sections[-1][1]
        form: SkuForm = validated(SkuForm, data, mark)
        for key in ("peak", "node"):
            part = getattr(form, key)
            if part is not None and part.published is not None:
                self._names.get("sources", part.published, placed(data, (key, "published"), mark))
        rows = tuple(self._rows(form, data, sections).values())
        batches = {
            one: self._workload(one, batch, placed(data, ("batch", one), mark)) for one, batch in form.batch.items()
        }
        forms = [validated(PeersForm, *part) for part in self._peers]
        limits = limits_of([*forms, *([form.peers] if form.peers is not None else [])])
        by_peers = requirements_by_peers(limits, rows, self._peer_lines(data, mark))
        return Sku(
            form.description, form.detect, tuple(form.aliases), form.peak, form.node, batches, form.beyond_node,
            (*rows, *by_peers), limits, tuple(form.environment.items()),
        )  # fmt: skip

    def _peer_lines(self, data: MarkedMapping, mark: Mark) -> dict[str, str]:
        """``file:line`` of each limit of `peers`, of the SKU or of the nearest file that has it."""
        parts = [*self._peers, *([(data["peers"], data.marks["peers"])] if "peers" in data else [])]
        having = {name: part for part, _ in parts if isinstance(part, MarkedMapping) for name in part}
        lines = {name: part.marks[name].where for name, part in having.items()}
        return {name: lines.get(name, mark.where) for name in PeersForm.model_fields}

    def _workload(self, name: str, batch: int | BatchForm, by: Mark) -> Workload:
        form: WorkloadForm = self._names.get("workloads", name, by)
        size = BatchForm.model_validate({"per_gpu": batch}) if isinstance(batch, int) else batch
        data: Data = "synthetic" if form.data == "synthetic" else ImageFolderData(**form.data.model_dump())
        return Workload(name, form.family, form.precision, size.per_gpu, size.in_all, form.compile, data=data)

    def _rows(self, form: SkuForm, data: MarkedMapping, sections: Sequence[tuple[Any, Mark]]) -> Rows:
        """All requirements: checks first, then the SKU's own rows, then rows of families that it does not replace."""
        rows: Rows = {}
        for i, name in enumerate(form.families):
            by = placed(data, ("families", i), sections[-1][1])
            for key, one in self._family(name, by).items():
                if key in rows:
                    raise PartError(by.error(f"{one} is required by two of the SKU's families"))
                rows[key] = one
            if len(rows) > MOST_REQUIREMENTS:
                raise PartError(by.error(f"these are more than {MOST_REQUIREMENTS} requirements"))
        requirements = list(zip(form.requirements, _marks(data, "requirements"), strict=True))
        changes = list(zip(form.change, _marks(data, "change"), strict=True))
        for i, (_, mark) in enumerate(sections):
            own = self._expanded(_of_file(requirements, mark))
            # A family's rows come last; a file's rows take the places of those below.
            rows = {**rows, **own} if i else {**own, **{key: one for key, one in rows.items() if key not in own}}
            rows = _changed(rows, _of_file(changes, mark))
        if len(rows) > MOST_REQUIREMENTS:
            raise PartError(sections[-1][1].error(f"it has more than {MOST_REQUIREMENTS} requirements"))
        return dict(sorted(rows.items(), key=lambda row: row[0][0] != NODE_CHECK.name))

    def _family(self, name: str, by: Mark | None = None) -> Rows:
        """The rows of a family, compiled once for all SKUs. Raises PartError."""
        if name not in self._families:
            forms = self._names.get("families", name, by) if by else self._names.checked("families", name)
            try:
                marks = self._names.all_of("families")[name][0].marks
                self._families[name] = self._expanded(zip(forms, marks, strict=True))
            except PartError as error:
                self._families[name] = error
        found = self._families[name]
        if isinstance(found, PartError):
            raise found
        return found

    def _expanded(self, rows: Iterable[tuple[CheckRow | Row, Mark]]) -> Rows:
        """The requirements of rows, one per metric, subject and world size. Raises PartError."""
        found: Rows = {}
        problems: list[ThresholdsError] = []
        for row, mark in rows:
            try:
                requirements = self._requirements(row, mark)
            except PartError as error:
                problems += error.problems
                requirements = []
            for one in requirements:
                twin = found.setdefault(one.key(), one)
                if twin is not one:
                    problems.append(mark.error(f"{one} is required twice: {twin.bound:g} and {one.bound:g}"))
            if len(found) > MOST_REQUIREMENTS:
                problems.append(mark.error(f"these are more than {MOST_REQUIREMENTS} requirements"))
            if len(found) > MOST_REQUIREMENTS or len(problems) > MOST_PROBLEMS:
                break
        if problems:
            raise PartError(*problems)
        return found

    def _requirements(self, row: CheckRow | Row, mark: Mark) -> list[Requirement]:
        if isinstance(row, CheckRow):
            return [check_of_nodes(name, severity, mark.where) for name, severity in row.severities.items()]
        if sum(map(len, row.metrics.values())) * len(row.subjects) > MOST_REQUIREMENTS:
            raise PartError(mark.error(f"it is more than {MOST_REQUIREMENTS} requirements"))
        try:
            return [
                self._requirement(row, value, mark)
                for metric, by_size in row.metrics.items()
                for size, told in by_size.items()
                for value in _values(row, metric, size, told)
            ]
        except ValueError as error:
            raise PartError(mark.error(str(error))) from None

    def _requirement(self, row: Row, value: _Value, mark: Mark) -> Requirement:
        source = self._source(row, value, mark)
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
            versus=row.versus,
            severity=row.severity or ("warn" if row.provisional else "fail"),
            provisional=row.provisional is not None,
            where=mark.where,
            one_gpu=row.baseline if times_one_gpu else "alone",
            sound=row.sound_at(value.world_size, value.subject),
        )

    def _source(self, row: Row, value: _Value, mark: Mark) -> Source:
        names, is_site = self._names, mark.path in self._sites
        because = None if row.because is None else names.reason(row.because, mark)
        if row.published is None:
            reasoning = names.reason(row.provisional, mark) if row.provisional else because
            return Source(reasoning=reasoning, is_site=is_site)
        reference = names.get("sources", row.published, mark)
        if row.bound is not None:
            return Source(value.number, None, reference, because, is_site)
        margin = row.margin_pct
        if margin is None:
            told = names.get("margins", row.margin, mark) if row.margin else names.metric_margin(value.metric)
            margin = told
            if isinstance(told, NamedMargin):
                because, margin = because or told.because, told.metrics.get(value.metric)
        if margin is None:
            expected = f"`margin: 5 %` here, `{value.metric}: 5 %` under `margins`, or a `bound`"
            raise ValueError(f"there is no margin for {value.metric}; expected {expected}")
        if margin > MOST_MARGIN_PCT and because is None:
            raise ValueError(f"a margin of {margin:g} %, above {MOST_MARGIN_PCT:g} %, needs `because: 'why so wide'`")
        return Source(value.number, margin, reference, because, is_site)


def _merged(sections: Sequence[tuple[MarkedMapping, Mark]]) -> MarkedMapping:
    """A SKU of all files: some mappings are merged, row lists joined; all else comes from the nearest file."""
    merged = MarkedMapping()
    for section, _ in sections:
        for key, value in section.items():
            mark, below = section.marks[key], merged.get(key)
            if key in ("requirements", "change"):
                if not isinstance(value, MarkedList):
                    raise PartError(mark.error(f"it is {shown(value)}; expected a list"))
                below = MarkedList() if below is None else below
                value = MarkedList([*below, *value], [*below.marks, *value.marks])
            elif key in _MERGED and isinstance(value, MarkedMapping) and isinstance(below, MarkedMapping):
                value = _overlaid(below, value, is_batch=key == "batch")
            merged.put(key, value, mark)
    return merged


def _overlaid(below: MarkedMapping, above: MarkedMapping, *, is_batch: bool) -> MarkedMapping:
    """One mapping over another; a batch with only `per_gpu` keeps the `global` of the file below."""
    found = MarkedMapping(below, below.marks)
    for key, value in above.items():
        if is_batch and isinstance(value, MarkedMapping) and isinstance(below.get(key), MarkedMapping):
            value = _overlaid(below[key], value, is_batch=False)
        found.put(key, value, above.marks[key])
    return found


def _marks(data: MarkedMapping, key: str) -> list[Mark]:
    return data[key].marks if key in data else []


def _of_file(rows: Sequence[tuple[Any, Mark]], mark: Mark) -> list[tuple[Any, Mark]]:
    """Those of the rows that stand in the file of a mark."""
    return [(row, at) for row, at in rows if at.path == mark.path]


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


def _bound(row: Row, value: _Value, source: Source) -> float:
    """The stated bound, the bound given by the margin, or the value itself."""
    stated = row.bound_at(value.world_size)
    if stated is not None:
        return stated
    if source.measured is None or source.margin_pct is None:
        return value.number
    sign = 1 if METRICS[value.metric].upper_bound else -1
    return float(f"{source.measured * (1 + sign * source.margin_pct / 100):.{_DIGITS}g}")


def _changed(rows: Rows, changes: Sequence[tuple[Change, Mark]]) -> Rows:
    """Apply a file's `change`: lasting changes first, then waivers, which replace those of files below."""
    rows = dict(rows)
    for is_waiver in (False, True):
        done: set[RequirementKey] = set()
        for change, mark in changes:
            if (change.until is not None) != is_waiver:
                continue
            for key in _selected(change, rows, mark):
                if key in done:
                    raise PartError(mark.error(f"{rows[key]} is {'waived' if is_waiver else 'changed'} twice"))
                done.add(key)
                try:
                    now = _waived(rows[key], change) if is_waiver else _lastingly(rows[key], change, mark)
                except ValueError as error:
                    raise PartError(mark.error(str(error))) from None
                if now is None:
                    del rows[key]
                else:
                    rows[key] = now
    return rows


def _waived(one: Requirement, change: Change) -> Requirement:
    """A requirement with a waiver. Raises ValueError if it can have none."""
    assert change.until is not None
    why = why_never_waived(one)
    if why:
        raise ValueError(f"{one} cannot be waived: {why}")
    if (change.until - today()).days > LONGEST_DAYS:
        raise ValueError(f"`until: {change.until}` is more than {LONGEST_DAYS} days away; expected an earlier day")
    return replace(one, waiver=Waiver(change.who, change.why, change.until))


def _lastingly(one: Requirement, change: Change, mark: Mark) -> Requirement | None:
    """A requirement with another severity or bound, or none. Raises ValueError if it has to stand as it is."""
    why = why_it_stands(one)
    if why and change.severity in ("off", "warn"):
        what = "turned off" if change.severity == "off" else "made to warn only"
        raise ValueError(f"{one} cannot be {what}: {why}")
    if change.severity == "off":
        return None
    severity = change.severity or one.severity
    now = replace(one, severity=severity, where=mark.where)
    bound = at_size(change.bound, one.world_size)
    if bound is None:
        return now
    source = replace(one.source, margin_pct=None, reasoning=f"{change.why} ({change.who})", is_site=True)
    # What a sound machine was thought to reach says nothing against a site that asks for more.
    is_beyond = one.sound is not None and (bound < one.sound if one.definition.upper_bound else bound > one.sound)
    return replace(now, bound=bound, source=source, sound=None if is_beyond else one.sound)


def _selected(change: Change, rows: Rows, mark: Mark) -> list[RequirementKey]:
    """Keys of the rows that a change names. Raises PartError if one is not there."""
    alike = _alike(change, rows)
    missing = [size for size in change.world_sizes if size not in [key[2] for key in alike]]
    if missing or not alike:
        there = ", ".join(str(key[2]) for key in alike)
        others = ", ".join(sorted({f"{key[0]} of {key[1]}" for key in rows}))
        expected = f"at world size {there}" if there else f"one of {others}"
        at = f" at world size {missing[0]}" if missing else ""
        of = change.of or change.probe or change.check or "nodes"
        raise PartError(mark.error(f"there is no {change.metric} of {of}{at} to change; expected {expected}"))
    return [key for key in alike if not change.world_sizes or key[2] in change.world_sizes]


def _alike(change: Change, keys: Iterable[RequirementKey]) -> list[RequirementKey]:
    """Those that a change names, at any world size."""
    wanted = (change.metric, change.of or change.probe or change.check, change.placement, change.versus)
    return [key for key in keys if (key[0], key[1], key[3], key[4]) == wanted]


def is_changed(one: Requirement, layer: Layer, sku: str, *, waived: bool) -> bool:
    """Whether a valid SKU's `change` in one file waives a requirement, or changes it lastingly."""
    told = layer.section("skus").get(sku, {}).get("change", [])
    changes = [validated(Change, *placed_one) for placed_one in zip(told, getattr(told, "marks", ()), strict=True)]
    alike = [change for change in changes if (change.until is not None) == waived and _alike(change, [one.key()])]
    return any(not change.world_sizes or one.world_size in change.world_sizes for change in alike)
