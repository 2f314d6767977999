"""Compiles SKUs as written into requirements: merges files, computes bounds, applies changes.

A SKU's row replaces a family's row for the same metric, subject, world size, placement and reference, and a file's row
replaces that of the file it extends. A file's `change` applies to what is then there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import date
from functools import reduce
from typing import Any, TypeAlias

from pydantic import BaseModel

from pytest_ddpscale.errors import ThresholdsError
from pytest_ddpscale.plan.layout import WorldSize
from pytest_ddpscale.plan.metric_catalogue import (
    METRICS,
    NODE_CHECK,
    NODE_UNIFORMITY,
    PROBE_UNIFORMITY,
    RANK_UNIFORMITY,
)
from pytest_ddpscale.plan.operation import KINDS, operation
from pytest_ddpscale.plan.workload import Data, ImageFolderData, Workload
from pytest_ddpscale.thresholds.form import (
    MOST_REQUIREMENTS,
    ROW_METRICS,
    Change,
    CheckRow,
    NamedMargin,
    Row,
    SkuForm,
    at,
)
from pytest_ddpscale.thresholds.model import (
    PeerLimits,
    Requirement,
    RequirementKey,
    Sku,
    Source,
    check_of_nodes,
    why_it_stands,
    why_never_waived,
)
from pytest_ddpscale.thresholds.reading import Mark, dotted
from pytest_ddpscale.thresholds.validating import MOST_PROBLEMS, Layer, nearest_place
from pytest_ddpscale.thresholds.waiver import LONGEST_DAYS, Waiver, today
from pytest_ddpscale.util.nearest import did_you_mean

Rows: TypeAlias = dict[RequirementKey, Requirement]
# Significant digits of computed bounds: 480.1 less 5 % is 456.095, not 456.09499999999997.
_DIGITS = 6
MOST_MARGIN_PCT = 50.0  # beyond it a row has to say why
_REASON = "by its peers, no published value: more than {:g} % slower than the median of all others is rejected"
_BY_PEERS = (RANK_UNIFORMITY.name, NODE_UNIFORMITY.name, PROBE_UNIFORMITY.name)
_NAMED = ("sources", "reasons", "margins", "workloads", "families")


class Compiler:
    """Compiles the SKUs of some files.

    Args:
        layers: the files, the nearest last.
        least_day: waivers that end before are refused.

    Attributes:
        problems: errors found so far.
    """

    def __init__(self, layers: Sequence[Layer], least_day: date) -> None:
        self.problems: list[ThresholdsError] = []
        self._layers, self._least_day = layers, least_day
        self._sites = {layer.path for layer in layers if not layer.is_packaged}
        # Entries that rows name, each of the nearest file that has it.
        self._named: dict[str, dict[str, Any]] = {
            section: {name: one for layer in layers for name, one in getattr(layer.form, section).items()}
            for section in _NAMED
        }
        for name, margin in self._named["margins"].items():
            with self._collecting(nearest_place(layers, "margins", name)):
                if name in ROW_METRICS and isinstance(margin, NamedMargin):
                    raise ValueError("it is a mapping; expected per cent, such as `5 %`")
                if name not in ROW_METRICS and (near := did_you_mean(name, ROW_METRICS, 0.8)):
                    raise ValueError(f"{name!r} is no metric{near} Correct it, or choose another name")
        self._families = {
            name: self._expanded(rows, layers, "families", name) for name, rows in self._named["families"].items()
        }

    def sku(self, name: str) -> Sku | None:
        """A SKU that at least one of the files has; None if something is wrong with it."""
        known, layers = len(self.problems), [layer for layer in self._layers if name in layer.form.skus]
        form: SkuForm = reduce(_over, [layer.form.skus[name] for layer in layers])
        nearest = layers[-1].document.place("skus", name)
        for key in ("description", "detect"):
            if not getattr(form, key):
                self.problems.append(nearest.refusal(f"{dotted(nearest.at)}.{key} is missing", "a value", "Add it."))
        with self._collecting(self._place(name, "detect")):
            if form.detect and form.detect.device == "cuda" and form.detect.name is None:
                raise ValueError("a GPU needs `name: '^…$'`")
        for key in ("peak", "node"):
            published = getattr(getattr(form, key), "published", None)
            if published is not None:
                with self._collecting(self._place(name, key, "published")):
                    self._get("sources", published)
        workloads: dict[str, Workload] = {}
        for workload, batch in form.batch.items():
            with self._collecting(self._place(name, "batch", workload)):
                fields = self._get("workloads", workload)
                per_gpu, in_all = (batch, None) if isinstance(batch, int) else (batch.per_gpu, batch.in_all)
                data: Data = fields.data if fields.data == "synthetic" else ImageFolderData(**fields.data.model_dump())
                workloads[workload] = Workload(
                    workload, fields.family, fields.precision, per_gpu, in_all, fields.compile, data=data
                )
        limits = PeerLimits(**reduce(_over, [*(layer.form.peers for layer in self._layers), form.peers]))
        rows = self._rows(name, form, layers, limits)
        if self.problems[known:]:
            return None
        return Sku(
            form.description, form.detect, tuple(form.aliases), form.peak, form.node, workloads, form.beyond_node,
            tuple(rows.values()), limits, tuple(form.environment.items()),
        )  # fmt: skip

    @contextmanager
    def _collecting(self, by: Mark) -> Iterator[None]:
        """Collect a ValueError as a problem of the entry at `by`."""
        try:
            yield
        except ValueError as error:
            self.problems.append(by.error(str(error)))

    def _place(self, sku: str, *at: str | int) -> Mark:
        return nearest_place(self._layers, "skus", sku, *at)

    def _get(self, section: str, name: str) -> Any:
        """The entry of a name. Raises ValueError if there is none."""
        known = self._named[section]
        if name not in known:
            near = did_you_mean(name, known) or f"; expected one of {', '.join(known) or 'none'}"
            raise ValueError(f"there is no {name!r} under `{section}`{near}")
        return known[name]

    def _reason(self, text: str | None) -> str | None:
        """The text of `because` or `provisional`, given directly or by name. Raises ValueError if misspelt."""
        known = self._named["reasons"]
        if text in known:
            return str(known[text])
        if text and " " not in text and (near := did_you_mean(text, known)):
            raise ValueError(f"there is no {text!r} under `reasons`{near}")
        return text

    def _rows(self, name: str, form: SkuForm, layers: Sequence[Layer], limits: PeerLimits) -> Rows:
        """All requirements: checks, the SKU's own rows, those of families that it does not replace, those by peers."""
        rows: Rows = {}
        for i, family in enumerate(form.families):
            with self._collecting(self._place(name, "families", i)):
                self._get("families", family)
                for twin in (family for key, family in self._families[family].items() if key in rows):
                    raise ValueError(f"{twin} is required by two of the SKU's families")
                rows |= self._families[family]
                _refuse_too_many(rows)
        later: list[tuple[Layer, list[tuple[Change, Mark]]]] = []
        for layer in layers:
            section = layer.form.skus[name]
            own = self._expanded(section.requirements, [layer], "skus", name, "requirements")
            # A family's rows come last; a file's rows take the places of those below.
            rows = {**rows, **own} if layer is not layers[0] else {**own, **rows, **own}
            changes = [
                (change, layer.document.place("skus", name, "change", i)) for i, change in enumerate(section.change)
            ]
            rows = self._changed(rows, [(change, at) for change, at in changes if change.until is None])
            waivers = [(change, at) for change, at in changes if change.until is not None]
            of_peers = [
                waiver for waiver in waivers if waiver[0].metric in _BY_PEERS and not any(map(waiver[0].names, rows))
            ]
            rows = self._changed(rows, [waiver for waiver in waivers if waiver not in of_peers])
            later.append((layer, of_peers))
        with self._collecting(self._place(name)):
            _refuse_too_many(rows)
        rows = dict(sorted(rows.items(), key=lambda row: row[0][0] != NODE_CHECK.name))
        by_peers = {requirement.key(): requirement for requirement in self._by_peers(name, limits, [*rows.values()])}
        for layer, waivers in later:
            # What a file below waives may be without a limit in a nearer one.
            is_nearest = layer is self._layers[-1]
            applied = [waiver for waiver in waivers if is_nearest or any(map(waiver[0].names, by_peers))]
            by_peers = self._changed(by_peers, applied)
        return rows | by_peers

    def _by_peers(self, sku: str, limits: PeerLimits, requirements: Sequence[Requirement]) -> Iterator[Requirement]:
        """Uniformity of GPUs and nodes for each workload with weak scaling on a node, and of the places of each probe.

        Those that have a row are left out.
        """
        given: dict[tuple[str, str, WorldSize], str] = {}  # metric, subject, world size: limit
        sizes: dict[str, list[WorldSize]] = {}
        for requirement in requirements:
            metric, size = requirement.definition, requirement.world_size
            of_ranks = metric.subject == "workload" and (metric.scaling, metric.measured) == ("weak", "ddp")
            of_many = requirement.placement == "packed" and (size == "node" or (isinstance(size, int) and size > 1))
            if of_ranks and of_many and not metric.reads_own_pace:
                sizes.setdefault(requirement.workload, []).append(size)
        for workload, limits_of in sizes.items():
            largest = max(limits_of, key=lambda size: size if isinstance(size, int) else math.inf)
            given[RANK_UNIFORMITY.name, workload, largest] = "computing"
            given[NODE_UNIFORMITY.name, workload, largest] = "nodes"
        for requirement in requirements:
            peers = (
                KINDS[operation(requirement.probe).kind].peers
                if requirement.probe and not requirement.definition.compares_places
                else ""
            )
            if peers and (
                requirement.world_size == "node" or isinstance(requirement.world_size, int)
            ):  # not links between nodes
                given[PROBE_UNIFORMITY.name, requirement.probe, requirement.world_size] = peers
        has_row = {(requirement.metric, requirement.subject) for requirement in requirements}
        for (name, subject, size), part in given.items():
            limit = getattr(limits, part)
            if limit is None or (name, subject) in has_row:
                continue
            # Of the SKU, or of the nearest file that has it.
            places = [nearest_place(self._layers, *at, "peers", part) for at in (("skus", sku), ())]
            mark = next((mark_of for mark_of in places if mark_of.at[-1:] == (part,)), places[0])
            source = Source(reasoning=_REASON.format(100 * limit))
            fields: dict[str, Any] = {METRICS[name].subject: subject, "world_size": size, "where": mark.where}
            yield Requirement(name, round(1 + limit, 6), source, provisional=True, **fields)

    def _expanded(self, rows: Iterable[CheckRow | Row], layers: Sequence[Layer], *at: str) -> Rows:
        """The requirements of rows, one per metric, subject and world size."""
        expanded: Rows = {}
        for i, row in enumerate(rows):
            mark = nearest_place(layers, *at, i)
            with self._collecting(mark):
                for requirement in self._requirements(row, mark):
                    twin = expanded.setdefault(requirement.key(), requirement)
                    if twin is not requirement:
                        raise ValueError(f"{requirement} is required twice: {twin.bound:g} and {requirement.bound:g}")
                    _refuse_too_many(expanded)
            if len(expanded) > MOST_REQUIREMENTS or len(self.problems) > MOST_PROBLEMS:
                break
        return expanded

    def _requirements(self, row: CheckRow | Row, mark: Mark) -> Iterator[Requirement]:
        if isinstance(row, CheckRow):
            yield from (check_of_nodes(name, severity, mark.where) for name, severity in row.severities.items())
            return
        for metric, size, subject, value, bound, sound in row.values:
            definition, source = METRICS[metric], self._source(row, metric, value, mark.path in self._sites)
            if bound is None and source.measured is not None and source.margin_pct is not None:
                sign = 1 if definition.upper_bound else -1
                bound = float(f"{value * (1 + sign * source.margin_pct / 100):.{_DIGITS}g}")
            kind = "workload" if row.of else "probe" if row.probe else definition.subject
            named: dict[str, Any] = {} if kind == "node" else {kind: subject}
            yield Requirement(
                metric,
                value if bound is None else bound,
                source,
                **named,
                world_size=size,
                placement=row.placement,
                versus=row.versus,
                severity=row.severity or ("warn" if row.provisional else "fail"),
                provisional=row.provisional is not None,
                where=mark.where,
                one_gpu=row.baseline if definition.times_one_gpu(is_of_one=size == 1) else "alone",
                sound=sound,
            )

    def _source(self, row: Row, metric: str, value: float, is_site: bool) -> Source:
        because = self._reason(row.because)
        if row.published is None:
            return Source(reasoning=self._reason(row.provisional) or because, is_site=is_site)
        reference, margin = self._get("sources", row.published), row.margin
        if row.bound is not None:
            return Source(value, None, reference, because, is_site)
        if not isinstance(margin, float):
            margin = self._get("margins", margin) if margin else self._named["margins"].get(metric)
        if isinstance(margin, NamedMargin):
            because, margin = because or margin.because, margin.metrics.get(metric)
        if margin is None:
            expected = f"`margin: 5 %` here, `{metric}: 5 %` under `margins`, or a `bound`"
            raise ValueError(f"there is no margin for {metric}; expected {expected}")
        if margin > MOST_MARGIN_PCT and because is None:
            raise ValueError(f"a margin of {margin:g} %, above {MOST_MARGIN_PCT:g} %, needs `because: WHY`")
        return Source(value, margin, reference, because, is_site)

    def _changed(self, rows: Rows, changes: Iterable[tuple[Change, Mark]]) -> Rows:
        """The rows with a file's lasting changes, or its waivers, which replace those of files below."""
        rows, done = dict(rows), set[RequirementKey]()
        for change, mark in changes:
            with self._collecting(mark):
                for key in _selected(change, rows):
                    requirement = rows[key]
                    if key in done:
                        raise ValueError(f"{requirement} is {'waived' if change.until else 'changed'} twice")
                    done.add(key)
                    now = (
                        _waived(requirement, change, self._least_day)
                        if change.until
                        else _lastingly(requirement, change, mark)
                    )
                    if now is None:
                        del rows[key]
                    else:
                        rows[key] = now
        return rows


def _refuse_too_many(rows: Rows) -> None:
    if len(rows) > MOST_REQUIREMENTS:
        raise ValueError(f"these are more than {MOST_REQUIREMENTS} requirements")


def _over(below: Any, above: Any) -> Any:
    """An entry of a file over that of the file below: mappings are merged, anything else is the nearer one's."""
    if isinstance(below, BaseModel) and isinstance(above, BaseModel):
        fields = {key: _over(getattr(below, key), getattr(above, key)) for key in above.model_fields_set}
        return below.model_copy(update=fields)
    if isinstance(below, dict) and isinstance(above, dict):
        return {**below, **{key: _over(below.get(key), one) for key, one in above.items()}}
    return above


def _waived(requirement: Requirement, change: Change, least_day: date) -> Requirement:
    """A requirement with a waiver. Raises ValueError if it can have none."""
    assert change.until is not None
    if why := why_never_waived(requirement):
        raise ValueError(f"{requirement} cannot be waived: {why}")
    if change.until < least_day:
        raise ValueError(f"`until: {change.until}` is over; expected today, a later day, or no entry")
    if (change.until - today()).days > LONGEST_DAYS:
        raise ValueError(f"`until: {change.until}` is beyond {LONGEST_DAYS} days; expected an earlier day")
    return replace(requirement, waiver=Waiver(change.who, change.why, change.until))


def _lastingly(requirement: Requirement, change: Change, mark: Mark) -> Requirement | None:
    """A requirement with another severity or bound, or none. Raises ValueError if it has to stand as it is."""
    why = why_it_stands(requirement)
    if why and change.severity in ("off", "warn"):
        result = "turned off" if change.severity == "off" else "made to warn only"
        raise ValueError(f"{requirement} cannot be {result}: {why}")
    if change.severity == "off":
        return None
    now = replace(requirement, severity=change.severity or requirement.severity, where=mark.where)
    bound = at(change.bound, requirement.world_size)
    if bound is None:
        return now
    source = replace(requirement.source, margin_pct=None, reasoning=f"{change.why} ({change.who})", is_site=True)
    # What a sound machine was thought to reach says nothing against a site that asks for more.
    is_beyond = requirement.sound is not None and (
        bound < requirement.sound if requirement.definition.upper_bound else bound > requirement.sound
    )
    return replace(now, bound=bound, source=source, sound=None if is_beyond else requirement.sound)


def _selected(change: Change, rows: Rows) -> list[RequirementKey]:
    """Keys of the rows that a change names. Raises ValueError if one is not there."""
    alike = [key for key in rows if change.names(key)]
    sizes = [key[2] for key in alike]
    missing = [size for size in change.world_sizes if size not in sizes]
    if missing or not alike:
        others = ", ".join(sorted({f"{key[0]} of {key[1]}" for key in rows}))
        expected = f"at world size {', '.join(map(str, sizes))}" if sizes else f"one of {others}"
        if change.metric in _BY_PEERS and not change.until:
            expected = "a row; or another limit under `peers`, or a waiver of it, with `until`"
        at = f" at world size {missing[0]}" if missing else ""
        of = change.of or change.probe or change.check or "nodes"
        raise ValueError(f"there is no {change.metric} of {of}{at} to change; expected {expected}")
    return [key for key in alike if not change.world_sizes or key[2] in change.world_sizes]
