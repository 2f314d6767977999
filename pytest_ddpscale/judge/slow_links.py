"""Slow nodes and links as culprits of requirements between nodes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from pytest_ddpscale.judge.link_faults import LinkEnd, LinkFault, find_link_faults, rails_of
from pytest_ddpscale.judge.rounds import ArmRounds
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.verdicts import Culprit, Verdict


def with_slow_links(verdict: Verdict, evidence: Evidence, measured: ArmRounds) -> Verdict:
    """Add nodes and links that communicate slowly as culprits, if the judged ranks are on several nodes.

    Args:
        verdict: with ranks and nodes that compute slowly already named; links of a host that is certainly to blame for
            slow computation are not accused.
        evidence: with the measured node pairs.
        measured: complete rounds of the judged arm.
    """
    return with_slow_node_pairs(verdict, evidence) if _spans_nodes(measured) else verdict


def slow_links(evidence: Evidence) -> dict[str, set[str]]:
    """Hosts of the nodes and links that certainly communicate slowly, by a description of each."""
    faults = _faults(evidence, frozenset())
    return {f"{_words(fault)} ({fault.evidence})": set(fault.hosts) for fault in faults}


def with_slow_node_pairs(verdict: Verdict, evidence: Evidence) -> Verdict:
    """`with_slow_links` for a verdict that is known to be on ranks of several nodes."""
    faults = _faults(evidence, frozenset(culprit.host for culprit in verdict.culprits if culprit.is_certain))
    if not faults:
        return verdict
    culprits = tuple(_culprit(fault) for fault in faults)
    more = f" and {len(faults) - 1} more" if len(faults) > 1 else ""
    who = f"{_words(faults[0])}{more}"
    reason = f"{verdict.reason}; communication is slow at {who} ({faults[0].evidence})"
    return replace(verdict, culprits=(*verdict.culprits, *culprits), reason=reason)


def _faults(evidence: Evidence, excused: frozenset[str]) -> list[LinkFault]:
    def find() -> list[LinkFault]:
        return find_link_faults(rails_of(evidence), evidence.plan.device_type, excused) if evidence.pairs else []

    found: list[LinkFault] = evidence.once(("link faults", excused), find)
    return found


def _spans_nodes(measured: ArmRounds) -> bool:
    by_host = [measured.present[:, at].any(axis=1) for at in measured.ranks.by_host.values()]
    return len(by_host) > 1 and bool((np.sum(by_host, axis=0) > 1).any())


def _words(fault: LinkFault) -> str:
    return f"node {fault.hosts[0]}" if fault.kind == "node" else f"the link between {' and '.join(fault.hosts)}"


def _culprit(fault: LinkFault) -> Culprit:
    end = fault.ends[0]
    index, uuid = _rail(end, whole=fault.whole)
    if fault.kind == "node":
        return Culprit("node", end.host, index, uuid, fault.evidence)
    peer = fault.ends[1]
    peer_index, peer_uuid = _rail(peer, whole=fault.whole)
    return Culprit("link", end.host, index, uuid, fault.evidence, peer.host, peer_index, peer_uuid)


def _rail(end: LinkEnd, *, whole: bool) -> tuple[int | None, str | None]:
    """Local rank and UUID of the only slow rail; None if all rails or several are slow."""
    if whole or len(end.local_ranks) != 1:
        return None, None
    return end.local_ranks[0], _only(end.devices)


def _only(devices: Collection[str]) -> str | None:
    return next(iter(devices)) if len(devices) == 1 else None
