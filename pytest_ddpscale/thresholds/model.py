"""The shape of thresholds.yaml, and the rules that a file must keep to be worth judging by."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from pytest_ddpscale.plan.metric import METRICS, Metric, measured_arm
from pytest_ddpscale.plan.study import Placement
from pytest_ddpscale.plan.workload import Precision, Workload, incomparable_fields

SCHEMA_VERSION = 1
Severity = Literal["fail", "warn"]
MetricName = Literal[
    "throughput_per_gpu",
    "weak_scaling_efficiency",
    "strong_scaling_speedup",
    "strong_scaling_efficiency",
    "rank_uniformity",
    "exposed_communication",
    "ddp_overhead",
    "step_time_p95",
    "step_time_cv",
    "device_utilization",
    "model_flops_utilization",
    "generation_ratio",
    "peak_memory_gib",
    "memory_spread",
    "replica_agreement",
]
# A bound typed as 95 where 0.95 is meant would fail every machine; 1.5 is impossible but clear.
LARGEST_FRACTION_BOUND = 2.0
# From above, 2 where 2 % is meant would pass every machine, and so would 1 where 1 % is.
LEAST_SENSELESS_UPPER_FRACTION_BOUND = 1.0
# bound = measured less margin, compared at the precision people round bounds to.
MARGIN_TOLERANCE = 0.006


class _Strict(BaseModel):
    # NaN compares as false with every bound, so it would slip through each check below.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Source(_Strict):
    """Where a number comes from.

    A published figure has `measured` and `reference`; a number without one has `reasoning`. How far a bound
    lies from what was measured is said by `margin_pct`, which is checked, or explained by `reasoning`.
    """

    measured: float | None = Field(None, description="The published value, in the metric's unit.")
    margin_pct: float | None = Field(
        None, ge=0, lt=100, description="Distance of the bound from `measured`, in per cent of it."
    )
    reference: str | None = Field(None, min_length=3, description="Who published it, and for what.")
    reasoning: str | None = Field(None, min_length=10, description="Why this number, if nobody published one.")


class Requirement(_Strict):
    """One line of thresholds.yaml, one test item."""

    metric: MetricName
    workload: str = Field(description="A name under this SKU's `workloads`.")
    world_size: int = Field(1, ge=1, description="Ranks that train together.")
    placement: Placement = Field(
        "packed", description="`packed` fills a node before the next; `spread` deals the ranks to all nodes in turn."
    )
    at_least: float | None = Field(None, gt=0, description="Lower bound, in the metric's unit.")
    at_most: float | None = Field(None, gt=0, description="Upper bound, in the metric's unit.")
    versus: str | None = Field(None, description="Reference SKU of a generation_ratio.")
    severity: Severity = Field(
        "fail", description="`warn` is reported and never rejects. Default: fail; warn if provisional."
    )
    provisional: bool = Field(
        False, description="No published figure stands behind it: it cannot accept a cluster on its own."
    )
    source: Source

    @model_validator(mode="before")
    @classmethod
    def _provisional_only_warns_unless_said(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("provisional") is True and "severity" not in data:
            return {**data, "severity": "warn"}
        return data

    @model_validator(mode="after")
    def _check(self) -> Requirement:
        self._check_bound()
        self._check_source()
        if self.definition.takes_versus != (self.versus is not None):
            needs = "needs" if self.definition.takes_versus else "takes no"
            raise ValueError(f"{self.metric} {needs} `versus: SKU`")
        self._check_world_size()
        if self.placement == "spread" and self.world_size == 1:
            raise ValueError("placement spread says nothing about world_size 1; expected at least 2")
        return self

    def _check_world_size(self) -> None:
        least, most = self.definition.minimum_world_size, self.definition.maximum_world_size
        if least <= self.world_size <= (most or self.world_size):
            return
        expected = f"at least {least}" if most is None else f"{least}" if least == most else f"{least} to {most}"
        raise ValueError(f"world_size {self.world_size} says nothing about {self.metric}; expected {expected}")

    def _check_bound(self) -> None:
        key = "at_most" if self.definition.upper_bound else "at_least"
        if getattr(self, key) is None or (self.at_least is not None and self.at_most is not None):
            raise ValueError(f"{self.metric} needs exactly one bound, `{key}: NUMBER`")
        if self.metric == "replica_agreement" and self.bound != 1:
            raise ValueError(
                f"{key} {self.bound:g} for {self.metric} lets ranks differ that have to agree bit for bit; expected 1"
            )
        if self.definition.unit == "fraction" and self._looks_like_per_cent:
            raise ValueError(
                f"{key} {self.bound:g} for {self.metric} looks like per cent; "
                f"expected a fraction, for example {self.bound / 100:g}"
            )

    @property
    def _looks_like_per_cent(self) -> bool:
        if self.definition.upper_bound:
            return self.bound >= LEAST_SENSELESS_UPPER_FRACTION_BOUND
        return self.bound > LARGEST_FRACTION_BOUND

    def _check_source(self) -> None:
        source = self.source
        if self.provisional and source.reasoning is None:
            raise ValueError("a provisional bound needs `source: {reasoning: …}`")
        if not self.provisional and (source.measured is None or source.reference is None):
            raise ValueError(
                "a bound needs `source: {measured: NUMBER, reference: …}`; "
                "without a published figure write `provisional: true` and `source: {reasoning: …}`"
            )
        if source.measured is not None and source.margin_pct is None and source.reasoning is None:
            raise ValueError(
                f"bound {self.bound:g} says not why it is that far from the {source.measured:g} that was measured; "
                "expected `margin_pct: NUMBER` or `reasoning: …` beside `measured`"
            )
        if source.measured is not None and source.margin_pct is not None:
            sign = 1 if self.definition.upper_bound else -1
            stated = source.measured * (1 + sign * source.margin_pct / 100)
            if abs(stated - self.bound) > MARGIN_TOLERANCE * stated:
                raise ValueError(
                    f"bound {self.bound:g} contradicts its source: {source.measured:g} "
                    f"with a margin of {source.margin_pct:g} % is {stated:.4g}"
                )

    @property
    def definition(self) -> Metric:
        """The metric's entry in the catalogue."""
        return METRICS[self.metric]

    @property
    def bound(self) -> float:
        """The number to keep, in the metric's unit."""
        value = self.at_most if self.definition.upper_bound else self.at_least
        assert value is not None  # _check_bound
        return value

    def key(self) -> tuple[str, str, int, Placement, str | None]:
        """What is measured; two requirements may share it and differ in bound and severity."""
        return (self.metric, self.workload, self.world_size, self.placement, self.versus)


class Detect(_Strict):
    """How a device is recognised: all that is given has to match."""

    device: Literal["cuda", "cpu", "none"] = Field(
        "cuda", description="`none` is a reference that is never looked for on a machine."
    )
    name: str | None = Field(None, description="Anchored regular expression for the name NVML gives.")
    pci_device_ids: list[Annotated[str, Field(pattern=r"^[0-9a-f]{4}$")]] = Field(
        [], description="PCI device ids, four lower-case hexadecimal digits."
    )
    memory_gib: float | None = Field(None, gt=0, description="Nominal device memory.")

    @model_validator(mode="after")
    def _check(self) -> Detect:
        if self.device == "cuda" and self.name is None:
            raise ValueError("a GPU needs `name: '^…$'`")
        if self.name is not None:
            if not (self.name.startswith("^") and self.name.endswith("$")):
                raise ValueError(f"name {self.name!r} is not anchored; expected '^…$', or 6000 matches 6000D")
            try:
                re.compile(self.name)
            except re.error as error:
                raise ValueError(f"name {self.name!r} is no regular expression: {error}") from None
        return self


class Peak(_Strict):
    """What the vendor promises for one GPU."""

    fp16_tflops: float | None = Field(None, gt=0, description="Dense tensor-core fp16, TFLOPS.")
    bf16_tflops: float | None = Field(None, gt=0, description="Dense tensor-core bf16, TFLOPS.")
    fp32_tflops: float | None = Field(None, gt=0, description="Non-tensor fp32 (no TF32), TFLOPS.")
    memory_bandwidth_gbps: float | None = Field(None, gt=0, description="Device memory, GB/s.")
    link: str | None = Field(None, description="GPU to GPU, for example NVLink3.")
    link_bandwidth_gbps: float | None = Field(None, gt=0, description="GPU to GPU, one direction, GB/s.")
    source: Source

    def tflops(self, precision: Precision) -> float | None:
        """Dense peak in a workload's precision, in TFLOPS; None if it is not known.

        For fp32 that of the plain units: TF32 keeps fewer digits, and is no precision of a workload.
        """
        return {"fp16": self.fp16_tflops, "bf16": self.bf16_tflops, "fp32": self.fp32_tflops}[precision]


_SWITCHES = ("compile", "cudnn_benchmark")


def _with_name(data: Any) -> Any:
    """Give each workload the name it is listed under, so that it is written once."""
    if not isinstance(data, dict):
        return data
    for name, workload in data.items():
        if isinstance(workload, dict):
            _refuse_what_lax_mode_would_convert(name, workload)
    return {k: {**v, "name": k} if isinstance(v, dict) else v for k, v in data.items()}


def _refuse_what_lax_mode_would_convert(name: str, workload: dict[str, Any]) -> None:
    """`batch_size: yes` is true to YAML and 1 to a lax reader."""
    if workload.get("name", name) != name:
        raise ValueError(f"{name} calls itself {workload['name']!r}; expected no `name`: it is what it is listed under")
    wrong = [
        f"{name}.{field} is {value!r}; expected {'true or false' if field in _SWITCHES else 'a whole number'}"
        for field, value in workload.items()
        if isinstance(value, bool) != (field in _SWITCHES)
    ]
    if wrong:
        raise ValueError(wrong[0])


class Sku(_Strict):
    """One GPU model."""

    # In strict mode pydantic takes a dataclass only ready-made, and Workload is one.
    model_config = ConfigDict(strict=False)

    description: str
    aliases: list[str] = []
    detect: Detect
    peak: Peak | None = None
    workloads: Annotated[dict[str, Workload], BeforeValidator(_with_name)] = {}
    requirements: list[Requirement] = []

    def peak_tflops(self, workload: Workload) -> float | None:
        """Dense peak of one GPU in the workload's precision, in TFLOPS; None if it is not known."""
        return None if self.peak is None else self.peak.tflops(workload.precision)


class Thresholds(_Strict):
    """A whole thresholds.yaml."""

    schema_version: Literal[1]
    skus: dict[str, Sku] = Field(min_length=1)

    def canonical_name(self, name: str) -> str | None:
        """The SKU that `name` is, or is an alias of; None if there is none."""
        if name in self.skus:
            return name
        return next((sku for sku, entry in self.skus.items() if name in entry.aliases), None)

    def reference_throughput(self, requirement: Requirement) -> tuple[float, Source]:
        """Throughput per GPU of the reference generation for a generation_ratio.

        Returns:
            img/s per GPU as `requirement.versus` published it for the workload of the same name,
            and where that was published.

        Raises:
            LookupError: the reference has no such figure. A loaded file never raises: it was checked.
        """
        reference = self.skus[requirement.versus or ""]
        wanted = ("throughput_per_gpu", requirement.workload, requirement.world_size, requirement.placement, None)
        for candidate in reference.requirements:
            if candidate.key() == wanted and candidate.source.measured is not None:
                return candidate.source.measured, candidate.source
        raise LookupError(f"{requirement.versus} publishes no throughput_per_gpu for {requirement.workload}")


def contradictions(thresholds: Thresholds) -> list[tuple[tuple[str | int, ...], str]]:
    """Everything wrong between parts of a file that are each well-formed.

    Returns:
        Pairs of a path into the file, for its line number, and a sentence.
    """
    return [*_clashing_names(thresholds), *_clashing_requirements(thresholds), *_unmeasurable(thresholds)]


Found = list[tuple[tuple[str | int, ...], str]]


def _clashing_names(thresholds: Thresholds) -> Found:
    found: Found = []
    owner = {name: name for name in thresholds.skus}
    for name, sku in thresholds.skus.items():
        for i, alias in enumerate(sku.aliases):
            if alias in owner:
                found.append((("skus", name, "aliases", i), f"alias {alias!r} already names {owner[alias]}"))
            owner[alias] = name
    return found


def _clashing_requirements(thresholds: Thresholds) -> Found:
    found: Found = []
    for name, sku in thresholds.skus.items():
        seen: dict[tuple[Any, ...], Requirement] = {}
        for i, requirement in enumerate(sku.requirements):
            path, label = ("skus", name, "requirements", i), _label(requirement)
            key = (*requirement.key(), requirement.severity)
            twin = seen.get(key)
            if twin is not None:
                found.append((path, f"{label} is required twice: {twin.bound:g} and {requirement.bound:g}"))
            seen[key] = requirement
            other = seen.get((*requirement.key(), "warn" if requirement.severity == "fail" else "fail"))
            if other is not None and _warns_later_than_it_fails(requirement, other):
                found.append((path, f"{label}: the warn bound is looser than the fail bound, so it never warns"))
    return found


def _warns_later_than_it_fails(one: Requirement, other: Requirement) -> bool:
    warn, fail = (one, other) if one.severity == "warn" else (other, one)
    return warn.bound >= fail.bound if warn.definition.upper_bound else warn.bound <= fail.bound


def _unmeasurable(thresholds: Thresholds) -> Found:
    found: Found = []
    for name, sku in thresholds.skus.items():
        for i, requirement in enumerate(sku.requirements):
            reason = _why_unmeasurable(thresholds, sku, requirement)
            if reason is not None:
                found.append((("skus", name, "requirements", i), reason))
    return found


def _why_unmeasurable(thresholds: Thresholds, sku: Sku, requirement: Requirement) -> str | None:
    workload = sku.workloads.get(requirement.workload)
    if workload is None:
        known = ", ".join(sku.workloads) or "none"
        return f"workload {requirement.workload!r} is not defined for this SKU; its workloads: {known}"
    try:
        measured_arm(requirement.definition, workload, requirement.world_size)
    except ValueError as error:
        return str(error)
    if requirement.metric == "model_flops_utilization" and sku.peak_tflops(workload) is None:
        tf32 = ", that of the plain fp32 units, for TF32 is not used" if workload.precision == "fp32" else ""
        key = f"{workload.precision}_tflops"
        return f"{requirement.metric} of {workload.name} needs `{key}: NUMBER` under this SKU's `peak`{tf32}"
    return _why_incomparable(thresholds, workload, requirement) if requirement.versus else None


def _why_incomparable(thresholds: Thresholds, workload: Workload, requirement: Requirement) -> str | None:
    reference = thresholds.skus.get(requirement.versus or "")
    if reference is None:
        return f"versus {requirement.versus!r} is no SKU of this file (an alias will not do)"
    theirs = reference.workloads.get(requirement.workload)
    if theirs is None:
        return f"versus {requirement.versus}: it has no workload {requirement.workload!r} to compare with"
    different = incomparable_fields(workload, theirs)
    if different:
        fields = ", ".join(different)
        return f"versus {requirement.versus}: {requirement.workload} differs in {fields}, so no ratio is meaningful"
    try:
        thresholds.reference_throughput(requirement)
    except LookupError as error:
        return f"{error}: add one with `source: {{measured: …}}`"
    return None


def _label(requirement: Requirement) -> str:
    placed = ", spread" if requirement.placement == "spread" else ""
    return f"{requirement.metric} of {requirement.workload} at world size {requirement.world_size}{placed}"
