"""A calibration as a table and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from pytest_ddpscale.calibrate.calibration import CalibratedRequirement, Calibration
from pytest_ddpscale.calibrate.foresight import MOST_NODES, GroupForesight, in_groups
from pytest_ddpscale.calibrate.provenance import Provenance, source_text
from pytest_ddpscale.plan.study import MOST_LAUNCHES
from pytest_ddpscale.util.digits import percent
from pytest_ddpscale.util.listing import first_few
from pytest_ddpscale.util.tables import table, text_lines

_HEADER = (
    "requirement", "value", "node SD", "launch SD", "interval", "margin", "found from", "bound", "", "new", "nodes",
    "launches",
)  # fmt: skip
_NAMED = 3
_NODES = (3, 5, 8, 10, 20)  # of other calibrations
_LOSSES = (0.1, 0.05)


def calibration_lines(calibration: Calibration, provenance: Provenance) -> Iterator[str]:
    """The table, nodes that were left out, and requirements that keep their bound."""
    yield f"{calibration.sku}: {source_text(calibration, provenance)}"
    yield ""
    yield from text_lines(table(_HEADER, map(_row, calibration.calibrated), of_numbers=True))
    yield ""
    yield f"A healthy node fails a run with these bounds with a chance of at most {calibration.rate:.3g}."
    if calibration.calibrated:
        yield "Found from: a node with this loss fails this requirement in 19 of 20 runs."
    weaker = [one.name for one in calibration.calibrated if one.is_weaker]
    if weaker:
        yield f"Weaker than published bounds: {first_few(weaker, _NAMED)}. Find out why before you use them."
    yield from _foresight_lines(calibration)
    for one in calibration.excluded:
        yield f"Left out: {one.node}. {one.reason}"
    if not calibration.excluded:
        yield "No node was left out."
    for reason, names in _by_reason(calibration.left).items():
        yield f"Not calibrated: {first_few(names, _NAMED)}: {reason}"


def _foresight_lines(calibration: Calibration) -> Iterator[str]:
    """What these numbers of nodes and launches are worth, and what others would be, by the same variances."""
    groups = list(in_groups(calibration.foresight))
    if not groups:
        return
    bounded = {one.name for one in calibration.calibrated}
    header = (
        "smallest loss found", "bounds", "now", f"{MOST_LAUNCHES} launches", *(f"{n} nodes" for n in _NODES),
        *(f"{percent(loss)} from" for loss in _LOSSES),
    )  # fmt: skip
    rows: list[tuple[str, ...]] = []
    for group in groups:
        has_bound = [one.name in bounded for one in group.members]
        fewest = [group.fewest_nodes(loss) for loss in _LOSSES]
        rows.append(
            (
                group.group,
                f"{sum(has_bound)} of {len(has_bound)}",
                percent(group.loss(), 1),
                percent(group.loss(launches=MOST_LAUNCHES), 1),
                *(percent(group.loss(nodes), 1) for nodes in _NODES),
                *("–" if nodes is None else f"{nodes} nodes" for nodes in fewest),
            )
        )
    nodes, launches = len(calibration.nodes), max(one.usual_launches for group in groups for one in group.members)
    yield ""
    yield from text_lines(table(header, rows, of_numbers=True))
    yield (
        f"Now: {nodes} nodes, {launches} launches; the other columns change one of the two, by the same variances. "
        "Each loss is what the weakest bound of the group finds in 19 of 20 runs, whether it is written or not. "
        f"–: not with {MOST_NODES} nodes."
    )
    unseen = calibration.unseen
    if unseen and not all(map(calibration.accepts_by, calibration.calibrated)):
        yield (
            f"These bounds reject but do not accept: {first_few(unseen, _NAMED)} "
            f"{'have' if len(unseen) > 1 else 'has'} none, so a node slow in that would be accepted. Add nodes or "
            "launches."
        )


def _row(one: CalibratedRequirement) -> tuple[str, ...]:
    definition = one.requirement.definition
    in_unit = "" if definition.scale == "factors" else f" {one.unit}".replace(" fraction", "")
    spreads = one.node_sd, one.launch_sd, one.reach
    sds = [percent(sd, 2) if definition.scale == "factors" else f"{sd:.2g}{in_unit}" for sd in spreads]
    unit = "" if one.unit in ("fraction", "x") else f" {one.unit}"
    at = "≤" if definition.upper_bound else "≥"
    return (
        one.name, f"{one.value:.4g}{unit}", *sds, f"{one.margin_pct:g} %", f"{one.found_from_pct:.1f} %",
        f"{at} {one.requirement.bound:.4g}", "→", f"{at} {one.bound:.4g}", str(one.nodes), f"{one.launches:.3g}",
    )  # fmt: skip


def _by_reason(left: Mapping[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, reason in left.items():
        found.setdefault(reason, []).append(name)
    return found


def calibration_json(calibration: Calibration, provenance: Provenance, rows: Sequence[Mapping[str, Any]]) -> Any:
    """The whole calibration as JSON types, with every UUID."""
    return {
        "schema_version": 1,
        "sku": calibration.sku,
        "false_reject_rate": calibration.rate,
        "provenance": asdict(provenance),
        "calibrated": [_one_json(one) for one in calibration.calibrated],
        "excluded": [asdict(one) for one in calibration.excluded],
        "not_calibrated": dict(calibration.left),
        "smallest_losses": [_losses_json(group) for group in in_groups(calibration.foresight)],
        "requirements": _with_text_keys(rows),
    }


def _losses_json(group: GroupForesight) -> dict[str, Any]:
    """Losses as fractions, by the number of nodes or launches; fewest nodes by the loss in per cent."""
    return {
        "group": group.group,
        "requirements": [one.name for one in group.members],
        "now": group.loss(),
        "by_nodes": {str(nodes): group.loss(nodes) for nodes in _NODES},
        "by_launches": {str(MOST_LAUNCHES): group.loss(launches=MOST_LAUNCHES)},
        "fewest_nodes": {f"{100 * loss:g}": group.fewest_nodes(loss) for loss in _LOSSES},
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
