"""Key values of each place in a run: the few numbers worth comparing with other runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from pytest_ddpscale.judge.metrics import groups
from pytest_ddpscale.judge.values import digest_of, probed_values
from pytest_ddpscale.plan.arm import USUAL, Arm
from pytest_ddpscale.plan.metric_catalogue import METRICS, THROUGHPUT_PER_GPU
from pytest_ddpscale.plan.operation import KINDS
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.table import ArmRounds

_CPU = "cpu"


@dataclass(frozen=True, order=True)
class KeyValueSeries:
    """What two key values must share to be comparable: the same place and the same work.

    Attributes:
        gpu: UUID of the GPU; ``cpu:0`` is the CPU rank of that number; empty for the whole node.
        subject: name of the workload or probe.
        host: name of the node.
        metric: name of the metric.
        world_size: ranks on this host that worked together or at the same time.
        arm: ``alone``, ``each``, ``ddp`` or ``probe``.
        definition: digest of everything else that the value depends on, such as the batch size.
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
    """Value of one place; fields shared with `KeyValueSeries` mean the same.

    Attributes:
        gpu_index: NVML's index of the GPU, on a CPU the local rank; None for the whole node, and if it is not known.
        gpu_uuid: NVML's UUID, or ``cpu``; None for the whole node.
        value: median over the rounds, in `unit`, the metric's.
        batch_size: per GPU, which distinguishes weak from strong scaling; None for a probe.
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
    batch_size: int | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.value) and self.value > 0):
            raise ValueError(f"{self.metric} of {self.host} is {self.value}; expected a positive and finite number")

    @property
    def how(self) -> str:
        """``DDP of 8, batch 32``, ``8 at once, batch 256``, ``alone, batch 256``; for a probe ``8 ranks`` or empty."""
        together = {"each": f"{self.world_size} at once", "ddp": f"DDP of {self.world_size}", "alone": "alone"}
        how = together.get(self.arm, f"{self.world_size} ranks" if self.world_size > 1 else "")
        return f"{how}, batch {self.batch_size}" if self.batch_size is not None else how

    @property
    def what(self) -> str:
        """``throughput_per_gpu resnet50-fp16 (DDP of 8, batch 256)``: the quantity without its place."""
        return " ".join(filter(None, (self.metric, self.subject, f"({self.how})" if self.how else "")))

    @property
    def place(self) -> Place:
        """The GPU, or the node."""
        return Place(self.host, None, self.gpu_uuid or "", self.gpu_index)

    @cached_property
    def series(self) -> KeyValueSeries:
        """The series with which this value is comparable. A GPU is identified by its UUID, in any slot."""
        gpu = f"{_CPU}:{self.gpu_index}" if self.gpu_uuid == _CPU else self.gpu_uuid or ""
        return KeyValueSeries(self.host, gpu, self.metric, self.subject, self.world_size, self.arm, self.definition)

    @property
    def peers(self) -> KeyValueSeries:
        """The series without host and UUID, which the same place on other nodes shares."""
        place = "" if self.gpu_index is None else str(self.gpu_index)
        return KeyValueSeries("", place, self.metric, self.subject, self.world_size, self.arm, self.definition)


def key_values_of(evidence: Evidence) -> list[KeyValue]:
    """The key values of a run, one for each series.

    Per GPU: its throughput alone and with all others at once, without communication, and its results in probes of one
    device. Per node: throughput per GPU under DDP within the node, and the slowest group or pair of its ranks in each
    probe that communicates. Values are medians over rounds. Too few rounds, failed studies and imported samples give
    none.
    """
    unique: dict[KeyValueSeries, KeyValue] = {}
    # If two arms give the same series, such as each@8 and each@16, the first counts. So does the first of several
    # launches, because the values of other runs are of one launch and vary like one.
    for value in _values(evidence):
        unique.setdefault(value.series, value)
    return list(unique.values())


def has_key_values(evidence: Evidence) -> bool:
    """Whether a run has any key value."""
    return any(True for _ in _values(evidence))


def known_versions(versions: Mapping[str, str | None]) -> dict[str, str]:
    """Versions of the software that is installed."""
    return {name: version for name, version in versions.items() if version is not None}


def _values(evidence: Evidence) -> Iterator[KeyValue]:
    for study in evidence.plan.studies:
        if study.id not in evidence.errors:
            for arm in study.arms:
                yield from _arm_values(evidence, study, arm)
    probes = evidence.plan.probes
    if probes and probes.id not in evidence.errors:
        for probe in probes.arms:
            measured = evidence.probed(probe)
            if measured is not None:
                yield from _of_probe(evidence.plan, probe, measured)


def _arm_values(evidence: Evidence, study: Study, arm: Arm) -> Iterator[KeyValue]:
    definition = digest_of(evidence.plan, study, arm)
    if arm.variant != USUAL:
        return
    # Only synthetic data: a slow disk does not make a GPU slower.
    if arm.kind in ("alone", "each") and arm.data_of(study.workload) == "synthetic":
        yield from _gpu_values(evidence, study, arm, definition)
    elif arm.kind == "ddp" and evidence.plan.layout.fits_node(arm):
        yield from _node_values(evidence, study, arm, definition)


def _gpu_values(evidence: Evidence, study: Study, arm: Arm, definition: str) -> Iterator[KeyValue]:
    """Values of each rank without communication, where no rank waits for another."""
    measured = evidence.columns.arms.get((study.id, arm.name))
    if measured is None:
        return
    ours = measured.of(measured.is_of_work(arm.batch_size) & ~measured.single_sample)
    samples_per_s = ours.per_second
    for i, place in sorted(
        enumerate(ours.ranks.rank_places), key=lambda one: (one[1].host, one[1].uuid, one[1].local_rank)
    ):
        value = _median(samples_per_s[ours.present[:, i], i].tolist())
        if value is not None:
            # In an arm of one rank, all ranks take turns.
            together = 1 if arm.world_size == 1 else len(ours.ranks.by_host[place.host])
            gpu = place.host, place.index, place.uuid
            yield _throughput(study, arm, definition, value, gpu, together)


def _node_values(evidence: Evidence, study: Study, arm: Arm, definition: str) -> Iterator[KeyValue]:
    """Values of each node under DDP, at the pace of its slowest rank, for which all wait."""
    found = groups(evidence.columns, study.id, (arm,), evidence.plan.layout)
    for place in range(len(found.places)):
        rounds = found.at(place)
        ours = rounds.of(~rounds.single_sample)
        value = _median(ours.samples_per_s_per_gpu.tolist())
        hosts = list(ours.ranks.by_host)
        if value is not None and len(hosts) == 1:
            yield _throughput(study, arm, definition, value, (hosts[0], None, None), arm.world_size)


def _of_probe(plan: Plan, probe: Arm, measured: ArmRounds) -> Iterator[KeyValue]:
    """Values in a probe of each GPU, or of the slowest group or pair of ranks of each node.

    Rounds with a wrong result are left out, and so are groups that span nodes, because no single node owns them.
    """
    metric = METRICS[KINDS[probe.operation.kind].metric]
    if probe.world_size > plan.layout.ranks_per_node:
        return
    of_all = (metric.name, probe.kind, probe.world_size, "probe", digest_of(plan))
    slowest: dict[str, float] = {}
    for place, values in probed_values(measured.only(~measured.wrong), probe, plan.layout).items():
        value = _median(values.tolist())
        if value is None or place.is_between_nodes:
            continue
        if place.kind == "gpu":
            yield KeyValue(place.host, place.ends[0].index, place.ends[0].uuid, *of_all, value, metric.unit)
        elif place.kind in ("node", "link"):
            slowest[place.host] = min(value, slowest.get(place.host, value))
    for host, value in sorted(slowest.items()):
        yield KeyValue(host, None, None, *of_all, value, metric.unit)


def _throughput(
    study: Study, arm: Arm, definition: str, value: float, place: tuple[str, int | None, str | None], ranks: int
) -> KeyValue:
    metric, workload = THROUGHPUT_PER_GPU, study.workload
    unit = metric.unit_of(workload.family)
    return KeyValue(*place, metric.name, workload.name, ranks, arm.kind, definition, value, unit, arm.batch_size)


def _median(values: Sequence[float]) -> float | None:
    """The median; None for too few rounds, whose median is too uncertain."""
    if len(values) < FEWEST_ROUNDS:
        return None
    middle = statistics.median(values)
    return middle if math.isfinite(middle) and middle > 0 else None
