"""A calibration as rows of a thresholds file with their source, as a table, and as JSON."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pytest_ddpscale import __version__
from pytest_ddpscale.calibrate.calibration import Calibration
from pytest_ddpscale.calibrate.trusted_runs import SOFTWARE
from pytest_ddpscale.history.past_run import PastRun, started_at_of
from pytest_ddpscale.report.digits import bare_number, number_text
from pytest_ddpscale.thresholds.loading import ThresholdsFile
from pytest_ddpscale.thresholds.site_file import Overlay
from pytest_ddpscale.util.document import Line, Table, bullets, text_lines
from pytest_ddpscale.util.listing import first_few, first_nodes

_TITLES = ("requirement", "value", "found from", "bound", "new")
_SIMULATED = "SIMULATED, no machine was measured: "
_COLUMNS = 100  # of a line
_NAMED = 3
_MOST_SETS = 20  # of nodes, such as gpu[001-125]; a thresholds file takes texts of 4000 characters
_OF_ONE = ("name", "value", "node_sd", "launch_sd", "reach", "margin_pct", "found_from_pct", "bound", "nodes",
           "launches", "unit")  # fmt: skip
Provenance = Mapping[str, Any]


def provenance_of(calibration: Calibration, runs: Sequence[PastRun]) -> Provenance:
    """Machines and runs behind a calibration, without nodes that were left out, as JSON types.

    `name` is that of the source in the overlay: ``calibrated-2026-11-23``, the day of the last run.
    """
    gpus, software = {node: set[str]() for node in calibration.nodes}, dict[str, str]()
    for run in runs:
        for node in gpus.keys() & run.gpus.keys():
            gpus[node] |= {*run.gpus[node]}
            software |= {name: run.versions[node][name] for name in SOFTWARE if name in run.versions.get(node, {})}
    first, *_, last = sorted([started_at_of(run.record) for run in (runs[0], *runs)])
    return {
        "name": f"calibrated-{last[:10]}", "gpus": {node: sorted(of) for node, of in gpus.items()},
        "first": first, "last": last, "runs": [run.path for run in runs], "software": software,
        "is_simulated": any(run.is_simulated for run in runs),
    }  # fmt: skip


def source_text(calibration: Calibration, provenance: Provenance) -> str:
    """The source as one text: number of nodes, dates, software, false-reject rate, nodes left out, then all nodes."""
    days = dict.fromkeys(provenance[end][:10] for end in ("first", "last"))
    return "; ".join((
        f"{_SIMULATED * provenance['is_simulated']}{len(calibration.nodes)} nodes in {len(provenance['runs'])} "
        f"launches, {' to '.join(days)}",
        *(f"{name} {version}" for name, version in provenance["software"].items()),
        f"ddpscale {__version__} calibrate, false rejects of a healthy node at most {calibration.rate:.3g}",
        *[f"left out: {first_nodes(calibration.excluded, _MOST_SETS)}"] * bool(calibration.excluded),
        f"nodes: {first_nodes(calibration.nodes, _MOST_SETS)}",
    ))  # fmt: skip


def overlay_of(calibration: Calibration, provenance: Provenance, file: ThresholdsFile) -> Overlay:
    """The overlay of a thresholds file: a row for each metric, subject and margin.

    A new row would end the file's own `change` of the row that it replaces, so it keeps the severity and the waiver.
    """
    source: str = provenance["name"]
    rows: dict[tuple[object, ...], dict[str, Any]] = {}
    waivers: list[dict[str, Any]] = []
    nearest = file.layers[-1].form.skus.get(calibration.sku)
    for calibrated in calibration.calibrated:
        requirement, accepts = calibrated.requirement, calibration.accepts_by(calibrated)
        subject = "of" if requirement.definition.subject == "workload" else "probe"
        name: dict[str, Any] = {subject: requirement.subject}
        name |= {"placement": requirement.placement} if requirement.placement != "packed" else {}
        name |= {"versus": requirement.versus} if requirement.versus else {}
        row = name | ({"baseline": requirement.one_gpu} if requirement.one_gpu != "alone" else {})
        if accepts:
            row |= {"published": source, "margin": f"{calibrated.margin_pct:g} %"}
        else:
            why = f"{source}, which rejects but does not accept: other speeds have no bound yet"
            row |= {"provisional": why, "severity": "fail"}
        # A provisional row only warned because it was not measured, which it now is. Others warn for their own reasons.
        named = [change for change in (nearest.change if nearest else ()) if change.names(requirement.key())]
        ends = [
            change.until for change in named if not change.world_sizes or requirement.world_size in change.world_sizes
        ]
        if requirement.severity == "warn" and (None in ends or not requirement.provisional):
            row["severity"] = "warn"
        alike = (requirement.metric, *row.items())
        values = rows.setdefault(alike, {requirement.metric: {}, **row})[requirement.metric]
        values[requirement.world_size] = calibrated.value if accepts else float(f"{calibrated.bound:.6g}")
        if (waiver := requirement.waiver) is not None and any(ends):
            signed = {"severity": "warn", "until": waiver.until, "who": waiver.who, "why": waiver.why}
            waivers.append({requirement.metric: [requirement.world_size], **name, **signed})
    section = {"requirements": list(rows.values())} | ({"change": waivers} if waivers else {})
    return Overlay("calibrate", file, calibration.sku, section, {source: source_text(calibration, provenance)})


def calibration_lines(calibration: Calibration, provenance: Provenance) -> Iterator[str]:
    """The answer, the table, nodes that were left out, and requirements that keep their bound."""
    number, left = len(calibration.calibrated), len(calibration.left)
    answer = (
        f"{_SIMULATED * provenance['is_simulated']}{number} of {number + left} bounds of {calibration.sku} calibrated "
        f"from {len(calibration.nodes)} nodes; {left} stay as they are."
    )
    rows = []
    for calibrated in calibration.calibrated:
        side = "≤" if calibrated.requirement.definition.upper_bound else "≥"
        bounds = (
            f"{side} {bare_number(bound, calibrated.unit)}"
            for bound in (calibrated.requirement.bound, calibrated.bound)
        )
        rows.append(
            (
                calibrated.name,
                number_text(calibrated.value, calibrated.unit),
                f"{calibrated.found_from_pct:.1f} %",
                *bounds,
            )
        )
    sentences = bullets(_sentences(calibration))
    return text_lines(Line(answer), Table(_TITLES, rows, names=1), sentences, width=_COLUMNS)


def _sentences(calibration: Calibration) -> Iterator[str]:
    """What else to know."""
    unseen = calibration.unseen
    if rejecting := sum(not calibration.accepts_by(calibrated) for calibrated in calibration.calibrated):
        yield (
            f"{rejecting} of these bounds reject but do not accept: {first_few(unseen, _NAMED)} "
            f"{'have' if len(unseen) > 1 else 'has'} none, so a node slow in that would be accepted. Add nodes or "
            "launches."
        )
    yield f"A healthy node fails a run with these bounds with a chance of at most {calibration.rate:.3g}."
    if calibration.calibrated:
        yield "Found from: a node with this loss fails this requirement in 19 of 20 runs."
    yield from (f"Left out: {node}. {reason}" for node, reason in calibration.excluded.items())
    by_reason = defaultdict[str, list[str]](list)
    for name, reason in calibration.left.items():
        by_reason[reason].append(name)
    yield from (f"Not calibrated: {first_few(names, _NAMED)}: {reason}" for reason, names in by_reason.items())


def calibration_json(calibration: Calibration, provenance: Provenance, rows: Sequence[Mapping[str, Any]]) -> Any:
    """The whole calibration as JSON types, with every UUID; the JSON writer makes texts of world sizes as keys."""
    calibrated = [
        {name: getattr(calibrated, name) for name in _OF_ONE}
        | {name: getattr(calibrated.requirement, name) for name in ("metric", "subject", "world_size")}
        | {"sd_is": "relative" if calibrated.requirement.definition.scale == "factors" else "in unit"}
        | {"old_bound": calibrated.requirement.bound}
        for calibrated in calibration.calibrated
    ]
    return {
        "schema_version": 3, "sku": calibration.sku, "false_reject_rate": calibration.rate, "provenance": provenance,
        "calibrated": calibrated, "excluded": calibration.excluded, "not_calibrated": calibration.left,
        "requirements": rows,
    }  # fmt: skip
