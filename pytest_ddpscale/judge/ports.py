"""Bounds between nodes from the line rates of the ports that their GPUs are nearest to.

What is published between nodes was reached over another network. But each node tells how fast its ports are and which
GPUs are nearest to them, and NCCL reaches 46 to 49 of the 50 GB/s of a port of 400 Gbit/s, NDR or RoCE. So messages
between nodes have to reach 0.7 of that, and an all-reduce over nodes 0.6 of what all GPUs of a node have. Most GPUs
count: a port that came up slower than the others fails. Where ports differ at the same distance a GPU counts with the
slowest alone, because another one may serve storage; and no port is faster than the PCIe link of the GPU, nor counts
where NCCL_IB_HCA leaves it out.

No port counts if NCCL goes over TCP, or is not known to go over ports at all. All-reduce counts only where GPUs of a
node are joined by NVLink, which carries more than its ports, and where messages are long for so many ranks. A row
that rejects stays as it is: a site sets one that knows its network, such as one with fewer uplinks than ports.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from itertools import chain
from statistics import median_low

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.variables import is_selected
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.table import once
from pytest_ddpscale.thresholds.cases import NodeCase
from pytest_ddpscale.thresholds.model import Source

_SHARES = {"send-recv": 0.7, "all-reduce": 0.6}
_LONG_BYTES = 4 * 2**20  # of a message, for each rank that it passes
_DISTANCES = ("PIX", "PXB", "PHB", "NODE", "SYS")  # as nvidia-smi calls them, the nearest first
_LEGEND = re.compile(r"(NIC\d+): (\S+)")
_LANE_GBPS = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.97, 5: 3.94, 6: 7.56}  # of PCIe, by generation


def bound_by_ports(case: NodeCase, probe: Arm, evidence: Evidence) -> NodeCase | None:
    """The requirement, which only warns, with the bound that the ports give it; None if they give none."""
    kind, layout, asked = probe.operation.kind, evidence.plan.layout, case.requirement
    is_ring, share, whose = kind == "all-reduce", _SHARES.get(kind, 0.0), layout.ranks_per_node
    used = {name for one in evidence.transports.values() for name in one.channels_between_nodes}
    is_long = (probe.operation.message_bytes or 0) >= _LONG_BYTES * (probe.world_size if is_ring else 2)
    if asked.severity == "fail" or not is_long or layout.fits_node(probe) or probe.world_size % whose:
        return None
    if not share or not used or any(name.startswith("NET/Socket") for name in used):
        return None
    gbps = port_gbps(evidence, is_ring) * (whose if is_ring else 1)
    if not gbps:
        return None
    source = Source(reference=f"{share} of {gbps:g} GB/s, the line rate of the ports that carry it")
    bound = round(share * gbps, 6)
    by_ports = replace(asked, bound=bound, source=source, severity="fail", provisional=False, sound=None)
    return replace(case, requirement=by_ports)


@once
def port_gbps(evidence: Evidence, is_ring: bool) -> float:
    """What most GPUs have of their ports, in GB/s; 0 if it is not known, or NVLink does not join a ring of them."""
    found = list[float]()
    chosen = {place.host: one.variables.get("NCCL_IB_HCA", "") for place, one in evidence.transports.items()}
    for survey in evidence.surveys.values():
        cells, names, gbps = survey.connections, dict(_LEGEND.findall(survey.topology)), dict[str, float]()
        for port in survey.infiniband:
            if port.state.endswith("ACTIVE") and is_selected(port.device, chosen.get(survey.host, "")):
                gbps[port.device] = min(gbps.get(port.device, math.inf), (port.rate_gbps or 0.0) / 8)
        of_links = {
            f"GPU{gpu.index}": _LANE_GBPS.get(gpu.pcie_generation_max or 0, math.inf) * (gpu.pcie_width_max or 16)
            for gpu in survey.gpus
            if gpu.local_rank is not None
        }
        gpus, near = of_links.keys(), list[list[str]]()
        for gpu in gpus:
            ways = {names.get(end, end): cell for (one, end), cell in cells.items() if one == gpu}
            at = ([port for port in gbps if ways.get(port) == way] for way in _DISTANCES)
            near.append(next(filter(None, at), []))
        inside = {cell for (one, other), cell in cells.items() if one != other and {one, other} <= gpus}
        is_slower = is_ring and not all(cell.startswith("NV") for cell in inside)
        share = min(1.0, len({*chain(*near)}) / max(1, len(gpus))) * (not is_slower)
        of_ports = (share * min((gbps[one] for one in ports), default=0.0) for ports in near)
        found += map(min, of_ports, of_links.values())
    return median_low(found or [0.0])
