"""A run on two nodes of two GPUs in which all is well, and what becomes of it after a change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, TypeVar

import msgspec
import pytest

from pytest_ddpscale.errors import RunDirectoryError
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.plan.study import Plan, ProbeStudy
from pytest_ddpscale.run.block import Block, step_bytes
from pytest_ddpscale.run.column_record import joined
from pytest_ddpscale.run.evidence import Evidence, read_evidence
from pytest_ddpscale.run.readings import STEP_S
from pytest_ddpscale.run.record_lines import AnyRecord
from pytest_ddpscale.run.records import RoundEnd, SeededSteps, StudyEnd, WorkloadFlops
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.run_record import start_run
from pytest_ddpscale.run.telemetry import GpuReadings, TelemetryBlock
from pytest_ddpscale.run.transport_record import GangTransport, RankTransport
from tests.builders.json_types import as_json
from tests.builders.judged import make_case
from tests.builders.probes import measure_probe, steady
from tests.builders.records import blocks_of, gang_of, probe_blocks_of
from tests.judge.nodes import measure_nodes, nodes_evidence, plan_of_nodes

Records = list[AnyRecord]
Change = Callable[[Records], Records]
Kind = TypeVar("Kind", bound=msgspec.Struct)
NODES, PER_NODE, ROUNDS = 2, 2, FEWEST_ROUNDS + 2
RANKS = NODES * PER_NODE
PROBES = (Arm("matmul-bf16"), Arm("send-recv-256mib", 2), Arm("all-reduce-32mib", 4), Arm("all-gather-32mib", 2))
PLAN = replace(
    plan_of_nodes(
        [
            *(make_case("weak_scaling_efficiency", 0.9, ranks) for ranks in (PER_NODE, RANKS)),
            make_case("inference_throughput", 0.9, PER_NODE),
        ],
        NODES,
        PER_NODE,
    ),
    probes=ProbeStudy(PROBES, 16, 0.5),
)
(STUDY,) = PLAN.studies
ARMS = [arm.name for arm in sorted(STUDY.arms, key=lambda arm: (arm.world_size, arm.kind == "ddp"))]
FEWER = ARMS[:-1]  # after `FEWEST_ROUNDS`


@cache
def sound() -> Sequence[AnyRecord]:
    """All that rank 0 writes; the last rounds leave out an arm, and a probe."""
    measured = measure_nodes(PLAN, rounds=ROUNDS)
    probed = {probe.name: measure_probe(PLAN, probe, steady(100.0), ROUNDS) for probe in PROBES}
    steps = tuple(nodes_evidence(PLAN, ()).seeded_steps[STUDY.id].values())
    who = gang_of(measured)
    records: Records = [who]
    for number in range(ROUNDS):
        ids = list(probed)[number >= FEWEST_ROUNDS :]
        for name in ids:
            records += probe_blocks_of([one for one in probed[name] if one.round == number])
        records.append(RoundEnd(study="probes", round=number, arms=tuple(ids)))
    records += [StudyEnd(study="probes", reason="decided"), SeededSteps(study=STUDY.id, gang=0, ranks=steps)]
    records.append(WorkloadFlops(study=STUDY.id, flops_per_sample=1e9))
    for number in range(ROUNDS):
        arms = FEWER if number >= FEWEST_ROUNDS else ARMS
        records += blocks_of([one for one in measured if one.round == number and one.arm in arms])
        records.append(RoundEnd(study=STUDY.id, round=number, arms=tuple(arms)))
    transports = tuple(RankTransport(rank=rank) for rank in range(RANKS))
    pairs = Block(
        study="pairs", arm="all-reduce-32mib@2", round=0, gang=0, ranks=(0, 2, 1, 3), groups=(0, 0, 1, 1), count=20,
        work=float(2**25), began_unix_s=1.7e9, seconds=0.2, series={STEP_S: step_bytes([0.01] * 20 * RANKS)},
    )  # fmt: skip
    ends = [StudyEnd(study=STUDY.id, reason="decided"), StudyEnd(study="pairs", reason="decided")]
    return [*records, GangTransport(study=STUDY.id, gang=0, ranks=transports), ends[0], pairs, ends[1]]


def telemetry_of(records: Sequence[AnyRecord]) -> list[TelemetryBlock]:
    """What GPUs said while they were trained."""
    return [
        joined(
            TelemetryBlock, [GpuReadings(started_unix_s=block.began_unix_s, ended_unix_s=2e9)] * len(block.ranks),
            study=block.study, arm=block.arm, round=block.round, gang=block.gang, ranks=block.ranks,
        )
        for block in records
        if isinstance(block, Block) and block.study == STUDY.id and isinstance(block.began_unix_s, float)
    ]  # fmt: skip


def read(
    folder: Path,
    change: Change = list,
    plan: Plan = PLAN,
    run_json: dict[str, Any] | None = None,
    *,
    is_watched: bool = True,
) -> Evidence:
    """The evidence of the run after a change to its records."""
    folder.mkdir(exist_ok=True)
    run = RunDirectory.create(Path(mkdtemp(dir=folder)) / "run")
    start_run(run, plan.sku, (), folder, "ab" * 32)
    run.write_json(run.run_json, as_json(run.read_run()) | (run_json or {}))
    run.write_json(run.plan_json, plan)
    records = list(sound())
    run.append_records([*change(records), *(telemetry_of(records) if is_watched else ())])
    return read_evidence(run)


def refusal(folder: Path, change: Change = list, plan: Plan = PLAN, **options: Any) -> str:
    """What is said of it; a test fails if nothing is."""
    with pytest.raises(RunDirectoryError) as raised:
        read(folder, change, plan, **options)
    return str(raised.value)


def changed(kind: type[Kind], where: Callable[[Kind], bool] = lambda one: True, **changes: Any) -> Change:
    """Changes the first record of a kind that is so."""

    def change(records: Records) -> Records:
        place = next(i for i, one in enumerate(records) if isinstance(one, kind) and where(one))
        return [*records[:place], msgspec.structs.replace(records[place], **changes), *records[place + 1 :]]

    return change


def again(kind: type[Kind], where: Callable[[Kind], bool] = lambda one: True, **changes: Any) -> Change:
    """Adds the first record of a kind that is so once more, changed."""

    def change(records: Records) -> Records:
        found = next(one for one in records if isinstance(one, kind) and where(one))
        return [*records, msgspec.structs.replace(found, **changes)]

    return change


def without(kind: type[Kind], where: Callable[[Kind], bool] = lambda one: True) -> Change:
    """Drops the first record of a kind that is so."""

    def change(records: Records) -> Records:
        place = next(i for i, one in enumerate(records) if isinstance(one, kind) and where(one))
        return [*records[:place], *records[place + 1 :]]

    return change
