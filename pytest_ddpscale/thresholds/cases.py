"""One case per requirement of a SKU: the requirement, what it trains, and what its test item is called."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_ddpscale.plan.planner import Question
from pytest_ddpscale.plan.study import DeviceType
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.thresholds.loading import ThresholdsFile
from pytest_ddpscale.thresholds.model import Requirement, Sku


@dataclass(frozen=True)
class Case:
    """A requirement ready to be planned and judged.

    Attributes:
        requirement: the line of thresholds.yaml.
        workload: what it trains.
        name: ``resnet152-fp16-8gpu`` or ``…-8gpu-spread``: the bracketed part of the test's name, unique in a metric.
        where: ``file:line`` of the requirement.
        reference_img_per_s: throughput per GPU of the reference generation; None without `versus`.
        peak_tflops: of one GPU of the SKU in the workload's precision, dense; None if it is not known.
        floor_img_per_s: what one GPU alone has to train per second at least; None if nothing requires it.
    """

    requirement: Requirement
    workload: Workload
    name: str
    where: str
    reference_img_per_s: float | None = None
    peak_tflops: float | None = None
    floor_img_per_s: float | None = None

    @property
    def id(self) -> str:
        """``weak_scaling_efficiency[resnet152-fp16-8gpu]``: unique in a run."""
        return f"{self.requirement.metric}[{self.name}]"

    @property
    def question(self) -> Question:
        """What has to be measured to judge it."""
        requirement = self.requirement
        return Question(requirement.definition, self.workload, requirement.world_size, requirement.placement)


def device_type(sku: Sku) -> DeviceType:
    """``cpu`` or ``cuda``."""
    return "cpu" if sku.detect.device == "cpu" else "cuda"


def cases_for(file: ThresholdsFile, sku_name: str) -> list[Case]:
    """All cases of a SKU, in the order of the file."""
    sku = file.thresholds.skus[sku_name]
    cases = []
    for i, requirement in enumerate(sku.requirements):
        reference = file.thresholds.reference_throughput(requirement)[0] if requirement.versus else None
        where = file.where("skus", sku_name, "requirements", i)
        workload = sku.workloads[requirement.workload]
        peak_tflops = sku.peak_tflops(workload)
        floor = _floor_img_per_s(sku, workload)
        cases.append(Case(requirement, workload, _name(sku, requirement), where, reference, peak_tflops, floor))
    return cases


def _floor_img_per_s(sku: Sku, workload: Workload) -> float | None:
    bounds = [
        r.bound
        for r in sku.requirements
        if (r.metric, r.workload, r.world_size) == ("throughput_per_gpu", workload.name, 1)
    ]
    return min(bounds, default=None)


def _name(sku: Sku, requirement: Requirement) -> str:
    unit = "rank" if device_type(sku) == "cpu" else "gpu"
    name = f"{requirement.workload}-{requirement.world_size}{unit}"
    if requirement.placement == "spread":
        name += "-spread"
    if requirement.versus:
        name += f"-vs-{requirement.versus}"
    twins = [other for other in sku.requirements if other.key() == requirement.key()]
    return f"{name}-{requirement.severity}" if len(twins) > 1 else name
