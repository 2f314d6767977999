"""Key values of each place in a run: the few numbers worth comparing with other runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping
from typing import Annotated, NamedTuple

from msgspec import Meta

from pytest_ddpscale.judge.metrics import groups
from pytest_ddpscale.judge.values import digest_of, probed_values
from pytest_ddpscale.plan.arm import USUAL, Arm
from pytest_ddpscale.plan.metric_catalogue import METRICS, THROUGHPUT_PER_GPU
from pytest_ddpscale.plan.operation import KINDS
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.plan.study import Study
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.place import CPU, Place
from pytest_ddpscale.run.strict_json import Record
from pytest_ddpscale.run.table import once
from pytest_ddpscale.util.arrays import FloatArray


class KeyValueSeries(NamedTuple):
    """What two key values must share to be comparable: the same place and the same work.

    Attributes:
        gpu: UUID of the GPU; ``cpu:0`` is the CPU rank of that number; empty for the whole node.
        subject: name of the workload or probe.
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


class KeyValue(Record, array_like=True):
    """Value of one place, of a metric of which more is better; fields of `KeyValueSeries` mean the same.

    Attributes:
        gpu_index: NVML's index of the GPU, on a CPU the local rank; None for the whole node, and if it is not known.
        gpu_uuid: NVML's UUID, or ``cpu``; None for the whole node.
        value: median over the rounds, in `unit`, the metric's.
        batch_size: per GPU, which distinguishes weak from strong scaling; None for a probe.
        has_regressed: whether it is worse than the runs before; then it is no baseline.
    """

    host: str
    gpu_index: int | None
    gpu_uuid: str | None
    metric: str
    subject: str
    world_size: int
    arm: str
    definition: str
    value: Annotated[float, Meta(gt=0)]
    unit: str
    batch_size: int | None = None
    has_regressed: bool = False

    @property
    def what(self) -> str:
        """``throughput_per_gpu resnet50-fp16 (DDP of 8, batch 256)``: the quantity without its place."""
        together = {"each": f"{self.world_size} at once", "ddp": f"DDP of {self.world_size}", "alone": "alone"}
        how = together.get(self.arm, f"{self.world_size} ranks" if self.world_size > 1 else "")
        how += f", batch {self.batch_size}" if self.batch_size is not None else ""
        return f"{self.metric} {self.subject}" + f" ({how})" * bool(how)

    @property
    def place(self) -> Place:
        """The GPU, or the node."""
        return Place(self.host, None, self.gpu_uuid or "", self.gpu_index)

    @property
    def where(self) -> str:
        """``GPU 3 on n1``, or the node's name."""
        return self.host if self.gpu_uuid is None else f"{self.place.number} on {self.host}"

    @property
    def series(self) -> KeyValueSeries:
        """The series with which this value is comparable. A GPU is identified by its UUID, in any slot."""
        gpu = f"{CPU}:{self.gpu_index}" if self.gpu_uuid == CPU else self.gpu_uuid or ""
        return KeyValueSeries(self.host, gpu, self.metric, self.subject, self.world_size, self.arm, self.definition)


@once
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
    for study in evidence.plan.studies:
        for arm in study.arms if study.id not in evidence.errors else ():
            if arm.variant == USUAL:
                for value in _of_arm(evidence, study, arm):
                    unique.setdefault(value.series, value)
    probes = evidence.plan.probes
    for probe in probes.arms if probes and probes.id not in evidence.errors else ():
        for value in _of_probe(evidence, probe):
            unique.setdefault(value.series, value)
    return list(unique.values())


def known_versions(versions: Mapping[str, str | None]) -> dict[str, str]:
    """Versions of the software that is installed."""
    return {name: version for name, version in versions.items() if version is not None}


def _of_arm(evidence: Evidence, study: Study, arm: Arm) -> Iterator[KeyValue]:
    """Each rank without communication, where none waits for another; under DDP each node, whose ranks wait."""
    metric, workload, definition = THROUGHPUT_PER_GPU, study.workload, digest_of(evidence.plan, study, arm)
    of_all = (arm.kind, definition), (metric.unit_of(workload.family), arm.batch_size)
    measured = evidence.columns.arms.get((study.id, arm.name))
    # Only synthetic data: a slow disk does not make a GPU slower.
    if arm.kind in ("alone", "each") and arm.data_of(workload) == "synthetic" and measured is not None:
        ours = measured.of(measured.is_of_work(arm.batch_size) & ~measured.single_sample)
        by_place = enumerate(ours.ranks.rank_places)
        for i, place in sorted(by_place, key=lambda one: (one[1].host, one[1].uuid, one[1].local_rank)):
            # In an arm of one rank, all ranks take turns.
            together = 1 if arm.world_size == 1 else len(ours.ranks.by_host[place.host])
            key = place.host, place.index, place.uuid, metric.name, workload.name, together
            for value in _median(ours.per_second[ours.present[:, i], i]):
                yield KeyValue(*key, *of_all[0], value, *of_all[1])
    elif arm.kind == "ddp" and evidence.plan.layout.fits_node(arm):
        found = groups(evidence.columns, study.id, (arm,), evidence.plan.layout)
        for at in range(len(found.places)):
            rounds = found.at(at)
            ours = rounds.of(~rounds.single_sample)
            hosts = list(ours.ranks.by_host)
            for value in _median(ours.samples_per_s_per_gpu) if len(hosts) == 1 else ():
                key = hosts[0], None, None, metric.name, workload.name, arm.world_size
                yield KeyValue(*key, *of_all[0], value, *of_all[1])


def _of_probe(evidence: Evidence, probe: Arm) -> Iterator[KeyValue]:
    """Values in a probe of each GPU, or of the slowest group or pair of ranks of each node.

    Rounds with a wrong result are left out, and so are groups that span nodes, because no single node owns them.
    """
    plan, metric, measured = evidence.plan, METRICS[KINDS[probe.operation.kind].metric], evidence.probed(probe)
    if measured is None or probe.world_size > plan.layout.ranks_per_node:
        return
    of_all = (metric.name, probe.kind, probe.world_size, "probe", digest_of(plan))
    slowest: dict[str, float] = {}
    for place, values in probed_values(measured.only(~measured.wrong), probe, plan.layout).items():
        for value in _median(values) if not place.is_between_nodes else ():
            if place.kind == "gpu":
                yield KeyValue(place.host, place.ends[0].index, place.ends[0].uuid, *of_all, value, metric.unit)
            elif place.kind in ("node", "link"):
                slowest[place.host] = min(value, slowest.get(place.host, value))
    for host, value in sorted(slowest.items()):
        yield KeyValue(host, None, None, *of_all, value, metric.unit)


def _median(values: FloatArray) -> list[float]:
    """The median; nothing for too few rounds, whose median is too uncertain."""
    middle = statistics.median(values.tolist()) if len(values) >= FEWEST_ROUNDS else 0.0
    return [middle] if math.isfinite(middle) and middle > 0 else []
