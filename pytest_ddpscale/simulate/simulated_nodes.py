"""Surveys and telemetry of simulated nodes: as the SKU expects them, except for faults."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from pytest_ddpscale import __version__
from pytest_ddpscale.plan.hardware import NEWEST_TRIED, is_named
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.node_check import NodeExpectation
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.plan.words import DeviceType
from pytest_ddpscale.run.block import Block
from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.records import GangRecord, GangTransport, Rank, RankTransport
from pytest_ddpscale.run.run_json import SIMULATED_DEVICE
from pytest_ddpscale.run.strict_json import column
from pytest_ddpscale.run.survey_record import InfiniBandPort, RemappedRows, Survey, SurveyedGpu
from pytest_ddpscale.run.telemetry import TelemetryBlock
from pytest_ddpscale.simulate.faults import LANES_LEFT, Faults
from pytest_ddpscale.simulate.measuring import GANG

_GIB = 2**30
_PLENTY_BYTES = 2**40
_CAPABILITY, _ARCHITECTURE = "9.0", "sm_90"  # any pair that matches
_UNCORRECTABLE = 3
HELD_DOWN_BY = "hw_thermal_slowdown"
_WITHIN_NODE, _BETWEEN_NODES = "P2P/CUMEM", "NET/IB/GDRDMA"
VERSIONS: dict[str, str | None] = {
    "driver": "580.0", "cuda_driver": "13.0", "torch": ".".join(map(str, NEWEST_TRIED)), "cuda": "13.0", "nccl": "2.28",
    "python": platform.python_version(), "pytest_ddpscale": __version__, "kernel": "simulated",
}  # fmt: skip


def host_name(node: int) -> str:
    """Host name of a simulated node."""
    return f"simulated-{node}"


def device_id(rank: int, device_type: DeviceType) -> str:
    """UUID of a simulated GPU; ``cpu`` on CPUs."""
    return f"{SIMULATED_DEVICE}{rank}" if device_type == "cuda" else "cpu"


def surveys(expectation: NodeExpectation, faults: Faults, port_gbps: float | None = None) -> Iterator[Survey]:
    """The survey of each node, before anything is launched; `port_gbps` is the line rate of a port in Gb/s."""
    per_node = faults.layout.ranks_per_node
    name, has_gpus = name_of_pattern(expectation.name_pattern or ""), expectation.device_type == "cuda"
    for node in range(faults.layout.nodes):
        ranks = range(node * per_node, (node + 1) * per_node)
        yield Survey(
            host=host_name(node),
            unix_s=0.0,
            has_driver=has_gpus,
            gpus=tuple(_gpu(rank, name, expectation, faults) for rank in ranks) if has_gpus else (),
            cores=8 * per_node,
            versions=VERSIONS,
            arch_list=(_ARCHITECTURE,),
            free_bytes=dict.fromkeys(("run_directory", "shared_memory", "temporary"), _PLENTY_BYTES),
            infiniband=tuple(
                InfiniBandPort(f"mlx5_{i}", 1, "4: ACTIVE", "InfiniBand", port_gbps) for i in range(per_node)
            ),
            topology=_topology(per_node, expectation.nvlinks or 0) if has_gpus else "",
        )


def _topology(gpus: int, nvlinks: int) -> str:
    """``nvidia-smi topo -m`` of GPUs that are all joined by NVLink, or else are in two sockets, with a port each."""
    names = [f"{kind}{i}" for kind in ("GPU", "NIC") for i in range(gpus)]

    def cell(one: int, other: int) -> str:
        near = "NODE" if (one % gpus < gpus / 2) == (other % gpus < gpus / 2) else "SYS"
        near = "PIX" if one % gpus == other % gpus else f"NV{nvlinks}" if nvlinks and max(one, other) < gpus else near
        return "X" if one == other else near

    rows = ["\t".join([name, *(cell(one, other) for other in range(2 * gpus))]) for one, name in enumerate(names)]
    return "\n".join(["\t" + "\t".join(names), *rows, *(f"NIC{i}: mlx5_{i}" for i in range(gpus))])


def _gpu(rank: int, name: str, expected: NodeExpectation, faults: Faults) -> SurveyedGpu:
    lanes = round((expected.pcie_width or 16) * (LANES_LEFT if rank in faults.bad_gpus("lanes") else 1))
    generation, nvlinks = expected.pcie_generation or 4, expected.nvlinks or 0
    index, is_bad = rank % faults.layout.ranks_per_node, rank in faults.bad_gpus("ecc")
    return SurveyedGpu(
        index=index,
        uuid=device_id(rank, expected.device_type),
        name=name,
        pci_bus_id=f"00000000:{index:02X}:00.0",
        pci_device_id=expected.pci_device_ids[0] if expected.pci_device_ids else "",
        local_rank=index,
        compute_capability=_CAPABILITY,
        memory_bytes=round(sum(expected.memory_gib) / 2 * _GIB) if expected.memory_gib else None,
        mig_enabled=False,
        ecc_enabled=expected.ecc is not False,
        ecc_corrected=0,
        ecc_uncorrected=_UNCORRECTABLE if is_bad else 0,
        remapped_rows=RemappedRows(0, pending=False, failed=False),
        throttle_reasons=(HELD_DOWN_BY,) if rank in faults.bad_gpus("clock") else (),
        pcie_generation=generation,
        pcie_generation_max=generation,
        pcie_generation_gpu_max=generation,
        pcie_width=lanes,
        pcie_width_max=lanes,
        nvlinks_active=max(0, nvlinks - 1) if rank in faults.bad_gpus("nvlink") else nvlinks,
        nvlinks=nvlinks,
        processes=(),
        unreadable={"retired_pages_pending": "Not Supported"},
    )


def gang_of(plan: Plan, device_name: str = "") -> GangRecord:
    """The ranks of the gang."""
    per_node, ranks = plan.layout.ranks_per_node, range(plan.layout.world_size)
    places = (
        Place(host_name(rank // per_node), rank % per_node, device_id(rank, plan.device_type), rank % per_node)
        for rank in ranks
    )
    first, *others = (Rank(place=place, device_name=device_name) for place in places)
    return GangRecord(gang=GANG, ranks=(replace(first, versions=VERSIONS), *others))


def transports(study_id: str, expectation: NodeExpectation, layout: Layout) -> GangTransport:
    """NCCL's connections of the ranks after a study."""
    within = {_WITHIN_NODE: 16} if layout.ranks_per_node > 1 else {}
    between = {_BETWEEN_NODES: 4} if layout.nodes > 1 and expectation.crosses_nodes else {}
    of_rank = RankTransport(
        rank=0, network="IB", channels=within | between, channels_within_node=within, channels_between_nodes=between
    )
    ranks = tuple(replace(of_rank, rank=rank) for rank in range(layout.world_size))
    return GangTransport(study=study_id, gang=GANG, ranks=ranks)


def telemetry_of_turns(turns: Sequence[Block], expectation: NodeExpectation, faults: Faults) -> TelemetryBlock:
    """Telemetry of the GPUs during all turns of an arm in one round."""
    block = turns[0]
    ranks = np.concatenate([turn.each("ranks") for turn in turns]).tolist()
    started_s, lasted_s = (np.concatenate([turn.each(name) for turn in turns]) for name in ("began_unix_s", "seconds"))
    busy = block.each("utilization") if "utilization" in block.readings else np.ones(1)
    few_lanes, held_down = faults.bad_gpus("lanes"), faults.bad_gpus("clock")
    lanes, slow = expectation.pcie_width or 16, {HELD_DOWN_BY: 1.0}
    few = round(lanes * LANES_LEFT)
    ended = np.round(started_s + lasted_s, 3)
    columns: dict[str, Any] = {
        "started_unix_s": column(started_s.tolist()),
        "ended_unix_s": tuple(ended.tolist()),
        "utilization": column(busy.tolist()),
        "throttle_reasons": column(slow if rank in held_down else {} for rank in ranks) if held_down else {},
        "pcie_width": column(few if rank in few_lanes else lanes for rank in ranks) if few_lanes else lanes,
    }
    return TelemetryBlock(
        study=block.study,
        arm=block.arm,
        round=block.round,
        gang=block.gang,
        ranks=tuple(ranks),
        polls=1,
        ecc_corrected=0,
        ecc_uncorrected=0,
        pcie_generation=expectation.pcie_generation or 4,
        unreadable={"power_w": "not simulated"},
        **columns,
    )


def name_of_pattern(pattern: str) -> str:
    """A device name that matches a SKU's pattern, with the first of each choice; empty if that does not match."""
    text = re.sub(r"\[(\\?.)[^\]]*\]", r"\1", pattern.removeprefix("^").removesuffix("$"))
    before = ""
    while text != before:
        before, text = text, re.sub(r"\((?:\?:)?([^()|]*)(?:\|[^()]*)?\)\??", r"\1", text)
    text = re.sub(r"(\\.|[^\\])[?*+]", r"\1", text.partition("|")[0])
    text = re.sub(r"\\(.)", r"\1", text.replace(r"\d", "0"))
    return text if is_named(text, pattern) else ""
