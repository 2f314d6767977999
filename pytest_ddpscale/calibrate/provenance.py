"""Provenance of calibrated bounds for the overlay's source, and the rows that cite it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_ddpscale import __version__
from pytest_ddpscale.calibrate.calibration import CalibratedRequirement, Calibration
from pytest_ddpscale.calibrate.trusted_runs import SOFTWARE, TrustedRun
from pytest_ddpscale.thresholds.loading import ThresholdsFile
from pytest_ddpscale.thresholds.model import Requirement
from pytest_ddpscale.thresholds.site_file import Overlay
from pytest_ddpscale.util.listing import first_few

_LONGEST_LIST = 2500  # characters; a thresholds file takes texts of 4000
_UUID_DIGITS = 8  # enough to distinguish the GPUs of a site
_NAMED = 4


@dataclass(frozen=True)
class Provenance:
    """Machines and runs behind a calibration.

    Attributes:
        name: of the source in the overlay: ``calibrated-2026-11-23``, the day of the last run.
        nodes: sorted.
        gpus: UUIDs of each node's GPUs.
        first: when the first run started, ISO 8601 in UTC.
        last: when the last run started.
        runs: names of the run directories.
        software: known versions of the software that affects a GPU's speed.
        is_simulated: whether no machine was measured.
    """

    name: str
    nodes: tuple[str, ...]
    gpus: Mapping[str, tuple[str, ...]]
    first: str
    last: str
    runs: tuple[str, ...]
    software: Mapping[str, str]
    is_simulated: bool


def provenance_of(calibration: Calibration, runs: Sequence[TrustedRun]) -> Provenance:
    """Provenance of a calibration, from the nodes that were not left out."""
    gpus: dict[str, set[str]] = {node: set() for node in calibration.nodes}
    software: dict[str, str] = {}
    for run in runs:
        for node in gpus.keys() & run.gpus.keys():
            gpus[node].update(run.gpus[node])
            software |= {name: run.versions[node][name] for name in SOFTWARE if name in run.versions.get(node, {})}
    began = sorted(run.began for run in runs)
    return Provenance(
        f"calibrated-{began[-1][:10]}",
        calibration.nodes,
        {node: tuple(sorted(theirs)) for node, theirs in gpus.items()},
        began[0],
        began[-1],
        tuple(run.name for run in runs),
        software,
        any(run.is_simulated for run in runs),
    )


def source_text(calibration: Calibration, provenance: Provenance) -> str:
    """The source as one text: nodes, GPUs, dates, software, false-reject rate, nodes left out."""
    uuids = [uuid for node in provenance.nodes for uuid in provenance.gpus[node]]
    first, last = provenance.first[:10], provenance.last[:10]
    parts = [
        f"{len(provenance.nodes)} nodes ({_listed(provenance.nodes)}) in {len(provenance.runs)} launches, "
        + (first if first == last else f"{first} to {last}"),
        *(f"{name} {version}" for name, version in provenance.software.items()),
        f"{len(uuids)} GPUs: {_listed([_short(uuid) for uuid in uuids])}",
        f"ddpscale {__version__} calibrate, false rejects of a healthy node at most {calibration.rate:.3g}",
    ]
    if calibration.excluded:
        parts.append(f"left out: {first_few([one.node for one in calibration.excluded], _NAMED)}")
    said = "; ".join(parts)
    return f"SIMULATED, no machine was measured: {said}" if provenance.is_simulated else said


def _short(uuid: str) -> str:
    kind, dash, digits = uuid.partition("-")
    return f"{kind}{dash}{digits[:_UUID_DIGITS]}"


def _listed(names: Sequence[str]) -> str:
    """All names, or the first and last with a digest to verify a list by."""
    text = " ".join(names)
    if len(text) <= _LONGEST_LIST // 2:
        return text
    digest = hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()
    return f"{names[0]} … {names[-1]}, sha256 {digest[:16]} of their names, one a line in order"


def overlay_of(calibration: Calibration, provenance: Provenance, file: ThresholdsFile) -> Overlay:
    """The overlay of a thresholds file: a row for each metric, subject and margin.

    A new row would end the file's own `change` of the row that it replaces, so it keeps the severity and the waiver.
    """
    rows: dict[tuple[object, ...], dict[str, Any]] = {}
    waivers: list[dict[str, Any]] = []
    nearest = file.layers[-1].form.skus.get(calibration.sku)
    changes = nearest.change if nearest else []
    for one in calibration.calibrated:
        requirement = one.requirement
        name = _name(requirement)
        row = {**name, **_bounds(one, provenance.name, calibration)}
        # A provisional row only warned because it was not measured, which it now is. Others warn for their own reasons.
        named = [change for change in changes if change.names(requirement.key())]
        ends = [one.until for one in named if not one.world_sizes or requirement.world_size in one.world_sizes]
        only_warns = None in ends or not requirement.provisional
        if requirement.severity == "warn" and only_warns:
            row["severity"] = "warn"
        alike = tuple(row.items())
        values = rows.setdefault((requirement.metric, *alike), {requirement.metric: {}, **row})[requirement.metric]
        values[requirement.world_size] = one.value if calibration.accepts_by(one) else float(f"{one.bound:.6g}")
        waiver = requirement.waiver
        if waiver is not None and any(ends):
            reference = {"versus": requirement.versus} if requirement.versus else {}
            waived = {requirement.metric: [requirement.world_size], **name, **reference}
            signed = {"who": waiver.who, "why": waiver.why}
            waivers.append({**waived, "severity": "warn", "until": waiver.until, **signed})
    section: dict[str, Any] = {"requirements": list(rows.values())}
    if waivers:
        section["change"] = waivers
    return Overlay("calibrate", file, calibration.sku, section, {provenance.name: source_text(calibration, provenance)})


def _name(requirement: Requirement) -> dict[str, Any]:
    """Keys that identify a row besides its metric and world size."""
    subject = {"workload": "of", "probe": "probe"}[requirement.definition.subject]
    found: dict[str, Any] = {subject: requirement.subject}
    if requirement.placement != "packed":
        found["placement"] = requirement.placement
    if requirement.versus is not None:
        found["versus"] = requirement.versus
    return found


def _bounds(one: CalibratedRequirement, source: str, calibration: Calibration) -> dict[str, Any]:
    baseline = {} if one.requirement.one_gpu == "alone" else {"baseline": one.requirement.one_gpu}
    if calibration.accepts_by(one):
        return {**baseline, "published": source, "margin": f"{one.margin_pct:g} %"}
    why = f"{source}, which rejects but does not accept: other speeds have no bound yet"
    return {**baseline, "provisional": why, "severity": "fail"}
