"""What each place reached in a run: the few numbers that are worth comparing with those of other nights."""

from __future__ import annotations

import hashlib
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pytest_ddpscale.evidence.evidence import Evidence
from pytest_ddpscale.metrics.probes import places
from pytest_ddpscale.metrics.rounds import group_rounds
from pytest_ddpscale.plan.metric import METRICS
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.plan.probe import Probe
from pytest_ddpscale.plan.study import Arm, Plan, Study
from pytest_ddpscale.results.probe_record import ProbeMeasurement
from pytest_ddpscale.results.records import Measurement, strict_json

THROUGHPUT = "throughput_per_gpu"
_CPU = "cpu"
_DIGEST_DIGITS = 12


@dataclass(frozen=True)
class KeyValueSeries:
    """What has to be equal for two key values to be comparable: the same place, doing the same thing.

    Attributes:
        host: name of the node.
        gpu: UUID of the GPU; ``cpu:0`` is the CPU rank of that number; empty for the whole node.
        metric: name in the catalogue.
        subject: name of the workload or probe.
        world_size: ranks on this host that did it together, or at once.
        arm: ``alone``, ``each``, ``ddp`` or ``probe``.
        definition: digest of all else that the value depends on, such as the batch size.
    """

    host: str
    gpu: str
    metric: str
    subject: str
    world_size: int
    arm: str
    definition: str


@dataclass(frozen=True)
class KeyValue:
    """What one place reached.

    Attributes:
        host: name of the node.
        gpu_index: local rank of the GPU on it; None for the whole node.
        gpu_uuid: as NVML has it, or ``cpu``; None for the whole node.
        metric: name in the catalogue.
        subject: name of the workload or probe.
        world_size: ranks on this host that did it together, or at once.
        arm: ``alone``, ``each``, ``ddp`` or ``probe``.
        definition: digest of all else that the value depends on; values of two definitions are never compared.
        value: in `unit`; the median over the rounds.
        unit: the metric's.
    """

    host: str
    gpu_index: int | None
    gpu_uuid: str | None
    metric: str
    subject: str
    world_size: int
    arm: str
    definition: str
    value: float
    unit: str

    def __post_init__(self) -> None:
        if not (math.isfinite(self.value) and self.value > 0):
            raise ValueError(f"{self.metric} of {self.host} is {self.value}; expected a positive and finite number")

    @cached_property
    def series(self) -> KeyValueSeries:
        """With which values this one may be compared. A GPU is known by its UUID, wherever it is plugged in."""
        gpu = f"{_CPU}:{self.gpu_index}" if self.gpu_uuid == _CPU else self.gpu_uuid or ""
        return KeyValueSeries(self.host, gpu, self.metric, self.subject, self.world_size, self.arm, self.definition)

    @property
    def peers(self) -> KeyValueSeries:
        """What the same place of any other node has in common with this one: all but the host and the UUID."""
        place = "" if self.gpu_index is None else str(self.gpu_index)
        return KeyValueSeries("", place, self.metric, self.subject, self.world_size, self.arm, self.definition)


def key_values_of(evidence: Evidence) -> list[KeyValue]:
    """The key values of a run, one for each series.

    Per GPU: its throughput alone and with all others at once, without communication, and what probes of one device
    gave. Per node: throughput per GPU under DDP, where that fits one node, and what the slowest group or pair of its
    ranks reached in each probe that communicates. Medians over rounds; too few rounds, a study that broke and
    imported samples give none.

    Args:
        evidence: of the run.
    """
    trained = [
        value
        for study in evidence.plan.studies
        if study.id not in evidence.errors
        for arm in study.arms
        for value in _arm_values(evidence, study, arm)
    ]
    probes = evidence.plan.probes
    probed = probe_values(evidence.plan, evidence.probes) if probes and probes.id not in evidence.errors else []
    unique: dict[KeyValueSeries, KeyValue] = {}
    for value in (*trained, *probed):  # of two arms that tell the same, such as each@8 beside each@16, the first counts
        unique.setdefault(value.series, value)
    return list(unique.values())


def _arm_values(evidence: Evidence, study: Study, arm: Arm) -> Iterator[KeyValue]:
    definition = _definition(evidence.plan, study, arm)
    if arm.kind in ("alone", "each"):
        yield from _gpu_values(evidence.measurements, study, arm, definition)
    elif arm.kind == "ddp" and evidence.plan.layout.fits_node(arm):
        yield from _node_values(evidence, study, arm, definition)


def _gpu_values(measurements: Sequence[Measurement], study: Study, arm: Arm, definition: str) -> Iterator[KeyValue]:
    """What each rank reached without communication: no rank waits for another, so each is judged by itself."""
    wanted = (study.id, arm.name, arm.batch_size)
    by_place: dict[tuple[str, str, int], dict[int, Measurement]] = {}
    for one in measurements:
        if (one.study, one.arm, one.batch_size) == wanted and not one.single_sample:
            rounds = by_place.setdefault((one.host, one.device, one.local_rank), {})
            earlier = rounds.get(one.round, one)
            rounds[one.round] = min(earlier, one, key=lambda each: (each.started_unix_s, each.block_s))
    at_once: dict[str, set[int]] = {}
    for host, _, local_rank in by_place:
        at_once.setdefault(host, set()).add(local_rank)
    for (host, device, local_rank), rounds in sorted(by_place.items()):
        value = _median([one.throughput_img_per_s for one in rounds.values()])
        if value is not None:
            together = 1 if arm.world_size == 1 else len(at_once[host])  # of an arm of one rank all take turns
            yield _throughput(host, local_rank, device, study, together, arm, definition, value)


def _node_values(evidence: Evidence, study: Study, arm: Arm, definition: str) -> Iterator[KeyValue]:
    """What each node reached under DDP: at its slowest rank's pace, for which all wait."""
    for rounds in group_rounds(evidence.measurements, study.id, arm, evidence.plan.layout):
        ours = {n: r for n, r in rounds.items() if not r.slowest.single_sample}
        value = _median([one.throughput_per_gpu_img_per_s for one in ours.values()])
        hosts = {one.host for r in ours.values() for one in r.ranks}
        if value is not None and len(hosts) == 1:
            yield _throughput(hosts.pop(), None, None, study, arm.world_size, arm, definition, value)


def probe_values(plan: Plan, measurements: Sequence[ProbeMeasurement]) -> list[KeyValue]:
    """What each GPU, or the slowest group or pair of ranks of each node, reached in every probe.

    Rounds with a wrong result are left out, and so are groups of several nodes: those are no place of one.

    Args:
        plan: with the probes and the layout of the gang.
        measurements: of its probes.
    """
    right = [one for one in measurements if one.is_correct]
    return [value for probe in (plan.probes.probes if plan.probes else ()) for value in _of_probe(plan, probe, right)]


def _of_probe(plan: Plan, probe: Probe, measurements: Sequence[ProbeMeasurement]) -> Iterator[KeyValue]:
    metric = next((one for one in METRICS.values() if probe.kind in one.probes), None)
    if metric is None or probe.world_size > plan.layout.ranks_per_node:
        return
    share = _digest({"ranks_per_cpu": _ranks_per_cpu(plan)})
    slowest: dict[str, float] = {}
    for place, samples in places(measurements, probe, plan.layout).items():
        value = _median([sample.value for sample in samples])
        if value is None or place.peer_host not in (None, place.host):
            continue
        if place.kind == "gpu":
            yield KeyValue(
                place.host, place.gpu_index, place.gpu_uuid, metric.name, probe.name, 1, "probe", share, value,
                metric.unit,
            )  # fmt: skip
        elif place.kind in ("node", "link"):
            slowest[place.host] = min(value, slowest.get(place.host, value))
    for host, value in sorted(slowest.items()):
        yield KeyValue(host, None, None, metric.name, probe.name, probe.world_size, "probe", share, value, metric.unit)


def _throughput(
    host: str, index: int | None, uuid: str | None, study: Study, ranks: int, arm: Arm, definition: str, value: float
) -> KeyValue:
    unit = METRICS[THROUGHPUT].unit
    return KeyValue(host, index, uuid, THROUGHPUT, study.workload.name, ranks, arm.kind, definition, value, unit)


def _median(values: Sequence[float]) -> float | None:
    """The median; None of too few rounds, whose median may lie anywhere."""
    if len(values) < FEWEST_ROUNDS:
        return None
    middle = statistics.median(values)
    return middle if math.isfinite(middle) and middle > 0 else None


def _definition(plan: Plan, study: Study, arm: Arm) -> str:
    """Digest of what one rank trains and for how long at a time; of a CPU also how many ranks share its cores."""
    workload: dict[str, Any] = study.workload.as_json()
    for name in ("name", "global_batch_size"):
        workload.pop(name)
    workload["batch_size"] = arm.batch_size
    return _digest({"workload": workload, "block_s": study.block_s, "ranks_per_cpu": _ranks_per_cpu(plan)})


def _ranks_per_cpu(plan: Plan) -> int | None:
    """How many ranks share a node's cores, whether they work or not; GPUs are not shared."""
    return plan.layout.ranks_per_node if plan.device_type == "cpu" else None


def _digest(said: dict[str, Any]) -> str:
    return hashlib.sha256(strict_json(dict(sorted(said.items()))).encode()).hexdigest()[:_DIGEST_DIGITS]
