"""Whether NCCL uses the links that nodes have."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence

from pytest_ddpscale.judge.findings import Finding, Findings, GpuPlace, NodeEvidence, fault, note, summed, unknown
from pytest_ddpscale.plan.node_check import NodeExpectation
from pytest_ddpscale.run.survey_record import Survey
from pytest_ddpscale.run.transport_record import Transport

_TCP = "NET/Socket"
_RDMA = "NET/IB"  # by InfiniBand or RoCE
_INFINIBAND, _ETHERNET = "InfiniBand", "Ethernet"
_FEWEST_TO_COMPARE = 3
_NETWORKS = ("NET/", "COLLNET/")
_DETOURS = ("SHM", *_NETWORKS)  # through the host's memory, or out of the node


def transport(seen: NodeEvidence) -> Findings:
    """Ranks use the fastest available links.

    Between nodes: no TCP if any node has active InfiniBand, or RoCE that some rank uses; and as many active InfiniBand
    ports as most other nodes. Within a node: NVLink or P2P if the SKU has NVLinks.
    """
    ranks: dict[str, list[Transport]] = {}
    for one in seen.transports:
        ranks.setdefault(one.host, []).append(one)
    # If no measurement crosses nodes, judge each node by itself.
    across = _Across(ranks, seen.surveys, seen.hosts_planned if seen.expectation.crosses_nodes else 1)
    return {host: summed(_node(seen.expectation, host, of_host, across)) for host, of_host in ranks.items()}


class _Across:
    """Facts about all nodes together."""

    def __init__(self, ranks: Mapping[str, list[Transport]], surveys: Mapping[str, Survey], planned: int) -> None:
        self.surveys = surveys
        self.is_one_node = planned <= 1
        everybody = [one for of_host in ranks.values() for one in of_host]
        self.is_alone = planned <= 1 and len(everybody) == 1
        self.is_crossed = any(one.channels_between_nodes or _left(one, _NETWORKS) for one in everybody)
        # An Ethernet port may belong to the management network; it counts as RoCE only if NCCL uses RDMA somewhere.
        uses_rdma = any(name.startswith(_RDMA) for one in everybody for name in one.channels)
        self.fast = (_INFINIBAND, _ETHERNET) if uses_rdma else (_INFINIBAND,)
        self.has_fast_ports = any(_active_ports(survey, *self.fast) for survey in surveys.values())
        # Number of active InfiniBand ports of each node.
        self.infiniband = {
            host: len(_active_ports(survey, _INFINIBAND)) for host, survey in surveys.items() if not survey.problem
        }
        self.infiniband_sorted = sorted(self.infiniband.values())

    def leaves_node(self, one: Transport) -> dict[str, int]:
        """A rank's connections to other nodes; with several nodes also network connections to unknown peers."""
        return {} if self.is_one_node else dict(one.channels_between_nodes) | _left(one, _NETWORKS)

    def stays(self, one: Transport) -> dict[str, int]:
        """A rank's connections within its node; with one node, all of its connections."""
        return dict(one.channels_within_node) | (_left(one, _NETWORKS) if self.is_one_node else {})


def _node(expectation: NodeExpectation, host: str, ranks: Sequence[Transport], across: _Across) -> Iterator[Finding]:
    yield Finding(gpus=len(ranks))
    asked = expectation.gpus_per_node or 1
    if len(ranks) < asked:
        yield unknown(f"NCCL logged connections of {len(ranks)} of {asked} ranks")
    for one in ranks:
        yield _rank(expectation, one, across).at(GpuPlace(one.local_rank, one.device))
    if not across.is_one_node:
        yield from _between_nodes(host, ranks, across)


def _rank(expectation: NodeExpectation, one: Transport, across: _Across) -> Finding:
    """Judge one rank: whether its connections are known, and those within the node."""
    if one.problem:
        return unknown(one.problem)
    if one.unreadable:
        return unknown(f"unknown line in NCCL's log: {one.unreadable[0]}")
    if not one.channels and not one.nvls and not across.is_alone:
        return unknown("NCCL did not connect it to any other rank")
    detours = sorted(name for name in across.stays(one) if name.startswith(_DETOURS))
    if expectation.nvlinks and detours:
        return fault(f"reaches GPUs of its own node through {', '.join(detours)}; expected NVLink or P2P")
    return Finding()


def _between_nodes(host: str, ranks: Sequence[Transport], across: _Across) -> Iterator[Finding]:
    if not across.is_crossed:
        yield unknown("no rank communicated with another node")
        return
    used = {name for one in ranks for name in across.leaves_node(one)}
    without_rdma = sorted(name for name in used if name.startswith(_RDMA) and "GDRDMA" not in name)
    if without_rdma:
        yield note(f"{', '.join(without_rdma)} goes through host memory: no GPUDirect RDMA")
    if any(name.startswith(_TCP) for name in used):
        yield _tcp(host, across)
    yield _ports(host, across)


def _tcp(host: str, across: _Across) -> Finding:
    """Judge a node that uses TCP: a fault if it or another node has faster ports."""
    survey = across.surveys.get(host)
    if survey is None or survey.problem:
        return unknown("it uses TCP to other nodes, and its ports were not surveyed")
    active = _active_ports(survey, *across.fast)
    if active:
        are = "is" if len(active) == 1 else "are"
        return fault(f"uses TCP to other nodes although {', '.join(active)} {are} active")
    if across.has_fast_ports:
        states = _states(survey) or "it has none"
        return fault(f"uses TCP although other nodes have active InfiniBand or RoCE ports; here: {states}")
    ethernet = _active_ports(survey, _ETHERNET)
    return note(f"uses TCP to other nodes; could {', '.join(ethernet)} do RoCE?") if ethernet else Finding()


def _ports(host: str, across: _Across) -> Finding:
    """A fault if most other nodes have more active InfiniBand ports; NCCL silently uses fewer."""
    active = across.infiniband
    if host not in active:
        return Finding()  # the missing survey is reported by other checks
    more = across.infiniband_sorted[bisect_right(across.infiniband_sorted, active[host]) :]
    if not more or 2 * len(more) <= len(active) - 1:
        return Finding()
    states = _states(across.surveys[host]) or "it has none"
    text = f"{active[host]} InfiniBand ports are active; {len(more)} of {len(active) - 1} other nodes have {more[0]}"
    text += f"{' or more' if more[-1] > more[0] else ''}; here: {states}"
    return fault(text) if len(active) >= _FEWEST_TO_COMPARE else note(text)


def _left(one: Transport, names: tuple[str, ...]) -> dict[str, int]:
    return {name: count for name, count in one.channels_somewhere.items() if name.startswith(names)}


def _states(survey: Survey) -> str:
    """``mlx5_0:1 is ACTIVE, mlx5_1:1 is DOWN``; empty without ports."""
    return ", ".join(f"{port.device}:{port.port} is {port.state}" for port in survey.infiniband)


def _active_ports(survey: Survey, *link_layers: str) -> list[str]:
    """``mlx5_0:1 (InfiniBand)`` …"""
    return [
        f"{port.device}:{port.port} ({port.link_layer})"
        for port in survey.infiniband
        if port.link_layer in link_layers
        and port.state.rpartition(":")[2].strip().upper() == "ACTIVE"  # sysfs writes ``4: ACTIVE``
    ]
