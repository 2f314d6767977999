"""A simulated run as records of a run directory, marked as simulated: nodes are as the SKU expects but for faults."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import groupby
from typing import Any

import numpy as np
from msgspec.structs import replace

from pytest_ddpscale import __version__
from pytest_ddpscale.errors import RunDirectoryError, WritingError
from pytest_ddpscale.plan.hardware import NEWEST_TRIED, is_named
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.node_check import NodeExpectation
from pytest_ddpscale.plan.pairing import PAIRS
from pytest_ddpscale.plan.study import Plan, ProbeStudy, Study
from pytest_ddpscale.plan.words import DeviceType
from pytest_ddpscale.run.block import Block
from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.record_lines import AnyRecord
from pytest_ddpscale.run.records import GangRecord, GangTransport, Rank, RankTransport, RunStart, StudyEnd
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.run_json import SIMULATED_DEVICE, RunRecord, Simulation, ThresholdsUsed, now_iso
from pytest_ddpscale.run.strict_json import column, strict_json
from pytest_ddpscale.run.survey_record import InfiniBandPort, RemappedRows, Survey, SurveyedGpu
from pytest_ddpscale.run.telemetry import TelemetryBlock
from pytest_ddpscale.simulate.cluster import SimulatedCluster
from pytest_ddpscale.simulate.measuring import GANG, LANES_LEFT, Faults, SimulatedRun
from pytest_ddpscale.simulate.options import GPU_FAULTS
from pytest_ddpscale.util.arrays import BoolArray
from pytest_ddpscale.util.masking import masked_arguments

_GIB = 2**30
_PLENTY_BYTES = 2**40
_CAPABILITY, _ARCHITECTURE = "9.0", "sm_90"  # any pair that matches
HELD_DOWN_BY = "hw_thermal_slowdown"
VERSIONS: dict[str, str | None] = {
    "driver": "580.0", "cuda_driver": "13.0", "torch": ".".join(map(str, NEWEST_TRIED)), "cuda": "13.0", "nccl": "2.28",
    "python": platform.python_version(), "pytest_ddpscale": __version__, "kernel": "simulated",
}  # fmt: skip


def write_simulated_run(
    run: RunDirectory, cluster: SimulatedCluster, simulated: SimulatedRun, argv: Sequence[str] = ()
) -> None:
    """Write plan.json, measurements.jsonl and, last, run.json, because that makes a directory a run.

    Records are written as they are made, so that memory does not grow with the number of rounds.

    Raises:
        RunDirectoryError: the directory cannot be written.
    """
    started_at, expectation = now_iso(), cluster.expectation(simulated.plan)
    faults = tuple(fault.text for fault in simulated.faults.faults)
    parameters, file = simulated.performance.parameters, cluster.thresholds
    simulation = Simulation(gpus=cluster.gpus, seed=simulated.seed, faults=faults, model=parameters)
    run_id = sha256(strict_json(simulation).encode()).hexdigest()[:32]
    try:
        run.write_json(run.plan_json, simulated.plan)
        run.append_record(RunStart(id=run_id))
        for _, alike in groupby(records(simulated, cluster), lambda record: isinstance(record, Block) and record.key):
            written = list(alike)
            turns = [record for record in written if isinstance(record, Block) and record.study != PAIRS]
            if cluster.is_watched and turns:
                written.insert(0, telemetry_of_turns(turns, expectation, simulated.faults))
            run.append_records(written)
        record = RunRecord(
            sku=cluster.sku,
            id=run_id,
            status="simulated",
            simulated=True,
            simulation=simulation,
            started_at=started_at,
            finished_at=now_iso(),
            argv=tuple(masked_arguments(argv)),
            thresholds=ThresholdsUsed(
                str(file.path.absolute()), file.sha256, tuple(ThresholdsUsed(*file) for file in file.extended)
            ),
            versions={"python": platform.python_version(), "pytest_ddpscale": __version__},
            devices_present=cluster.gpus,
            notes=(f"simulated faults: {', '.join(faults) or 'none'}",),
        )
        run.write_json(run.run_json, record)
    except WritingError as error:
        action = f"Remove {run.path}, and simulate into another directory."
        raise RunDirectoryError(error.where, error.found, error.expected, action) from None


def records(run: SimulatedRun, cluster: SimulatedCluster) -> Iterator[AnyRecord]:
    """Every record but telemetry, in the order of a real run."""
    yield from before_measuring(run, cluster)
    if run.plan.probes is not None:
        yield from measured(run, run.plan.probes)
    for study in run.plan.studies:
        yield from measured(run, study)
    yield from after_training(run, cluster)


def measured(run: SimulatedRun, study: Study | ProbeStudy) -> Iterator[AnyRecord]:
    """All rounds of a study."""
    yield from run.before_rounds(study)
    for number in range(study.rounds):
        yield from run.measure_round(study, number, study.arms)
    yield StudyEnd(study=study.id, reason="rounds")


def before_measuring(run: SimulatedRun, cluster: SimulatedCluster) -> Iterator[AnyRecord]:
    """Surveys and the gang."""
    if run.plan.survey:
        yield from surveys(cluster.expectation(run.plan), run.faults, cluster.port_gbps(run.plan))
    yield gang_of(run.plan, f"simulated {cluster.sku}")


def after_training(run: SimulatedRun, cluster: SimulatedCluster) -> Iterator[AnyRecord]:
    """Pairs of nodes, and NCCL's connections of the ranks."""
    plan = run.plan
    if plan.pairs is not None:
        yield from run.search_pairs(plan.pairs)
    if plan.device_type == "cuda":
        yield transports(plan.study_ids[-1], cluster.expectation(plan), plan.layout)


def host_name(node: int) -> str:
    """Host name of a simulated node."""
    return f"simulated-{node}"


def _device_id(rank: int, device_type: DeviceType) -> str:
    """UUID of a simulated GPU; ``cpu`` on CPUs."""
    return f"{SIMULATED_DEVICE}{rank}" if device_type == "cuda" else "cpu"


def surveys(expectation: NodeExpectation, faults: Faults, port_gbps: float | None = None) -> Iterator[Survey]:
    """The survey of each node, before anything is launched; `port_gbps` is the line rate of a port in Gb/s."""
    per_node, has_gpus = faults.layout.ranks_per_node, expectation.device_type == "cuda"
    name, bad = (
        name_of_pattern(expectation.name_pattern or ""),
        {fault: faults.struck("bad-gpu", fault) for fault in GPU_FAULTS},
    )
    for node in range(faults.layout.nodes):
        indices = range(per_node)
        yield Survey(
            host=host_name(node),
            unix_s=0.0,
            has_driver=has_gpus,
            gpus=tuple(_gpu(node * per_node + i, i, name, expectation, bad) for i in indices) if has_gpus else (),
            cores=8 * per_node,
            versions=VERSIONS,
            arch_list=(_ARCHITECTURE,),
            free_bytes=dict.fromkeys(("run_directory", "shared_memory", "temporary"), _PLENTY_BYTES),
            infiniband=tuple(InfiniBandPort(f"mlx5_{i}", 1, "4: ACTIVE", "InfiniBand", port_gbps) for i in indices),
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


def _gpu(rank: int, index: int, name: str, expected: NodeExpectation, bad: Mapping[str, BoolArray]) -> SurveyedGpu:
    lanes = round((expected.pcie_width or 16) * (LANES_LEFT if bad["lanes"][rank] else 1))
    generation, nvlinks = expected.pcie_generation or 4, expected.nvlinks or 0
    return SurveyedGpu(
        index=index,
        uuid=_device_id(rank, expected.device_type),
        name=name,
        pci_bus_id=f"00000000:{index:02X}:00.0",
        pci_device_id=expected.pci_device_ids[0] if expected.pci_device_ids else "",
        local_rank=index,
        compute_capability=_CAPABILITY,
        memory_bytes=round(sum(expected.memory_gib) / 2 * _GIB) if expected.memory_gib else None,
        mig_enabled=False,
        ecc_enabled=expected.ecc is not False,
        ecc_corrected=0,
        ecc_uncorrected=3 if bad["ecc"][rank] else 0,
        remapped_rows=RemappedRows(0, pending=False, failed=False),
        throttle_reasons=(HELD_DOWN_BY,) if bad["clock"][rank] else (),
        pcie_generation=generation,
        pcie_generation_max=generation,
        pcie_generation_gpu_max=generation,
        pcie_width=lanes,
        pcie_width_max=lanes,
        nvlinks_active=max(0, nvlinks - int(bad["nvlink"][rank])),
        nvlinks=nvlinks,
        processes=(),
        unreadable={"retired_pages_pending": "Not Supported"},
    )


def gang_of(plan: Plan, device_name: str = "") -> GangRecord:
    """The ranks of the gang."""
    per_node, ranks = plan.layout.ranks_per_node, range(plan.layout.world_size)
    places = (
        Place(host_name(rank // per_node), rank % per_node, _device_id(rank, plan.device_type), rank % per_node)
        for rank in ranks
    )
    first, *others = (Rank(place=place, device_name=device_name) for place in places)
    return GangRecord(gang=GANG, ranks=(replace(first, versions=VERSIONS), *others))


def transports(study_id: str, expectation: NodeExpectation, layout: Layout) -> GangTransport:
    """NCCL's connections of the ranks after a study."""
    within = {"P2P/CUMEM": 16} if layout.ranks_per_node > 1 else {}
    between = {"NET/IB/GDRDMA": 4} if layout.nodes > 1 and expectation.crosses_nodes else {}
    of_rank = RankTransport(
        rank=0, network="IB", channels=within | between, channels_within_node=within, channels_between_nodes=between
    )
    ranks = tuple(replace(of_rank, rank=rank) for rank in range(layout.world_size))
    return GangTransport(study=study_id, gang=GANG, ranks=ranks)


def telemetry_of_turns(turns: Sequence[Block], expectation: NodeExpectation, faults: Faults) -> TelemetryBlock:
    """Telemetry of the GPUs during all turns of an arm in one round."""
    block, lanes = turns[0], expectation.pcie_width or 16
    ranks, started_s, lasted_s = (
        np.concatenate([turn.each(name) for turn in turns]) for name in ("ranks", "began_unix_s", "seconds")
    )
    busy = block.each("utilization") if "utilization" in block.readings else np.ones(1)
    few_lanes, held_down = (faults.struck("bad-gpu", fault)[ranks] for fault in ("lanes", "clock"))
    columns: dict[str, Any] = {
        "started_unix_s": column(started_s.tolist()),
        "ended_unix_s": tuple(np.round(started_s + lasted_s, 3).tolist()),
        "utilization": column(busy.tolist()),
        "throttle_reasons": column({HELD_DOWN_BY: 1.0} if held else {} for held in held_down),
        "pcie_width": column(np.where(few_lanes, round(lanes * LANES_LEFT), lanes).tolist()),
    }
    return TelemetryBlock(
        study=block.study,
        arm=block.arm,
        round=block.round,
        gang=block.gang,
        ranks=tuple(ranks.tolist()),
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
