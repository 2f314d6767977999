"""Whether GPUs and network cards are connected as on the other nodes (``nvidia-smi topo -m``)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from pytest_ddpscale.judge.finding import Finding, NodeEvidence, NodeFault, unknown
from pytest_ddpscale.judge.from_survey import Findings, looked_at
from pytest_ddpscale.util.listing import first_few

Connections = Mapping[tuple[str, str], str]

_DEVICE = re.compile(r"(GPU|NIC)\d+$")


def connections(matrix: str) -> Connections:
    """The connection of each pair of devices: ``{("GPU0", "GPU1"): "NV12", ("GPU0", "NIC0"): "PXB"}``.

    Args:
        matrix: output of ``nvidia-smi topo -m``; CPU and NUMA affinities and the legend are ignored.
    """
    rows = [line.split() for line in matrix.splitlines()]
    devices = next(([word for word in row if _DEVICE.match(word)] for row in rows if row), [])
    return {
        (row[0], other): how
        for row in rows
        if row and row[0] in devices and len(row) > len(devices)
        for other, how in zip(devices, row[1:], strict=False)
        if row[0] != other
    }


def topology(evidence: NodeEvidence) -> Findings:
    """Devices are connected as on most nodes; without a majority all nodes are at fault, none of them certain."""
    read = {host: connections(survey.topology) for host, survey in evidence.surveys.items()}
    found = {host: looked_at(survey) or _unread(read[host]) for host, survey in evidence.surveys.items()}
    known = {host: frozenset(each.items()) for host, each in read.items() if each}
    if len(set(known.values())) < 2:
        return found
    most, count = Counter(known.values()).most_common(1)[0]
    is_certain = 2 * count > len(known)
    for host, each in known.items():
        if each != most or not is_certain:
            text = _text(dict(each), dict(most), count, len(known))
            found[host] += Finding(faults=(NodeFault(text, is_certain=is_certain),))
    return found


def _unread(found: Connections) -> Finding:
    return Finding() if found else unknown("nvidia-smi topo -m printed no topology")


def _text(found: Connections, usual: Connections, count: int, nodes: int) -> str:
    """``GPU0–GPU3 SYS instead of NV12, …; 15 of 16 nodes agree``."""
    odd = [
        f"{one}–{other} {found.get((one, other), 'missing')} instead of {usual.get((one, other), 'nothing')}"
        for one, other in sorted(found.keys() | usual.keys())
        if found.get((one, other)) != usual.get((one, other)) and one < other
    ]
    return f"{first_few(odd) or 'one of several'}; {count} of {nodes} nodes agree"
