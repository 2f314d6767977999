"""requirements.csv and culprits.csv: one row for each requirement, and one for each culprit that it names."""

from __future__ import annotations

from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.verdicts import Culprit, Judgement, Verdict
from pytest_ddpscale.util.tables import Cell, csv_text

REQUIREMENT_COLUMNS = (
    "id", "metric", "workload", "world_size", "severity", "outcome", "blocks", "value", "low", "high", "unit",
    "bound_kind", "bound", "margin", "confidence", "rounds", "provisional", "waived_by", "reason", "source",
)  # fmt: skip
CULPRIT_COLUMNS = (
    "requirement", "outcome", "kind", "host", "gpu_index", "gpu_uuid", "peer_host", "peer_gpu_index", "peer_gpu_uuid",
    "is_certain", "evidence", "local_rank", "pci_bus_id", "peer_local_rank", "peer_pci_bus_id",
)  # fmt: skip


def render_requirements(judgement: Judgement) -> str:
    """A row for each requirement; numbers unrounded, in the unit of their row."""
    return csv_text(REQUIREMENT_COLUMNS, (_requirement(judgement, verdict) for verdict in judgement.verdicts))


def render_culprits(judgement: Judgement) -> str:
    """A row for each culprit of each requirement."""
    named = ((verdict, culprit) for verdict in judgement.verdicts for culprit in verdict.culprits)
    return csv_text(CULPRIT_COLUMNS, (_culprit(verdict, culprit) for verdict, culprit in named))


def _culprit(verdict: Verdict, who: Culprit) -> tuple[Cell, ...]:
    end, peer = (*who.places, Place(""))[:2]
    return (
        verdict.id, verdict.outcome, who.kind, end.host, end.index, end.uuid, peer.host, peer.index, peer.uuid,
        who.is_certain, who.evidence, end.local_rank, end.pci, peer.local_rank, peer.pci,
    )  # fmt: skip


def _requirement(judgement: Judgement, one: Verdict) -> tuple[Cell, ...]:
    low, high = one.interval or (None, None)
    kind, bound = next(iter(one.bound.items()))
    return (
        one.id, one.metric, one.workload, one.world_size, one.severity, one.outcome, judgement.is_blocked_by(one),
        one.value, low, high, one.unit, kind, bound, one.margin, one.confidence, one.rounds,
        one.provisional, one.waiver.who if one.waiver else None, one.reason, one.source,
    )  # fmt: skip
