"""Notes on ranks worth a look, whether or not a requirement is missed because of them."""

from __future__ import annotations

from pytest_ddpscale.judge.culprits import RankComparison, watched_note
from pytest_ddpscale.judge.stragglers import Straggler
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.util.listing import first_few


def rank_notes(evidence: Evidence) -> list[str]:
    """A line on ranks that are somewhat slow without communication, and one on ranks slow in some rounds only."""
    watched: dict[tuple[str, int], Straggler] = {}
    changing: dict[tuple[str, int], Straggler] = {}
    for study in evidence.plan.studies:
        if any(arm.compares_ranks for arm in study.arms):
            compared = RankComparison(study, evidence)
            _keep_slowest(watched, compared.watched)
            _keep_slowest(changing, [one for one in compared.stragglers if not one.is_slow_throughout])
    notes = [watched_note(list(watched.values()))] if watched else []
    if changing:
        at_times = [f"rank {one.rank} on {one.host}, {one.evidence}" for one in changing.values()]
        notes.append(f"slow at times: {first_few(at_times, separator='; ')}")
    return notes


def _keep_slowest(kept: dict[tuple[str, int], Straggler], found: list[Straggler]) -> None:
    for one in found:
        before = kept.get((one.host, one.local_rank))
        if before is None or one.ratio > before.ratio:
            kept[one.host, one.local_rank] = one
