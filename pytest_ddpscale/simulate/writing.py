"""A simulated run as records of a run directory, marked as simulated."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import groupby

from pytest_ddpscale import __version__
from pytest_ddpscale.errors import RunDirectoryError
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.pairing import PAIRS, PairStudy
from pytest_ddpscale.plan.study import ProbeStudy
from pytest_ddpscale.run.block import Block
from pytest_ddpscale.run.record_lines import AnyRecord, line_of
from pytest_ddpscale.run.records import RoundEnd, RunStart, StudyEnd, StudyStart
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.run_json import RunRecord, Simulation, ThresholdsUsed, now_iso
from pytest_ddpscale.run.strict_json import strict_json
from pytest_ddpscale.simulate.measuring import SimulatedRun
from pytest_ddpscale.simulate.simulated_cluster import SimulatedCluster
from pytest_ddpscale.simulate.simulated_nodes import gang_of, surveys, telemetry_of_turns, transports
from pytest_ddpscale.simulate.simulated_probes import measure_probes, search_pairs
from pytest_ddpscale.util.masking import masked_arguments


def write_simulated_run(
    run: RunDirectory, cluster: SimulatedCluster, simulated: SimulatedRun, argv: Sequence[str] = ()
) -> None:
    """Write plan.json, measurements.jsonl and, last, run.json.

    Records are written as they are made, so that memory does not grow with the number of rounds.

    Raises:
        RunDirectoryError: the directory cannot be written.
    """
    started_at, expectation = now_iso(), cluster.expectation(simulated.plan)
    said = tuple(fault.text for fault in simulated.faults.faults)
    parameters = simulated.performance.parameters
    simulation = Simulation(gpus=cluster.gpus, seed=simulated.seed, faults=said, model=parameters)
    start = RunStart(id=sha256(strict_json(simulation).encode()).hexdigest()[:32])
    try:
        run.write_json(run.plan_json, simulated.plan)
        with run.measurements_jsonl.open("wb") as file:
            file.write(line_of(start))
            for _, alike in groupby(records(simulated, cluster), lambda one: isinstance(one, Block) and one.key):
                written = list(alike)
                turns = [one for one in written if isinstance(one, Block) and one.study != PAIRS]
                if cluster.is_watched and turns:
                    written.insert(0, telemetry_of_turns(turns, expectation, simulated.faults))
                file.write(b"".join(map(line_of, written)))
        # Last, because run.json makes a directory a run.
        run.write_json(run.run_json, _run_record(cluster, simulation, start, started_at, argv))
    except OSError as error:
        raise RunDirectoryError(
            str(run.path), f"cannot be written ({error.strerror or error})", "a writable directory with space left",
            f"Remove {run.path}, and simulate into another directory.",
        ) from None  # fmt: skip


def _run_record(
    cluster: SimulatedCluster, simulation: Simulation, start: RunStart, started_at: str, argv: Sequence[str]
) -> RunRecord:
    return RunRecord(
        sku=cluster.sku,
        id=start.id,
        status="simulated",
        simulated=True,
        simulation=simulation,
        started_at=started_at,
        finished_at=now_iso(),
        argv=tuple(masked_arguments(argv)),
        thresholds=ThresholdsUsed(
            str(cluster.thresholds.path.absolute()),
            cluster.thresholds.sha256,
            tuple(ThresholdsUsed(path, sha256) for path, sha256 in cluster.thresholds.extended),
        ),
        versions={"python": platform.python_version(), "pytest_ddpscale": __version__},
        devices_present=cluster.gpus,
        notes=(f"simulated faults: {', '.join(simulation.faults) or 'none'}",),
    )


def records(run: SimulatedRun, cluster: SimulatedCluster) -> Iterator[AnyRecord]:
    """Every record but telemetry, in the order of a real run."""
    plan = run.plan
    yield from before_training(run, cluster)
    for study in plan.studies:
        yield from run.before_rounds(study)
        for number in range(study.rounds):
            yield from run.measure_round(study, number, study.arms)
        yield StudyEnd(study=study.id, reason="rounds")
    yield from after_training(run, cluster)


def before_training(run: SimulatedRun, cluster: SimulatedCluster) -> Iterator[AnyRecord]:
    """Surveys, the gang, and probes."""
    plan = run.plan
    if plan.survey:
        yield from surveys(cluster.expectation(plan), run.faults, cluster.port_gbps(plan))
    yield gang_of(plan, f"simulated {cluster.sku}")
    if plan.probes is not None:
        yield from _probes(run, plan.probes, cluster.probe_values(plan.probes.arms))


def after_training(run: SimulatedRun, cluster: SimulatedCluster) -> Iterator[AnyRecord]:
    """Pairs of nodes, and NCCL's connections of the ranks."""
    plan = run.plan
    if plan.pairs is not None:
        yield from _pairs(run, plan.pairs)
    if plan.device_type == "cuda":
        yield transports(plan.study_ids[-1], cluster.expectation(plan), plan.layout)


def _probes(run: SimulatedRun, study: ProbeStudy, reached: Mapping[Arm, float]) -> Iterator[AnyRecord]:
    yield StudyStart(study=study.id, unix_s=round(run.clock_s, 3))
    names = tuple(probe.name for probe in study.arms)
    for number in range(study.rounds):
        yield from measure_probes(run, study, number, reached)
        yield RoundEnd(study=study.id, round=number, arms=names)
    yield StudyEnd(study=study.id, reason="rounds")


def _pairs(run: SimulatedRun, study: PairStudy) -> Iterator[AnyRecord]:
    yield StudyStart(study=study.id, unix_s=round(run.clock_s, 3))
    reason = yield from search_pairs(run, study)
    yield StudyEnd(study=study.id, reason=reason)
