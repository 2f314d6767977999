"""The form of thresholds.yaml, version 2, as written: rows by world size, and names for repeated entries."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from datetime import date
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    WithJsonSchema,
    create_model,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError
from typing_extensions import TypeAliasType

from pytest_ddpscale.plan.arm import OneGpu, Placement
from pytest_ddpscale.plan.layout import WorldSize
from pytest_ddpscale.plan.metric_catalogue import METRICS, NODE_CHECK, Metric
from pytest_ddpscale.plan.node_check import NODE_CHECKS
from pytest_ddpscale.plan.study import MOST_RANKS
from pytest_ddpscale.plan.variables import VARIABLES
from pytest_ddpscale.removed import REMOVED
from pytest_ddpscale.thresholds.model import BeyondNode, PeerLimits, RequirementKey, Severity
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


def _margin_pct(value: Any, *, or_what: str = "") -> float:
    matched = _PER_CENT.fullmatch(value) if isinstance(value, str) else None
    if matched is None:
        kind = "per_cent_type" if isinstance(value, dict) else "per_cent"  # which may be a margin with a name
        raise PydanticCustomError(kind, f"per cent from 0 to 99, such as `5 %`{or_what}")
    return float(matched[1])


def _margin(value: Any) -> Any:
    is_name = value is None or (isinstance(value, str) and "%" not in value)
    return value if is_name else _margin_pct(value, or_what=", or a name under `margins`")


def _by_size(value: Any) -> Any:
    if not isinstance(value, dict):
        raise PydanticCustomError("values", "values by world size, such as {8: 480.1}")
    return value


def _of_one_size(value: Any) -> Any:
    return value if isinstance(value, dict) else {1: value}


def _by_world_size(by_size: dict[str, Any]) -> dict[str, Any]:
    keys = rf"^([1-9][0-9]*|{_IN_WORDS})$"
    return {"type": "object", "minProperties": 1, "patternProperties": {keys: by_size}, "additionalProperties": False}


_BY_NAME = {"type": "object", "minProperties": 1, "additionalProperties": _NUMBER}
_VALUES = _by_world_size({"anyOf": [_NUMBER, _BY_NAME]})
_WorldSizeKey = Annotated[WorldSize, BeforeValidator(_known_world_size)]
_Number = Annotated[float, Field(ge=0)]
_Names = str | Annotated[list[str], Field(min_length=1, max_length=MOST_REQUIREMENTS)]
# Per world size, one number for all workloads or probes, or one for each by name.
Values = TypeAliasType(
    "Values",
    Annotated[
        dict[_WorldSizeKey, _Number | Annotated[dict[str, _Number], Field(min_length=1)]],
        Field(min_length=1),
        BeforeValidator(_by_size),
        WithJsonSchema(_VALUES),
    ],
)
ValuesOrOne = TypeAliasType(
    "ValuesOrOne",
    Annotated[Values, BeforeValidator(_of_one_size), WithJsonSchema({"anyOf": [_VALUES, _NUMBER]})],
)
Bounds = Annotated[dict[_WorldSizeKey, _Number], Field(min_length=1), WithJsonSchema(_by_world_size(_NUMBER))]
PerCent = TypeAliasType(
    "PerCent",
    Annotated[
        float, BeforeValidator(_margin_pct), WithJsonSchema({"type": "string", "pattern": f"^{_PER_CENT.pattern}$"})
    ],
)
if TYPE_CHECKING:
    CheckName: TypeAlias = str
    PeersName: TypeAlias = str
    VariableName: TypeAlias = str
else:  # one of the known names, in the schema too
    CheckName = Literal[tuple(NODE_CHECKS)]
    PeersName = Literal[tuple(limit.name for limit in fields(PeerLimits))]
    VariableName = Literal[tuple(dict.fromkeys(variable.name for variable in VARIABLES))]


def _limit(value: Any) -> float | None:
    matched = _OF_PEERS.fullmatch(value) if isinstance(value, str) else None
    if value != "off" and (matched is None or float(matched[1]) < _LEAST_PCT):
        raise PydanticCustomError("peer_limit", "per cent from 1 to 999, such as `5 %`, or `off`")
    return float(matched[1]) / 100 if matched else None


Limit = Annotated[
    float | None,
    BeforeValidator(_limit),
    WithJsonSchema({"anyOf": [{"type": "string", "pattern": f"^{_OF_PEERS.pattern}$"}, {"const": "off"}]}),
]
# By how much a place may be slower than the median of its peers, whatever is published; None if it is `off`.
Peers = Annotated[dict[PeersName, Limit], Field(min_length=1)]


def _world_sizes(value: Any) -> Any:
    if isinstance(value, (float, dict)) or value == []:
        expected = "world sizes, such as [8, all], or `any`; another bound is under `bound`"
        raise PydanticCustomError("world_sizes", expected)
    return [] if value == "any" else value if isinstance(value, list) else [value]


_SIZE = {"type": ["integer", "string"]}
WorldSizes = TypeAliasType(
    "WorldSizes",
    Annotated[
        list[_WorldSizeKey],
        BeforeValidator(_world_sizes),
        WithJsonSchema({"anyOf": [_SIZE, {"type": "array", "items": _SIZE, "minItems": 1}]}),
    ],
)


class _ByMetric(Strict):
    """A mapping with names of metrics as keys.

    Attributes:
        metrics: what it says of each metric, in the order of the file.
    """

    metrics: ClassVar[dict[str, Any]] = {}

    @model_validator(mode="wrap")
    @classmethod
    def _keeps_their_order(cls, data: Any, validated: Callable[[Any], Any]) -> Any:
        made = validated(data)
        made.__dict__["metrics"] = {name: getattr(made, name) for name in data if name in METRICS}
        for mistake in made._mistakes():
            raise ValueError(mistake)
        return made

    def _mistakes(self) -> Iterator[str]:
        if not self.metrics:
            yield "has no metric; expected one as a key, such as throughput_per_gpu"


def _with_metrics(form: type[_ByMetric], kind_of: Callable[[Metric], Any]) -> type[_ByMetric]:
    """A form with a key for each metric."""
    fields: dict[str, Any] = {}
    for name in ROW_METRICS:
        fields[name] = kind_of(METRICS[name]), Field(None, description=METRICS[name].meaning)
    made: type[_ByMetric] = create_model(form.__name__, __base__=form, **fields)
    made.__doc__ = form.__doc__
    return made


class CheckRow(Strict):
    """A row of node checks: ``{check: [ecc, nvlink], severity: fail}``."""

    check: CheckName | Annotated[list[CheckName], Field(min_length=1)] = Field(description="Names of checks.")
    severity: Severity = Field(description="Whether a failing node rejects the run, or is only reported.")

    @property
    def severities(self) -> dict[str, Severity]:
        """Severity by check."""
        return dict.fromkeys([self.check] if isinstance(self.check, str) else self.check, self.severity)


class Row(_ByMetric):
    """One row under `requirements`: metrics, each with its published values or its bounds by world size."""

    of: _Names = Field("", description="Workloads: names under `workloads` for which the SKU has a `batch`.")
    probe: _Names = Field(
        "", description="Probes without training: `matmul-bf16`, `all-reduce-32mib`, with their size."
    )
    published: str | None = Field(None, description="Source of the values: a name under `sources`.")
    margin: Annotated[float | str | None, BeforeValidator(_margin), WithJsonSchema({"type": "string"})] = Field(
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

    def _mistakes(self) -> Iterator[str]:
        yield from super()._mistakes()
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
        if self.bound is not None and (self.margin is not None or self.because is None):
            yield "a stated `bound` needs `because: 'why this distance'` and no `margin`"
        sizes = [size for values in self.metrics.values() for size in values]
        for key, value in (("bound", self.bound), ("sound", self.sound)):
            if isinstance(value, dict) and set(value) != set(sizes):
                yield f"`{key}` has other world sizes than the values; expected the same"
        is_one = len(self.metrics) == 1 and (len(sizes) == 1 or isinstance(self.bound, dict))
        if self.bound is not None and not is_one:
            yield "one `bound` for several values; expected one metric, {2: …, 4: …} by world size"
        if self.sound is not None and len(self.metrics) > 1:
            yield "`sound` needs a row with one metric"
        for metric, size, value in self._stated_values:
            if isinstance(value, dict) and (self.subjects != [""] or self.bound is not None):
                yield f"{metric} has a value for each name; expected no `of`, `probe` or `bound`"
            sound = at(self.sound, size)
            if isinstance(sound, dict) and {*sound} != {*(value if isinstance(value, dict) else self.subjects)}:
                yield f"`sound` of world size {size} has other names than the values; expected the same"

    @property
    def _stated_values(self) -> Iterator[tuple[str, WorldSize, Any]]:
        yield from ((metric, size, given) for metric, values in self.metrics.items() for size, given in values.items())

    @property
    def _times_one_gpu(self) -> bool:
        return any(METRICS[metric].times_one_gpu(is_of_one=size == 1) for metric, size, _ in self._stated_values)

    @property
    def subjects(self) -> list[str]:
        """Names of its workloads or probes; one empty name if it has none."""
        named = self.of or self.probe
        return [named] if isinstance(named, str) else named

    @property
    def values(self) -> Iterator[tuple[str, WorldSize, str, float, float | None, float | None]]:
        """Metric, world size, subject, and value of each, the stated bound, and what a sound machine reaches."""
        for metric, size, given in self._stated_values:
            by_subject = given.items() if isinstance(given, dict) else ((subject, given) for subject in self.subjects)
            for subject, value in by_subject:
                yield metric, size, subject, value, at(self.bound, size), at(at(self.sound, size), subject)


def at(value: Any, key: WorldSize) -> Any:
    """What is told of a world size or a name, in one number for all or in one for each."""
    return value[key] if isinstance(value, dict) else value


class Change(_ByMetric):
    """A change of rows below: ``{busbw_gbps: [8, all], probe: …, severity: off, who: …, why: …}``.

    A row is named by its metric with world sizes, or `any`, and its workload or probe; or by `check`. With `until` the
    change is a waiver: the rows still fail, and the run is accepted with waivers until that day.
    """

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

    @property
    def metric(self) -> str:
        """Of the changed rows."""
        return next(iter(self.metrics), NODE_CHECK.name)

    @property
    def world_sizes(self) -> list[WorldSize]:
        """Of the changed rows; empty for all."""
        return [*self.metrics.get(self.metric, ())]

    def _mistakes(self) -> Iterator[str]:
        if len(self.metrics) + bool(self.check) != 1:
            yield f"names {', '.join(self.metrics) or 'no metric'}; expected one metric, or a check"
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
        subject = self.of or self.probe or self.check
        return (*key[:2], *key[3:]) == (self.metric, subject, self.placement, self.versus)


class NamedMargin(_ByMetric):
    """Margins with one reason: ``{busbw_gbps: 15 %, because: …}``."""

    because: Text


def _row_shape(row: Any) -> str:
    return "CheckRow" if isinstance(row, dict) and "check" in row else "Row"


def _values_of(metric: Metric) -> Any:
    return ValuesOrOne if metric.maximum_world_size == 1 or metric.subject == "node" else Values


if TYPE_CHECKING:
    AnyRow: TypeAlias = CheckRow | Row
    AnyChange: TypeAlias = Change
    AnyMargin: TypeAlias = float | NamedMargin
else:
    AnyRow = Annotated[
        Annotated[CheckRow, Tag("CheckRow")] | Annotated[_with_metrics(Row, _values_of), Tag("Row")],
        Discriminator(_row_shape),
    ]
    AnyChange = _with_metrics(Change, lambda _: WorldSizes)
    AnyMargin = PerCent | _with_metrics(NamedMargin, lambda _: PerCent)


class SkuForm(Strict):
    """One GPU model. In a file that extends another, only the differences."""

    description: Text = Field(default="", description="The model's full name; required.")
    detect: Detect = Field(  # type: ignore[assignment]  # unlike one that is left out, an empty one is refused
        default=None, description="How to recognise a GPU of this model; required."
    )
    aliases: list[str] = Field([], description="Additional names.")
    peak: Peak | None = Field(None, description="Data-sheet values of one GPU.")
    peers: Peers = Field({}, description="Its own limits, in place of the file's `peers`.")
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
    change: list[AnyChange] = Field(
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
    margins: dict[Name, AnyMargin] = Field(
        {}, description="From published values to bounds: by metric, or by a name that rows give."
    )
    peers: Peers = Field({}, description="By how much a place may be slower than the median of its peers; or `off`.")
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
