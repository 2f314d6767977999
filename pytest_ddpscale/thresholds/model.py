"""The shape of thresholds.yaml, and the rules that a file must keep to be worth judging by."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from pytest_ddpscale.plan.device_name import why_no_name_pattern
from pytest_ddpscale.plan.layout import WorldSize
from pytest_ddpscale.plan.metric import Metric
from pytest_ddpscale.plan.metric_catalogue import METRICS, NODE_CHECK, THROUGHPUT_PER_GPU
from pytest_ddpscale.plan.node_check import NODE_CHECKS
from pytest_ddpscale.plan.probe import Probe
from pytest_ddpscale.plan.study import MOST_RANKS, Placement
from pytest_ddpscale.plan.workload import Precision, Workload

Severity = Literal["fail", "warn"]
if TYPE_CHECKING:
    MetricName: TypeAlias = str
else:
    MetricName = Literal[tuple(METRICS)]  # one of the catalogue's names, in the schema too
# A bound typed as 95 where 0.95 is meant would fail every machine; 1.5 is impossible but clear.
LARGEST_FRACTION_BOUND = 2.0
# From above, 2 where 2 % is meant would pass every machine, and so would 1 where 1 % is.
LEAST_SENSELESS_UPPER_FRACTION_BOUND = 1.0
# bound = measured less margin, compared at the precision people round bounds to.
MARGIN_TOLERANCE = 0.006
# Drivers reserve memory, more or less by version: an 80 GB A100 reports 79.3 or 80 GiB, a 16 GB V100
# as little as 15.8. Wider would take an 84 GB RTX PRO 6000D for the 96 GB RTX PRO 6000.
MEMORY_TOLERANCE = 0.10


# The words for a world size that depends on where it is measured: `node`, `2 nodes` …, `all`.
_WORLD_SIZE_IN_WORDS = r"node|all|([2-9]|[1-9][0-9]{1,5}) nodes"


def _known_world_size(value: Any) -> Any:
    if type(value) is int and 1 <= value <= MOST_RANKS:
        return value
    if isinstance(value, str) and re.fullmatch(_WORLD_SIZE_IN_WORDS, value):
        return value
    raise PydanticCustomError(
        "int_type", f"a whole number from 1 to {MOST_RANKS}, `node`, `all`, or a number of nodes: `2 nodes`"
    )


# Far beyond any real SKU; what compares requirements with each other stays quick.
MOST_REQUIREMENTS = 500
MOST_SKUS = 200


def _readable(text: str) -> str:
    odd = next((c for c in text if not c.isprintable() and c != "\n"), None)
    if odd is not None:
        raise ValueError(f"there is a control character, {odd!r}, in it; expected plain text")
    return text


# Text for people, which is printed on terminals and in reports.
Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1), AfterValidator(_readable)]
Reference = Annotated[str, StringConstraints(strip_whitespace=True, min_length=3), AfterValidator(_readable)]
Reasoning = Annotated[str, StringConstraints(strip_whitespace=True, min_length=10), AfterValidator(_readable)]


class _Strict(BaseModel):
    # NaN compares as false with every bound, so it would slip through each check below.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Source(_Strict):
    """Where a number comes from.

    A published figure has `measured` and `reference`; a number without one has `reasoning`. How far a bound
    lies from what was measured is said by `margin_pct`, which is checked, or explained by `reasoning`.
    """

    measured: float | None = Field(None, ge=0, description="The published value, in the metric's unit.")
    margin_pct: float | None = Field(
        None, ge=0, lt=100, description="Distance of the bound from `measured`, in per cent of it."
    )
    reference: Reference | None = Field(None, description="Who published it, and for what.")
    reasoning: Reasoning | None = Field(None, description="Why this number, if nobody published one.")


class Requirement(_Strict):
    """One line of thresholds.yaml, one test item."""

    metric: MetricName
    workload: str = Field("", description="A name under this SKU's `workloads`.")
    probe: str = Field("", description="What is probed without training, such as `matmul-bf16` or `all-reduce-32mib`.")
    check: str = Field("", description="A check of the nodes; `checks` of the SKU is the short form.")
    world_size: Annotated[
        WorldSize,
        BeforeValidator(_known_world_size),
        WithJsonSchema(
            {
                "anyOf": [
                    {"type": "integer", "minimum": 1, "maximum": MOST_RANKS},
                    {"type": "string", "pattern": f"^({_WORLD_SIZE_IN_WORDS})$"},
                ]
            }
        ),
    ] = Field(
        1,
        description="Ranks that train together: a number; `node`, all GPUs of one node; `2 nodes`, or `all`, every GPU "
        "of the run. The last two are asked only of runs on so many nodes, more than one.",
    )
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
        self._check_subject()
        self._check_bound()
        self._check_source()
        if self.definition.takes_versus != (self.versus is not None):
            needs = "needs" if self.definition.takes_versus else "takes no"
            raise ValueError(f"{self.metric} {needs} `versus: SKU`")
        self._check_world_size()
        self._check_range()
        if self.placement == "spread" and self.world_size == 1:
            raise ValueError("placement spread says nothing about world_size 1; expected at least 2")
        return self

    def _check_subject(self) -> None:
        wanted = self.definition.subject
        for field in ("workload", "probe", "check"):
            if (getattr(self, field) != "") != (field == wanted):
                raise ValueError(f"{self.metric} {'needs' if field == wanted else 'takes no'} `{field}: NAME`")
        ranks = self.world_size if isinstance(self.world_size, int) else 2
        if wanted == "probe" and Probe(self.probe, ranks).kind not in self.definition.probes:
            raise ValueError(
                f"{self.metric} is not what {self.probe} measures; expected {', '.join(self.definition.probes)}"
            )
        if wanted == "check":
            _refuse_unknown_checks([self.check])
            if self.at_least != 1:
                raise ValueError(f"{self.metric} is kept by all nodes or it is not; expected `at_least: 1`")
        if wanted != "workload" and self.placement == "spread":
            raise ValueError(f"{self.metric} is not about where ranks are placed; expected no `placement: spread`")
        if wanted in ("check", "node") and self.world_size != 1:
            raise ValueError(f"{self.metric} is about whole nodes; expected no `world_size`")

    def _check_world_size(self) -> None:
        least, most = self.definition.minimum_world_size, self.definition.maximum_world_size
        if isinstance(self.world_size, str):
            if self.definition.scaling == "strong":
                raise ValueError(f"{self.metric} shares one batch among the ranks; expected a number as `world_size`")
            if most is None:
                return
        elif least <= self.world_size <= (most or self.world_size):
            return
        expected = f"at least {least}" if most is None else f"{least}" if least == most else f"{least} to {most}"
        raise ValueError(f"world_size {self.world_size} says nothing about {self.metric}; expected {expected}")

    def _check_bound(self) -> None:
        key = self.definition.bound_key
        if getattr(self, key) is None or (self.at_least is not None and self.at_most is not None):
            raise ValueError(f"{self.metric} needs exactly one bound, `{key}: NUMBER`")
        only = self.definition.only_bound
        if only is not None and self.bound != only:
            raise ValueError(
                f"{key} {self.bound:g} for {self.metric} lets ranks differ that have to agree bit for bit; "
                f"expected {only:g}"
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

    def _check_range(self) -> None:
        least, most = self.definition.range_at(self.world_size if isinstance(self.world_size, int) else 1)
        if self.source.measured == 0 and least > 0:
            raise ValueError(f"nobody measured a {self.metric} of 0; expected what was measured")
        key = self.definition.bound_key
        never_fails = self.bound >= most if self.definition.upper_bound else self.bound < least
        never_passes = self.bound < least if self.definition.upper_bound else self.bound > most
        if never_fails or never_passes:
            what = "no machine could fail it" if never_fails else "no machine could pass it"
            unit = "" if self.definition.unit in ("fraction", "x") else f" {self.definition.unit}"
            raise ValueError(
                f"{key} {self.bound:g} for {self.metric} judges nothing: {what}; expected {least:g} to {most:g}{unit}"
            )

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

    @property
    def subject(self) -> str:
        """Name of the workload, the probe or the check that it is about; empty if it is about a node as a whole."""
        return self.workload or self.probe or self.check

    def key(self) -> tuple[str, str, WorldSize, Placement, str | None]:
        """What is measured; two requirements may share it and differ in bound and severity."""
        return (self.metric, self.subject, self.world_size, self.placement, self.versus)


def _known_checks(checks: dict[str, Severity]) -> dict[str, Severity]:
    _refuse_unknown_checks(checks)
    return checks


def _refuse_unknown_checks(names: Iterable[str]) -> None:
    unknown = [name for name in names if name not in NODE_CHECKS]
    if unknown:
        raise ValueError(f"there is no check {unknown[0]!r}; expected some of {', '.join(NODE_CHECKS)}")


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

    @property
    def memory_band_gib(self) -> tuple[float, float] | None:
        """Least and most memory that a driver may report, in GiB; None where any will do."""
        if self.memory_gib is None:
            return None
        return self.memory_gib * (1 - MEMORY_TOLERANCE), self.memory_gib * (1 + MEMORY_TOLERANCE)

    @model_validator(mode="after")
    def _check(self) -> Detect:
        if self.device == "cuda" and self.name is None:
            raise ValueError("a GPU needs `name: '^…$'`")
        if self.name is not None:
            why_not = why_no_name_pattern(self.name)
            if why_not:
                raise ValueError(f"name {self.name!r} {why_not}")
        return self


class Peak(_Strict):
    """What the vendor promises for one GPU."""

    fp16_tflops: float | None = Field(None, gt=0, description="Dense tensor-core fp16, TFLOPS.")
    bf16_tflops: float | None = Field(None, gt=0, description="Dense tensor-core bf16, TFLOPS.")
    fp32_tflops: float | None = Field(None, gt=0, description="Non-tensor fp32 (no TF32), TFLOPS.")
    memory_bandwidth_gbps: float | None = Field(None, gt=0, description="Device memory, GB/s.")
    link: Text | None = Field(None, description="GPU to GPU, for example NVLink3.")
    link_bandwidth_gbps: float | None = Field(None, gt=0, description="GPU to GPU, one direction, GB/s.")
    source: Source

    def tflops(self, precision: Precision) -> float | None:
        """Dense peak in a workload's precision, in TFLOPS; None if it is not known.

        For fp32 that of the plain units: TF32 keeps fewer digits, and is no precision of a workload.
        """
        return {"fp16": self.fp16_tflops, "bf16": self.bf16_tflops, "fp32": self.fp32_tflops}[precision]


class Node(_Strict):
    """What a node with this SKU has to be."""

    gpus: int | None = Field(None, ge=1, le=64, description="GPUs of this SKU that a node has at least.")
    pcie_generation: int | None = Field(None, ge=1, le=9, description="That GPU and slot can have together.")
    pcie_width: int | None = Field(None, ge=1, le=32, description="Lanes of each GPU.")
    nvlinks: int | None = Field(None, ge=0, le=64, description="NVLinks of each GPU; 0 for none.")
    ecc: bool | None = Field(None, description="Whether errors of device memory have to be corrected.")
    free_disk_gib: float = Field(1.0, gt=0, description="Where the run is written.")
    clock_skew_s: float = Field(1.0, gt=0, description="Most that clocks of nodes may differ.")
    source: Source


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

    description: Text
    aliases: list[str] = []
    detect: Detect
    peak: Peak | None = None
    node: Node | None = None
    checks: Annotated[dict[str, Severity], AfterValidator(_known_checks)] = Field(
        default={}, description="Checks of the nodes, by name: what a node that does not pass means for the run."
    )
    workloads: Annotated[dict[str, Workload], BeforeValidator(_with_name)] = {}
    beyond_node: Literal["asked", "missing", "dropped"] = Field(
        "asked",
        description="A number of ranks on several nodes with fewer: over them, never measured, or no requirement.",
    )
    requirements: list[Requirement] = Field(default=[], max_length=MOST_REQUIREMENTS)

    @property
    def all_requirements(self) -> list[Requirement]:
        """Those of `checks` first, as they are found out first."""
        return [*(_check_of_nodes(name, severity) for name, severity in self.checks.items()), *self.requirements]

    def peak_tflops(self, workload: Workload) -> float | None:
        """Dense peak of one GPU in the workload's precision, in TFLOPS; None if it is not known."""
        return None if self.peak is None else self.peak.tflops(workload.precision)


def _check_of_nodes(name: str, severity: Severity) -> Requirement:
    reasoning = f"no measured number: {NODE_CHECKS[name].meaning}"
    line = {"metric": NODE_CHECK.name, "check": name, "at_least": 1.0, "severity": severity, "provisional": True}
    return Requirement.model_validate({**line, "source": {"reasoning": reasoning}})


class Thresholds(_Strict):
    """A whole thresholds.yaml."""

    schema_version: Literal[1]
    skus: dict[str, Sku] = Field(min_length=1, max_length=MOST_SKUS)

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
        name = THROUGHPUT_PER_GPU.name
        wanted = (name, requirement.workload, requirement.world_size, requirement.placement, None)
        for candidate in reference.requirements:
            if candidate.key() == wanted and candidate.source.measured is not None:
                return candidate.source.measured, candidate.source
        raise LookupError(f"{requirement.versus} publishes no {name} for {requirement.workload}")
