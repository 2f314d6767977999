"""A calibration as a table and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

from pytest_ddpscale.calibrate.calibration import CalibratedRequirement, Calibration
from pytest_ddpscale.calibrate.provenance import Provenance, source_text
from pytest_ddpscale.util.digits import percent
from pytest_ddpscale.util.document import Column, Line, Table, bullets, text_lines
from pytest_ddpscale.util.listing import first_few

_HEADER = ("requirement", "value", "node SD", "launch SD", "found from", "bound", "", "new")
_COLUMNS = 100  # of a line
_NAMED = 3


def calibration_lines(calibration: Calibration, provenance: Provenance) -> Iterator[str]:
    """The answer, the table, nodes that were left out, and requirements that keep their bound."""
    number, left = len(calibration.calibrated), len(calibration.left)
    rejecting = sum(not calibration.accepts_by(one) for one in calibration.calibrated)
    simulated = "SIMULATED, no machine was measured: " if provenance.is_simulated else ""
    worth = f" {rejecting} of them reject but do not accept: add nodes or launches." if rejecting else ""
    answer = (
        f"{simulated}{number} of {number + left} bounds of {calibration.sku} calibrated from "
        f"{len(calibration.nodes)} nodes; {left} stay as they are.{worth}"
    )
    columns = [Column(title, is_number=at > 0, may_shrink=at == 0) for at, title in enumerate(_HEADER)]
    rows, notes = Table(columns, [*_rows(calibration.calibrated)]), bullets(_sentences(calibration))
    return text_lines(Line(answer), Line(source_text(calibration, provenance)), rows, notes, width=_COLUMNS)


def _sentences(calibration: Calibration) -> Iterator[str]:
    """What else to know."""
    yield f"A healthy node fails a run with these bounds with a chance of at most {calibration.rate:.3g}."
    if calibration.calibrated:
        yield "Found from: a node with this loss fails this requirement in 19 of 20 runs."
    weaker = [one.name for one in calibration.calibrated if one.is_weaker]
    if weaker:
        yield f"Weaker than published bounds: {first_few(weaker, _NAMED)}. Find out why before you use them."
    unseen = calibration.unseen
    if unseen and not all(map(calibration.accepts_by, calibration.calibrated)):
        yield (
            f"These bounds reject but do not accept: {first_few(unseen, _NAMED)} "
            f"{'have' if len(unseen) > 1 else 'has'} none, so a node slow in that would be accepted. Add nodes or "
            "launches."
        )
    for one in calibration.excluded:
        yield f"Left out: {one.node}. {one.reason}"
    if not calibration.excluded:
        yield "No node was left out."
    for reason, names in _by_reason(calibration.left).items():
        yield f"Not calibrated: {first_few(names, _NAMED)}: {reason}"


def _rows(calibrated: Iterable[CalibratedRequirement]) -> Iterator[tuple[str, ...]]:
    """The requirements of each metric below its name."""
    for metric, of_metric in groupby(calibrated, lambda one: one.name.partition("[")[0]):
        yield (metric, *("" for _ in _HEADER[1:]))
        yield from map(_row, of_metric)


def _row(one: CalibratedRequirement) -> tuple[str, ...]:
    definition = one.requirement.definition
    in_unit = "" if definition.scale == "factors" else f" {one.unit}".replace(" fraction", "")
    spreads = one.node_sd, one.launch_sd
    sds = [percent(sd, 2) if definition.scale == "factors" else f"{sd:.2g}{in_unit}" for sd in spreads]
    unit = "" if one.unit in ("fraction", "x") else f" {one.unit}"
    at = "≤" if definition.upper_bound else "≥"
    return (
        f"  {one.name.partition('[')[2].removesuffix(']')}", f"{one.value:.4g}{unit}", *sds,
        f"{one.found_from_pct:.1f} %", f"{at} {one.requirement.bound:.4g}", "→", f"{at} {one.bound:.4g}",
    )  # fmt: skip


def _by_reason(left: Mapping[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, reason in left.items():
        found.setdefault(reason, []).append(name)
    return found


def calibration_json(calibration: Calibration, provenance: Provenance, rows: Sequence[Mapping[str, Any]]) -> Any:
    """The whole calibration as JSON types, with every UUID."""
    return {
        "schema_version": 2,
        "sku": calibration.sku,
        "false_reject_rate": calibration.rate,
        "provenance": asdict(provenance),
        "calibrated": [_one_json(one) for one in calibration.calibrated],
        "excluded": [asdict(one) for one in calibration.excluded],
        "not_calibrated": dict(calibration.left),
        "requirements": _with_text_keys(rows),
    }


def _one_json(one: CalibratedRequirement) -> dict[str, Any]:
    requirement = one.requirement
    names = (
        "name",
        "value",
        "node_sd",
        "launch_sd",
        "reach",
        "margin_pct",
        "found_from_pct",
        "bound",
        "nodes",
        "launches",
    )
    return {
        **{name: getattr(one, name) for name in names},
        "metric": requirement.metric,
        "subject": requirement.subject,
        "world_size": requirement.world_size,
        "unit": one.unit,
        "sd_is": "relative" if requirement.definition.scale == "factors" else "in unit",
        "old_bound": requirement.bound,
    }


def _with_text_keys(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows with world sizes as text, because JSON keys are texts."""
    return [
        {key: {str(size): one for size, one in value.items()} if isinstance(value, Mapping) else value
         for key, value in row.items()}
        for row in rows
    ]  # fmt: skip
