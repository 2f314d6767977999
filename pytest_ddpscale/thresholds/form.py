"""The form of thresholds.yaml, version 2, as written: rows by world size, and names for repeated entries."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from datetime import date
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from pytest_ddpscale.plan.arm import OneGpu, Placement
from pytest_ddpscale.plan.layout import WorldSize
from pytest_ddpscale.plan.metric_catalogue import METRICS, NODE_CHECK, Metric
from pytest_ddpscale.plan.node_check import NODE_CHECKS
from pytest_ddpscale.plan.study import MOST_RANKS
from pytest_ddpscale.plan.variables import VARIABLES
from pytest_ddpscale.removed import REMOVED
from pytest_ddpscale.thresholds.model import BeyondNode, RequirementKey, Severity
from pytest_ddpscale.thresholds.parts import (
    AnyWorkload,
    BatchForm,
    Detect,
    Name,
    Node,
    Peak,
    Person,
    Strict,
    Text,
    Words,
)
from pytest_ddpscale.util.nearest import did_you_mean

Form = TypeVar("Form", bound=Strict)
SCHEMA_VERSION = 2
# Node checks have their own rows.
ROW_METRICS = tuple(name for name in METRICS if name != NODE_CHECK.name)
# World sizes that depend on the machine.
_IN_WORDS = r"node|all|([2-9]|[1-9][0-9]{1,5}) nodes"
_OF_PEERS = re.compile(r"([0-9]{1,3}(?:\.[0-9]+)?) ?%")
_LEAST_PCT = 1.0  # noise and ordinary differences reach less
_PER_CENT = re.compile(r"([0-9]{1,2}(?:\.[0-9]+)?) ?%")
_NUMBER: dict[str, object] = {"type": "number", "minimum": 0}
# Far beyond any real file, but small enough that comparing requirements with each other stays fast.
MOST_REQUIREMENTS = 500
MOST_SKUS = 200
SECTIONS = ("sources", "reasons", "margins", "workloads", "families", "skus")
ROW_LISTS = ("requirements", "change")  # of a SKU


def _known_world_size(value: Any) -> Any:
    is_number = type(value) is int and 1 <= value <= MOST_RANKS
    if is_number or (isinstance(value, str) and re.fullmatch(_IN_WORDS, value)):
        return value
    expected = f"a whole number from 1 to {MOST_RANKS}, `node`, `all`, or `2 nodes`"
    raise PydanticCustomError("world_size", expected)


def _margin_pct(value: Any) -> Any:
    matched = _PER_CENT.fullmatch(value) if isinstance(value, str) else None
    if matched is None:
        kind = "per_cent_type" if isinstance(value, dict) else "per_cent"  # which may be a margin with a name
        raise PydanticCustomError(kind, "per cent from 0 to 99, such as `5 %`")
    return float(matched[1])


def _margin(value: Any) -> Any:
    is_name = value is None or (isinstance(value, str) and "%" not in value)
    if not is_name and not (isinstance(value, str) and _PER_CENT.fullmatch(value)):
        raise PydanticCustomError("per_cent", "per cent from 0 to 99, such as `5 %`, or a name under `margins`")
    return value


def _by_world_size(of_each: dict[str, object]) -> WithJsonSchema:
    keys = rf"^([1-9][0-9]*|{_IN_WORDS})$"
    return WithJsonSchema(
        {"type": "object", "minProperties": 1, "patternProperties": {keys: of_each}, "additionalProperties": False}
    )


_WorldSizeKey = Annotated[WorldSize, BeforeValidator(_known_world_size)]
_Number = Annotated[float, Field(ge=0)]
_Names = str | Annotated[list[str], Field(min_length=1, max_length=MOST_REQUIREMENTS)]
# Per world size, one number for all workloads or probes, or one for each by name.
Values = Annotated[
    dict[_WorldSizeKey, _Number | Annotated[dict[str, _Number], Field(min_length=1)]],
    Field(min_length=1),
    _by_world_size({"anyOf": [_NUMBER, {"type": "object", "minProperties": 1, "additionalProperties": _NUMBER}]}),
]
Bounds = Annotated[dict[_WorldSizeKey, _Number], Field(min_length=1), _by_world_size(_NUMBER)]
PerCent = Annotated[
    float, BeforeValidator(_margin_pct), WithJsonSchema({"type": "string", "pattern": f"^{_PER_CENT.pattern}$"})
]
if TYPE_CHECKING:
    MetricName: TypeAlias = str
    VariableName: TypeAlias = str
else:
    MetricName = Literal[ROW_METRICS]  # one of the catalogue's names, in the schema too
    VariableName = Literal[tuple(dict.fromkeys(one.name for one in VARIABLES))]


def _limit(value: Any) -> Any:
    if value == "off":
        return value
    matched = _OF_PEERS.fullmatch(value) if isinstance(value, str) else None
    if matched is None or float(matched[1]) < _LEAST_PCT:
        raise PydanticCustomError("peer_limit", "per cent from 1 to 999, such as `5 %`, or `off`")
    return value


Limit = Annotated[
    str,
    BeforeValidator(_limit),
    WithJsonSchema({"anyOf": [{"type": "string", "pattern": f"^{_OF_PEERS.pattern}$"}, {"const": "off"}]}),
]


class PeersForm(Strict):
    """By how much a place may be slower than the median of its peers, whatever is published; or `off`."""

    computing: Limit | None = Field(None, description="GPUs of the run, each by its own forward passes.")
    nodes: Limit | None = Field(None, description="Nodes: the median of one's GPUs against the other nodes'.")
    memory: Limit | None = Field(None, description="Copies within the memory of a GPU.")
    host: Limit | None = Field(None, description="Copies from and to the host, by position on other nodes.")
    pairs: Limit | None = Field(None, description="Pairs of GPUs inside a node, by position on other nodes.")

    @property
    def fractions(self) -> dict[str, float | None]:
        """The limits that it has, as fractions; None for `off`."""
        matched = {name: _OF_PEERS.fullmatch(told) for name, told in self.model_dump(exclude_none=True).items()}
        return {name: float(found[1]) / 100 if found else None for name, found in matched.items()}


class CheckRow(Strict):
    """A row of node checks: ``{check: [ecc, nvlink], severity: fail}``."""

    check: _Names = Field(description="Names of checks.")
    severity: Severity = Field(description="Whether a failing node rejects the run, or is only reported.")

    @model_validator(mode="after")
    def _check(self) -> CheckRow:
        for name in self.severities:
            if instead := REMOVED.get(f"thresholds check: {name}"):
                raise ValueError(f"check {name!r} was removed; instead: {instead}")
            if name not in NODE_CHECKS:
                near = did_you_mean(name, NODE_CHECKS) or f"; expected some of {', '.join(NODE_CHECKS)}"
                raise ValueError(f"there is no check {name!r}{near}")
        return self

    @property
    def severities(self) -> dict[str, Severity]:
        """Severity by check."""
        return dict.fromkeys([self.check] if isinstance(self.check, str) else self.check, self.severity)


class Row(Strict):
    """One row under `requirements`: metrics, each with its published values or its bounds by world size.

    `metrics` collects the keys that name metrics: ``{busbw_gbps: {8: 228}, probe: …}``.
    """

    metrics: dict[MetricName, Values] = Field(
        description="A metric: its values by world size, `{8: 480.1}`; the value alone if one fits."
    )
    of: _Names = Field("", description="Workloads: names under `workloads` for which the SKU has a `batch`.")
    probe: _Names = Field(
        "", description="Probes without training: `matmul-bf16`, `all-reduce-32mib`, with their size."
    )
    published: str | None = Field(None, description="Source of the values: a name under `sources`.")
    margin: Annotated[str | None, BeforeValidator(_margin)] = Field(
        None,
        description="`5 %` from published values to bounds, or a name; default: the metric's own.",
    )
    bound: _Number | Bounds | None = Field(None, description="The bound itself, in place of a margin.")
    sound: _Number | Values | None = Field(
        None, description="What a sound machine reaches, if not the published value; judges nothing.",
    )  # fmt: skip
    provisional: Text | None = Field(
        None, description="The values are bounds: why these without a publication, or a name."
    )
    because: Text | None = Field(None, description="Why this margin, bound or severity, or a name under `reasons`.")
    severity: Severity | None = Field(
        None, description="`warn` is reported and never rejects. Default: fail; warn if provisional."
    )
    placement: Placement = Field(
        "packed", description="`packed` fills a node before the next; `spread` deals ranks to nodes in turn."
    )
    versus: str | None = Field(None, description="Reference of a generation_ratio: a SKU.")
    baseline: OneGpu = Field(
        "alone",
        description="How the source trained its single GPU, and the run does: `alone`, or under `ddp`.",
    )

    @model_validator(mode="before")
    @classmethod
    def _metrics_are_keys(cls, data: Any) -> Any:
        told = with_metrics(data, [name for name in cls.model_fields if name != "metrics"])
        for name, values in told["metrics"].items() if isinstance(told, dict) else ():
            if not isinstance(values, dict):
                told["metrics"][name] = {1: values} if _has_one_size(METRICS[name]) else _refused(name, values)
        return told

    @model_validator(mode="after")
    def _check(self) -> Row:
        return _refused_with(self, self._mistakes())

    def _mistakes(self) -> Iterator[str]:
        if (self.versus or "").startswith("run:"):
            yield f"`versus: run:DIR` was removed; instead: {REMOVED['thresholds versus: run:DIR']}"
        if self.of and self.probe:
            yield "has both `of` and `probe`; expected one of them"
        agree = all(METRICS[metric].only_bound is not None for metric in self.metrics)
        if self.published is not None and self.provisional is not None:
            yield "has both `published` and `provisional`; expected one of them"
        if self.published is None and self.provisional is None and not (agree and self.because):
            yield "has no source of its values; expected `published: NAME` or `provisional: WHY`"
        if self.published is None and (self.margin is not None or self.bound is not None):
            yield "`margin` and `bound` need `published`; without it the values are the bounds"
        if self.baseline == "ddp" and not self._times_one_gpu:
            yield "`baseline: ddp` is about a single GPU, but none of these values needs one"
        sizes = [size for values in self.metrics.values() for size in values]
        if self.bound is not None and (self.margin is not None or self.because is None):
            yield "a stated `bound` needs `because: 'why this distance'` and no `margin`"
        if isinstance(self.bound, dict) and set(self.bound) != set(sizes):
            yield "`bound` has other world sizes than the values; expected the same"
        is_one = len(self.metrics) == 1 and (len(sizes) == 1 or isinstance(self.bound, dict))
        if self.bound is not None and not is_one:
            yield "one `bound` for several values; expected one metric, {2: …, 4: …} by world size"
        if self.sound is not None and len(self.metrics) > 1:
            yield "`sound` needs a row with one metric"
        [values, *_] = self.metrics.values()
        for size, told in self.sound.items() if isinstance(self.sound, dict) else ():
            of_size = values.get(size)
            if of_size is None:
                yield f"`sound` has world size {size}, of which the row has no value"
            names = of_size.keys() if isinstance(of_size, dict) else self.subjects
            if isinstance(told, dict) and (others := told.keys() - names):
                yield f"`sound` has {', '.join(sorted(others))}, of which the row has no value"

    @property
    def _times_one_gpu(self) -> bool:
        sizes = [(METRICS[metric], size) for metric, by_size in self.metrics.items() for size in by_size]
        return any(metric.times_one_gpu(is_of_one=size == 1) for metric, size in sizes)

    @property
    def subjects(self) -> list[str]:
        """Names of its workloads or probes; one empty name if it has none."""
        named = self.of or self.probe
        return [named] if isinstance(named, str) else named

    def values_of(self, metric: str, told: float | dict[str, float]) -> list[tuple[str, float]]:
        """Each subject of a metric with its value. Raises ValueError if both the row and the values name subjects."""
        if not isinstance(told, dict):
            return [(subject, told) for subject in self.subjects]
        if self.subjects != [""] or self.bound is not None:
            raise ValueError(f"{metric} has a value for each name; expected no `of`, `probe` or `bound`")
        return [*told.items()]

    @property
    def margin_pct(self) -> float | None:
        """Its margin, in per cent; None if it has none, or gives it by name."""
        matched = _PER_CENT.fullmatch(self.margin or "")
        return float(matched[1]) if matched else None

    def bound_at(self, world_size: WorldSize) -> float | None:
        """The stated bound; None if the bound follows from a margin, or is the value itself."""
        return at_size(self.bound, world_size)

    def sound_at(self, world_size: WorldSize, subject: str) -> float | None:
        """What a sound machine is thought to reach; None if the row does not say it.

        Raises:
            ValueError: it says it, but not for this world size or subject.
        """
        if not isinstance(self.sound, dict):
            return self.sound
        found = self.sound.get(world_size, {})
        number = found.get(subject) if isinstance(found, dict) else found
        if number is None:
            raise ValueError(f"`sound` has none of {subject or 'nodes'} at world size {world_size}")
        return number


def _refused_with(form: Form, mistakes: Iterator[str]) -> Form:
    """A form without mistakes. Raises ValueError with the first."""
    for mistake in mistakes:
        raise ValueError(mistake)
    return form


def at_size(told: float | dict[WorldSize, float] | None, world_size: WorldSize) -> float | None:
    """The number of a world size, of one number for all or of one for each."""
    return told[world_size] if isinstance(told, dict) else told


def with_metrics(data: Any, others: Collection[str]) -> Any:
    """A row with its metric keys moved under `metrics`.

    Args:
        data: the row as read.
        others: the other keys that a row may have.

    Raises:
        ValueError: it has no metric, or an unknown key.
    """
    if not isinstance(data, dict):
        return data
    for key in data:
        if key not in ROW_METRICS and key not in others:
            if instead := REMOVED.get(f"thresholds {key}"):
                raise ValueError(f"{key!r} was removed; instead: {instead}")
            near = did_you_mean(str(key), [*ROW_METRICS, *others])
            raise ValueError(f"unknown key {key!r}{near or '; expected a metric, or ' + ', '.join(others)}")
    metrics = {key: data[key] for key in data if key in ROW_METRICS}
    if not metrics:
        raise ValueError("has no metric; expected one as a key, such as throughput_per_gpu: {8: 480.1}")
    return {"metrics": metrics, **{key: value for key, value in data.items() if key not in metrics}}


def _refused(metric: str, values: Any) -> Any:
    raise ValueError(f"{metric} is {values!r:.40}; expected values by world size, such as {{8: 480.1}}")


def _has_one_size(metric: Metric) -> bool:
    """Whether a single number without world size is unambiguous."""
    return metric.maximum_world_size == 1 or metric.subject == "node"


class Change(Strict):
    """A change of rows below: ``{busbw_gbps: [8, all], probe: …, severity: off, who: …, why: …}``.

    A row is named by its metric with world sizes, or `any`, and its workload or probe; or by `check`. With `until` the
    change is a waiver: the rows still fail, and the run is accepted with waivers until that day.
    """

    metric: str = Field(NODE_CHECK.name, description="A metric, as a key: its world sizes, `[8, all]`, or `any`.")
    world_sizes: list[_WorldSizeKey] = Field([], description="Empty for all.")
    of: str = Field("", description="Workload of the changed rows.")
    probe: str = Field("", description="Probe of the changed rows.")
    check: str = Field("", description="The changed check, in place of a metric.")
    placement: Placement = Field("packed", description="Placement of the changed rows.")
    versus: str | None = Field(None, description="Reference of a changed `generation_ratio`.")
    severity: Literal["off", "warn", "fail"] | None = Field(
        None, description="`fail` rejects the run; `warn` is only reported; `off` is not required."
    )
    bound: _Number | Bounds | None = Field(None, description="Another bound, {1: 470, 8: 455} by world size.")
    until: date | None = Field(
        None,
        description="The last day of a waiver, with `severity: warn`: 2026-12-31.",
    )
    who: Person = Field(description="The responsible person.")
    why: Words = Field(description="The reason.")

    @model_validator(mode="before")
    @classmethod
    def _metric_is_a_key(cls, data: Any) -> Any:
        if not isinstance(data, dict) or "check" in data:
            return data
        told = with_metrics(data, [name for name in cls.model_fields if name not in ("metric", "world_sizes")])
        metrics = told.pop("metrics")
        if len(metrics) > 1:
            raise ValueError(f"has {', '.join(metrics)}; expected one metric")
        ((metric, sizes),) = metrics.items()
        if isinstance(sizes, (float, dict)):
            expected = "some, such as [8, all], or `any`, and a new bound under `bound`"
            raise ValueError(f"{metric} names world sizes here, found {sizes!r:.40}; expected {expected}")  # noqa: TRY004
        if sizes == "any":
            return {**told, "metric": metric}
        if sizes == []:
            raise ValueError(f"{metric} has no world size; expected some, such as [8, all], or `any`")
        return {**told, "metric": metric, "world_sizes": sizes if isinstance(sizes, list) else [sizes]}

    @model_validator(mode="after")
    def _check(self) -> Change:
        return _refused_with(self, self._mistakes())

    def _mistakes(self) -> Iterator[str]:
        if "until" in self.model_fields_set and self.until is None:
            yield "`until` is empty; expected the last day of the waiver, such as 2026-12-31"
        if self.until is not None and (self.severity != "warn" or self.bound is not None):
            yield "`until` makes it a waiver; expected `severity: warn` and no `bound`"
        if self.severity is None and self.bound is None:
            yield "changes nothing; expected `severity` or `bound`"
        if self.bound is not None and (self.check or self.severity == "off"):
            yield "a check, or a row that is off, has no bound; expected no `bound`"
        if isinstance(self.bound, dict) and set(self.bound) != set(self.world_sizes):
            yield "`bound` has other world sizes than the metric; expected the same"
        if self.bound is not None and len(self.world_sizes) != 1 and not isinstance(self.bound, dict):
            yield "one `bound` for several world sizes; expected {2: …, 4: …} by world size"

    def names(self, key: RequirementKey) -> bool:
        """Whether it names a requirement, at whatever world size."""
        metric, subject, _, placement, versus = key
        named = self.metric, self.of or self.probe or self.check, self.placement, self.versus
        return (metric, subject, placement, versus) == named


class NamedMargin(Strict):
    """Margins with one reason: ``{busbw_gbps: 15 %, because: …}``."""

    metrics: Annotated[dict[MetricName, PerCent], Field(min_length=1)]
    because: Text

    @model_validator(mode="before")
    @classmethod
    def _metrics_are_keys(cls, data: Any) -> Any:
        return with_metrics(data, ["because"])


def _row_shape(row: Any) -> str:
    return "[checks]" if isinstance(row, dict) and "check" in row else "[values]"


AnyRow = Annotated[
    Annotated[CheckRow, Tag("[checks]")] | Annotated[Row, Tag("[values]")], Discriminator(_row_shape)
]  # fmt: skip


class SkuForm(Strict):
    """One GPU model. In a file that extends another, only the differences."""

    model_config = ConfigDict(json_schema_extra={"required": ["description", "detect"]})  # of all files together

    description: Text = Field(default="", description="The model's full name.")
    detect: Detect = Field(  # type: ignore[assignment]  # unlike one that is left out, an empty one is refused
        default=None, description="How to recognise a GPU of this model."
    )
    aliases: list[str] = Field([], description="Additional names.")
    peak: Peak | None = Field(None, description="Data-sheet values of one GPU.")
    peers: PeersForm | None = Field(None, description="Its own limits, in place of the file's `peers`.")
    node: Node | None = Field(None, description="Expected state of a node with these GPUs.")
    environment: dict[VariableName, Text] = Field(
        {}, description="Environment variables that the site sets on purpose, each with the reason."
    )
    families: list[str] = Field([], max_length=50, description="Names under `families` whose rows it shares.")
    batch: dict[Name, Annotated[int, Field(ge=1, le=10**6)] | BatchForm] = Field(
        {}, description="Batch size of each workload: samples per GPU, or {per_gpu: …, global: …}."
    )
    beyond_node: BeyondNode = Field(
        "missing",
        description="Numbers of GPUs beyond a node: never measured, or not required.",
    )
    requirements: list[AnyRow] = Field(
        [], max_length=MOST_REQUIREMENTS, description="Its requirements; a row replaces the same row of its families."
    )
    change: list[Change] = Field(
        [], max_length=MOST_REQUIREMENTS,
        description="Other severities and bounds of rows of families or of files below; waivers.",
    )  # fmt: skip

    @field_validator(*ROW_LISTS, mode="before")
    @classmethod
    def _may_have_only_comments(cls, value: Any) -> Any:
        return [] if value is None else value


def _or_nothing(value: Any) -> Any:
    return {} if value is None else value


class FileForm(Strict):
    """A whole thresholds.yaml."""

    schema_version: int = Field(description="Version of the file's form.", json_schema_extra={"const": SCHEMA_VERSION})
    extends: str | None = Field(None, description="`packaged`, or the path of the file that this one changes.")
    sources: dict[Name, Text] = Field({}, description="Publications by name: who measured what, with what.")
    reasons: dict[Name, Text] = Field({}, description="Texts by name that `because` and `provisional` share.")
    margins: dict[Name, PerCent | NamedMargin] = Field(
        {}, description="From published values to bounds: by metric, or by a name that rows give."
    )
    peers: PeersForm | None = Field(None, description="By how much a place may be slower than its peers.")
    workloads: dict[Name, AnyWorkload] = Field({}, description="Training jobs, by name.")
    families: dict[Name, list[AnyRow]] = Field({}, description="Rows that SKUs share.")
    skus: dict[Name, Annotated[SkuForm, BeforeValidator(_or_nothing)]] = Field(
        {}, max_length=MOST_SKUS, description="GPU models, by name."
    )

    @field_validator("extends", mode="before")
    @classmethod
    def _is_a_path(cls, value: Any) -> Any:
        if not isinstance(value, str) or not value.strip():
            raise PydanticCustomError("extends", "`packaged` or a path")
        return value

    @field_validator(*SECTIONS, mode="before")
    @classmethod
    def _may_have_only_comments(cls, value: Any) -> Any:
        return _or_nothing(value)
