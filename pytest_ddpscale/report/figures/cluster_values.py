"""One value for each GPU of a cluster, and for each pair of its nodes or ranks."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from pytest_ddpscale.judge.metrics import slowness_of
from pytest_ddpscale.judge.probes import values_of_probe
from pytest_ddpscale.judge.rounds import merged
from pytest_ddpscale.judge.slow_links import rails_of
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.run.columns import Columns
from pytest_ddpscale.run.evidence import Evidence

GpuValues: TypeAlias = Mapping[tuple[str, str], float]  # by host and name of the GPU
PairValues: TypeAlias = Mapping[tuple[str, str], float]


def slowness_by_gpu(columns: Columns, plan: Plan) -> GpuValues:
    """Step time without communication relative to the typical GPU; the slowest workload counts."""
    found: dict[tuple[str, str], float] = {}
    for study in plan.studies:
        for arm in (one for one in study.arms if one.kind == "each"):
            rounds = merged(columns, study.id, arm, plan.layout)
            names = {place[:2]: place.number for place in rounds.ranks.rank_places}
            for (host, local_rank), factor in slowness_of(rounds).items():
                if math.isfinite(factor):
                    gpu = host, names[host, local_rank]
                    found[gpu] = max(factor, found.get(gpu, 0.0))
    return found


def pair_bandwidths(evidence: Evidence) -> PairValues:
    """GB/s of each pair of nodes, by their sorted names: the slowest rail, each rail as the median of its rounds.

    The values come from the search for slow nodes and links, or from send-recv probes if there was no search.
    """
    rails: dict[tuple[str, str], dict[tuple[int, ...], list[float]]] = {}

    def add(hosts: tuple[str, str], ranks: tuple[int, ...], gbps: Sequence[float]) -> None:
        first, second = sorted(hosts)
        rails.setdefault((first, second), {}).setdefault(ranks, []).extend(gbps)

    for one in rails_of(evidence):
        add(one.hosts, one.ranks, [one.gbps])
    if not rails and evidence.plan.probes is not None:
        sent = [probe for probe in evidence.plan.probes.arms if probe.operation.kind == "send-recv"]
        # The probe with the most ranks spans several nodes if any probe does.
        for probe in sorted(sent, key=lambda probe: (-probe.world_size, -(probe.operation.message_bytes or 0)))[:1]:
            for place, values in values_of_probe(probe, evidence).items():
                if place.peer_host is not None and place.peer_host != place.host:
                    add((place.host, place.peer_host), place.ranks, values.tolist())
    return {hosts: min(map(statistics.median, by_rail.values())) for hosts, by_rail in rails.items()}


def pair_bandwidths_within(evidence: Evidence) -> PairValues:
    """GB/s of each pair of local ranks: the median over rounds on the slowest node, by the ranks' names.

    The values come from the send-recv probe with the largest message.
    """
    study = evidence.plan.probes
    sent = [probe for probe in (study.arms if study else ()) if probe.operation.kind == "send-recv"]
    found: dict[tuple[str, str], float] = {}
    for probe in sorted(sent, key=lambda probe: -(probe.operation.message_bytes or 0)):
        for place, values in values_of_probe(probe, evidence).items():
            if place.end is not None and place.peer is not None and place.peer_host == place.host:
                pair = f"rank {place.end.local_rank}", f"rank {place.peer.local_rank}"
                gbps = statistics.median(values.tolist())
                found[pair] = min(gbps, found.get(pair, math.inf))
        if found:
            break
    return found
