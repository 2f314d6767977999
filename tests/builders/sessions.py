"""Thresholds, and a gang that measures at once, for tests of a session."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pytest_ddpscale.launch.gang_state import Limits
from pytest_ddpscale.launch.launcher import Cluster
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.run.records import EndReason, StudyEnd, StudyStart, gangs_by_number
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.survey_record import SurveyedGpu
from pytest_ddpscale.session.evidence import EvidenceSource
from pytest_ddpscale.session.open import THIS_MACHINE, Machine, Site, Subject
from pytest_ddpscale.session.session import AcceptanceSession
from pytest_ddpscale.settings import settings_from
from pytest_ddpscale.thresholds.loading import load_thresholds
from pytest_ddpscale.util.document import Picture
from pytest_ddpscale.util.packaged import packaged
from tests.builders.json_types import run_record
from tests.builders.records import gang_on, steady_block

THRESHOLDS = """\
schema_version: 2
sources: {paper: a paper}
workloads:
  r: {model: resnet18, precision: fp32, image_size: 32}
families:
  both:
    - {throughput_per_gpu: {1: 99}, of: r, published: paper, bound: 50, because: made up}
    - {weak_scaling_efficiency: {2: 0.97}, of: r, published: paper, bound: 0.5, because: made up}
    - {strong_scaling_speedup: {8: 6.5}, of: r, published: paper, bound: 2, because: made up}
skus:
  cpu:
    description: any CPU
    aliases: [laptop]
    detect: {device: cpu}
    batch: {r: {per_gpu: 4, global: 8}}
    families: [both]
    requirements: []
  gpu:
    description: some GPU
    aliases: [g]
    detect: {name: '^G$'}
    batch: {r: {per_gpu: 4, global: 8}}
    families: [both]
"""
SAMPLES_PER_S = 100.0


def nothing(record: object) -> None:
    """A listener that shows no progress."""


def not_drawn(about: Any, *given: Any) -> Picture:
    """A picture of nothing, with its table, in place of `charts._drawn`."""
    return Picture(about.key, about.title, about.caption, about.title, b"<svg></svg>", bytes, given[-1], False)


class InstantGang:
    """In place of the supervisor: measures a plan at once, at a pace of its own choosing."""

    launches: list[InstantGang] = []  # noqa: RUF012 (each test has a list of its own)
    hosts: Sequence[str] = ("here",)
    breaks = ""
    ends = True
    rounds: int | None = None
    samples_per_s = SAMPLES_PER_S

    def __init__(self, launch: object, run: RunDirectory, limits: Limits, listener: object, **named: Any) -> None:
        self.launch: Any = launch
        self.run, self.limits, self.named = run, limits, named
        self.launches.append(self)

    def measure(self, plan: Plan) -> None:
        nodes = len(self.hosts)
        self.plan, layout = plan, Layout(nodes, max(plan.world_size // nodes, 1))
        device = "cpu" if plan.device_type == "cpu" else "GPU-{}"
        number = len(gangs_by_number(self.run.read_records()))
        self.run.append_record(gang_on(self.hosts, layout.ranks_per_node, device, number))
        for study in plan.studies:
            self.run.append_record(StudyStart(study=study.id, unix_s=1.7e9))
            for round_ in range(self.rounds_of(study)):
                for arm in study.arms:
                    ranks = layout.ranks([arm], study.turn(plan.seed, round_))
                    self.run.append_record(steady_block(study.id, arm, round_, ranks, self.samples_per_s, number))
            self.end(study)

    def rounds_of(self, study: Study) -> int:
        return study.rounds if self.rounds is None else self.rounds

    def end(self, study: Study) -> None:
        if self.ends:
            reason: EndReason = "error" if self.breaks else "rounds"
            self.run.append_record(StudyEnd(study.id, reason, self.breaks))


Open = Callable[..., AcceptanceSession]
PACKAGED = load_thresholds(packaged("thresholds.yaml"))


def planning(
    devices: int | None = 8, cluster: Cluster = THIS_MACHINE, sku: str = "a100", earlier: RunDirectory | None = None,
    *, plans_only: bool = False, **options: Any,
) -> EvidenceSource:  # fmt: skip
    """Where evidence comes from on nodes of eight devices, of a new run or an earlier one."""
    argv = "pytest", "--password", "hunter2"
    site = Site(settings_from(options, {}, {}), Path(), Path(), argv, plans_only)
    subject = Subject(site, PACKAGED, PACKAGED.sku_name(sku))
    return EvidenceSource(
        subject, Machine(cluster, devices and devices // cluster.nodes), Layout(cluster.nodes, 8), earlier
    )


def gpu(index: int, name: str = "G") -> SurveyedGpu:
    return SurveyedGpu(index, f"GPU-{index}", name, "", "20b2", local_rank=index, memory_bytes=80 * 2**30)


def measured_run(path: Path, sku: str = "cpu") -> Path:
    """A run directory without any measurement."""
    run = RunDirectory.create(path)
    run.write_json(run.run_json, run_record(sku=sku, notes=["imported"]))
    run.write_json(run.plan_json, Plan("cpu", "cpu", ()))
    return path
