"""values.csv and culprits.csv: one row for each value, and one for each culprit that a requirement names."""

from __future__ import annotations

from pytest_ddpscale.judge.values import Row, rows_of
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.verdicts import Culprit, Judgement, Verdict
from pytest_ddpscale.util.document import Cell, csv_text

CULPRIT_COLUMNS = (
    "requirement", "outcome", "kind", "host", "gpu_index", "gpu_uuid", "peer_host", "peer_gpu_index", "peer_gpu_uuid",
    "is_certain", "evidence", "local_rank", "pci_bus_id", "peer_local_rank", "peer_pci_bus_id",
)  # fmt: skip


def render_values(judgement: Judgement, evidence: Evidence) -> str:
    """A row for each value; numbers unrounded, in the unit of their row."""
    return csv_text(Row._fields, rows_of(judgement, evidence))


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
