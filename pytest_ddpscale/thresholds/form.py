"""The second form of thresholds.yaml, as it is written: rows by world size, names for what is said more than once."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable
from datetime import date
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from pytest_ddpscale.plan.image_folder import MOST_LOADER_WORKERS, MOST_PREFETCH
from pytest_ddpscale.plan.layout import WorldSize
from pytest_ddpscale.plan.metric import Metric
from pytest_ddpscale.plan.metric_catalogue import METRICS, NODE_CHECK
from pytest_ddpscale.plan.node_check import NODE_CHECKS
from pytest_ddpscale.plan.study import MOST_RANKS, OneGpu, Placement
from pytest_ddpscale.plan.torchvision_models import TORCHVISION_MODELS
from pytest_ddpscale.plan.workload import MemoryFormat, Precision
from pytest_ddpscale.thresholds.hardware import Detect, Node, Peak, Strict, Text
from pytest_ddpscale.thresholds.model import BeyondNode, Severity

SCHEMA_VERSION = 2
# Checks of the nodes have rows of their own.
ROW_METRICS = tuple(name for name in METRICS if name != NODE_CHECK.name)
# The words for a world size that depends on where it is measured.
_IN_WORDS = r"node|all|([2-9]|[1-9][0-9]{1,5}) nodes"
_PER_CENT = re.compile(r"([0-9]{1,2}(?:\.[0-9]+)?) ?%")
_NUMBER: dict[str, object] = {"type": "number", "minimum": 0}
# Far beyond any real SKU; what compares requirements with each other stays quick.
MOST_REQUIREMENTS = 500
MOST_SKUS = 200
# What pydantic calls the two ways to write an entry, a name or a list of them; no message shows it.
WHOLE, PARTS = "[whole]", "[parts]"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``; did you mean 'margin'?``, or nothing if no known name is near."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _known_world_size(value: Any) -> Any:
    is_number = type(value) is int and 1 <= value <= MOST_RANKS
    if is_number or (isinstance(value, str) and re.fullmatch(_IN_WORDS, value)):
        return value
    expected = f"a whole number from 1 to {MOST_RANKS}, `node`, `all`, or a number of nodes: `2 nodes`"
    raise PydanticCustomError("world_size", expected)


def _margin_pct(value: Any) -> Any:
    matched = _PER_CENT.fullmatch(value) if isinstance(value, str) else None
    if matched is None:
        raise PydanticCustomError("per_cent", "per cent from 0 to 99, such as `5 %`")
    return float(matched[1])


def _known_model(name: str) -> str:
    if name not in TORCHVISION_MODELS:
        near = did_you_mean(name, sorted(TORCHVISION_MODELS)) or "; expected a classification model of it"
        raise ValueError(f"torchvision has no model {name!r}{near}")
    return name


def _absolute(path: str) -> str:
    if not PurePath(path).is_absolute():
        raise ValueError(f"{path!r} is no absolute path, which ranks find wherever they start")
    return path


def _known_checks(checks: dict[str, Severity]) -> dict[str, Severity]:
    for name in checks:
        if name not in NODE_CHECKS:
            near = did_you_mean(name, NODE_CHECKS) or f"; expected some of {', '.join(NODE_CHECKS)}"
            raise ValueError(f"there is no check {name!r}{near}")
    return checks


def _by_world_size(of_each: dict[str, object]) -> WithJsonSchema:
    keys = rf"^([1-9][0-9]*|{_IN_WORDS})$"
    return WithJsonSchema(
        {"type": "object", "minProperties": 1, "patternProperties": {keys: of_each}, "additionalProperties": False}
    )


def _shape(value: Any) -> str:
    return WHOLE if isinstance(value, (str, int, float)) or value is None else PARTS


_BY_SHAPE = Discriminator(_shape)
_WorldSizeKey = Annotated[WorldSize, BeforeValidator(_known_world_size)]
_Number = Annotated[float, Field(ge=0)]
_OneOrEach = Annotated[
    Annotated[_Number, Tag(WHOLE)] | Annotated[dict[str, _Number], Field(min_length=1), Tag(PARTS)], _BY_SHAPE
]
_Names = Annotated[
    Annotated[str, Tag(WHOLE)] | Annotated[list[str], Field(min_length=1, max_length=MOST_REQUIREMENTS), Tag(PARTS)],
    _BY_SHAPE,
]
# Of each world size one number for all that is trained or probed, or one for each by name.
Values = Annotated[
    dict[_WorldSizeKey, _OneOrEach],
    Field(min_length=1),
    _by_world_size({"anyOf": [_NUMBER, {"type": "object", "minProperties": 1, "additionalProperties": _NUMBER}]}),
]
Bounds = Annotated[dict[_WorldSizeKey, _Number], Field(min_length=1), _by_world_size(_NUMBER)]
PerCent = Annotated[
    float, BeforeValidator(_margin_pct), WithJsonSchema({"type": "string", "pattern": f"^{_PER_CENT.pattern}$"})
]
if TYPE_CHECKING:
    MetricName: TypeAlias = str
else:
    MetricName = Literal[ROW_METRICS]  # one of the catalogue's names, in the schema too


class CheckRow(Strict):
    """A row of checks of the nodes: ``{check: [ecc, nvlink], severity: fail}``."""

    check: _Names = Field(description="Names of checks.")
    severity: Severity

    @model_validator(mode="after")
    def _check(self) -> CheckRow:
        _known_checks(self.severities)
        return self

    @property
    def severities(self) -> dict[str, Severity]:
        """Severity by check."""
        return dict.fromkeys([self.check] if isinstance(self.check, str) else self.check, self.severity)


class Row(Strict):
    """One line under `requirements`: metrics, each with its published values or its bounds by world size.

    `metrics` stands for the keys that are names of metrics: ``{busbw_gbps: {8: 228}, probe: …}``.
    """

    metrics: dict[MetricName, Values]
    of: _Names = Field("", description="What is trained: names under `workloads` that the SKU has a `batch` for.")
    probe: _Names = Field(
        "", description="What is probed without training, such as `matmul-bf16` or `all-reduce-32mib`."
    )
    published: str | None = Field(None, description="Who published the values: a name under `sources`.")
    margin: str | None = Field(
        None,
        description="How far bounds lie below (or above) published values, `5 %`, or a name under `margins`. "
        "Default: that of the metric under `margins`.",
    )
    bound: Annotated[
        Annotated[float | None, Tag(WHOLE)] | Annotated[Bounds, Tag(PARTS)],
        _BY_SHAPE,
        Field(description="The bound itself, where no margin gives it."),
    ] = None
    provisional: Text | None = Field(
        None, description="Nobody published the values, so they are the bounds: why these. Or a name under `reasons`."
    )
    because: Text | None = Field(None, description="Why this margin, bound or severity. Or a name under `reasons`.")
    severity: Severity | None = Field(
        None, description="`warn` is reported and never rejects. Default: fail; warn if provisional."
    )
    placement: Placement = Field(
        "packed", description="`packed` fills a node before the next; `spread` deals the ranks to all nodes in turn."
    )
    versus: str | None = Field(
        None, description="Reference of a generation_ratio: a SKU, or `run:DIR`, relative to this file."
    )
    baseline: OneGpu = Field(
        "alone",
        description="How one GPU was trained that the values are of, or relative to: `alone`, without DDP, or `ddp`, "
        "wrapped in DDP as many are, which is then measured too (`ddp@1`).",
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
        if self.of and self.probe:
            raise ValueError("it has `of` and `probe`; expected one of them")
        agree = all(METRICS[metric].only_bound is not None for metric in self.metrics)
        if self.published is not None and self.provisional is not None:
            raise ValueError("it is `published` and `provisional`; expected one of them")
        if self.published is None and self.provisional is None and not (agree and self.because):
            raise ValueError(
                "it says not where its values are from; expected `published: NAME` of a source, "
                "or `provisional: 'why these'` without a published value"
            )
        if self.published is None and (self.margin is not None or self.bound is not None):
            raise ValueError("only what is `published` has a `margin` or `bound`; without, the values are the bounds")
        if self.baseline == "ddp" and not self._times_one_gpu:
            raise ValueError("`baseline: ddp` says how one GPU was trained; none of these values needs one")
        if self.bound is not None:
            self._check_stated_bound()
        return self

    @property
    def _times_one_gpu(self) -> bool:
        sizes = [(METRICS[metric], size) for metric, by_size in self.metrics.items() for size in by_size]
        return any(metric.times_one_gpu(is_of_one=size == 1) for metric, size in sizes)

    def _check_stated_bound(self) -> None:
        if self.margin is not None or self.because is None:
            raise ValueError("a stated `bound` needs `because: 'why so far from what was published'` and no `margin`")
        sizes = [size for values in self.metrics.values() for size in values]
        if isinstance(self.bound, dict) and set(self.bound) != set(sizes):
            raise ValueError("`bound` has other world sizes than the values; expected the same")
        if len(self.metrics) > 1 or (len(sizes) > 1 and not isinstance(self.bound, dict)):
            raise ValueError("one `bound` for several values; expected one metric, and {2: …, 4: …} by world size")

    @property
    def subjects(self) -> list[str]:
        """What its values are about: names of workloads or probes; one empty name if it names none."""
        named = self.of or self.probe
        return [named] if isinstance(named, str) else named

    @property
    def margin_pct(self) -> float | None:
        """Its margin, in per cent; None if it has none, or says it by name."""
        matched = _PER_CENT.fullmatch(self.margin or "")
        return float(matched[1]) if matched else None

    def bound_at(self, world_size: WorldSize) -> float | None:
        """The stated bound; None if its margin gives it, or the value is the bound."""
        return self.bound[world_size] if isinstance(self.bound, dict) else self.bound


def with_metrics(data: Any, others: Collection[str]) -> Any:
    """A row with its metrics' keys under `metrics`.

    Args:
        data: as it was read.
        others: the keys that a row may have besides.

    Raises:
        ValueError: it has no metric, or a key that no row has.
    """
    if not isinstance(data, dict):
        return data
    for key in data:
        if key not in ROW_METRICS and key not in others:
            near = did_you_mean(str(key), [*ROW_METRICS, *others])
            raise ValueError(f"unknown key {key!r}{near or '; expected a metric, or ' + ', '.join(others)}")
    metrics = {key: data[key] for key in data if key in ROW_METRICS}
    if not metrics:
        raise ValueError("it has no metric; expected one as a key, such as throughput_per_gpu: {8: 480.1}")
    return {"metrics": metrics, **{key: value for key, value in data.items() if key not in metrics}}


def _refused(metric: str, values: Any) -> Any:
    raise ValueError(f"{metric} is {values!r:.40}; expected values by world size, such as {{8: 480.1}}")


def _has_one_size(metric: Metric) -> bool:
    """Whether a number alone says all."""
    return metric.maximum_world_size == 1 or metric.subject == "node"


class RowName(Strict):
    """Which rows are meant: ``{busbw_gbps: [8, all], probe: …}``, ``{no_regression: any}``, ``{check: clock}``."""

    metric: str = NODE_CHECK.name
    world_sizes: list[_WorldSizeKey] = Field([], description="Empty for all that there are.")
    of: str = ""
    probe: str = ""
    check: str = ""
    placement: Placement = "packed"
    versus: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _metric_is_a_key(cls, data: Any) -> Any:
        if not isinstance(data, dict) or "check" in data:
            return data
        told = with_metrics(data, [name for name in cls.model_fields if name not in ("metric", "world_sizes")])
        metrics = told.pop("metrics")
        if len(metrics) > 1:
            raise ValueError(f"it has {', '.join(metrics)}; expected one metric")
        ((metric, sizes),) = metrics.items()
        if sizes == "any":
            return {**told, "metric": metric}
        if sizes == []:
            raise ValueError(f"{metric} has no world size; expected some, such as [8, all], or `any`")
        return {**told, "metric": metric, "world_sizes": sizes if isinstance(sizes, list) else [sizes]}


class Removal(RowName):
    """Rows that the site does not ask for."""


class Change(RowName):
    """Rows that the site takes as more, or as less, than the file below does."""

    severity: Severity
    because: Text


class WaiverRow(RowName):
    """Rows whose failure somebody answers for."""

    who: Text = Field(description="Who answers for it.")
    why: Text
    until: date = Field(description="The last day on which it holds, such as 2026-12-31.")


class NamedMargin(Strict):
    """Margins with one reason: ``{busbw_gbps: 15 %, because: …}``."""

    metrics: Annotated[dict[MetricName, PerCent], Field(min_length=1)]
    because: Text

    @model_validator(mode="before")
    @classmethod
    def _metrics_are_keys(cls, data: Any) -> Any:
        return with_metrics(data, ["because"])


Margin = Annotated[Annotated[PerCent, Tag(WHOLE)] | Annotated[NamedMargin, Tag(PARTS)], _BY_SHAPE]


class FolderForm(Strict):
    """Images that ranks read from a folder while they train."""

    folder: Annotated[str, AfterValidator(_absolute)] = Field(
        description="Absolute path, the same on every node; in it train/CLASS/IMAGE, as `ddpscale make-dataset` writes."
    )
    workers: int = Field(4, ge=0, le=MOST_LOADER_WORKERS, description="Processes of each rank that read and decode.")
    prefetch: int = Field(2, ge=1, le=MOST_PREFETCH, description="Batches that each of them has ready or in work.")
    pin_memory: bool = Field(True, description="Whether batches go through pinned memory on their way to a GPU.")


class WorkloadForm(Strict):
    """What is trained, the same on each SKU; how much at once is the SKU's `batch`."""

    model: Annotated[str, AfterValidator(_known_model)] = Field(description="A torchvision classification model.")
    precision: Precision
    image_size: int = Field(224, ge=1, le=10**4, description="Height and width of an image, in pixels.")
    memory_format: MemoryFormat = "channels_last"
    compile: bool = Field(False, description="Whether torch.compile is applied.")
    cudnn_benchmark: bool = Field(True, description="Whether cuDNN may choose the fastest algorithm by trying.")
    num_classes: int = Field(1000, ge=1, le=10**6, description="Size of the classification head.")
    data: Annotated[Annotated[Literal["synthetic"], Tag(WHOLE)] | Annotated[FolderForm, Tag(PARTS)], _BY_SHAPE] = Field(
        "synthetic", description="Images made on the device, or {folder: …, workers: …}: read from a folder."
    )


class BatchForm(Strict):
    """How many images of a workload a SKU trains at once."""

    per_gpu: int = Field(ge=1, le=10**6, description="Images per GPU: weak scaling keeps it.")
    in_all: int | None = Field(
        None, alias="global", ge=1, le=10**8, description="Images in all, which strong scaling divides among the GPUs."
    )


OneBatch = Annotated[
    Annotated[int, Field(ge=1, le=10**6), Tag(WHOLE)] | Annotated[BatchForm, Tag(PARTS)], _BY_SHAPE
]  # fmt: skip


class SkuForm(Strict):
    """One GPU model. In a file that extends another, only what is different."""

    description: Text
    detect: Detect
    aliases: list[str] = Field([], description="Further names.")
    peak: Peak | None = None
    node: Node | None = None
    checks: Annotated[dict[str, Severity], AfterValidator(_known_checks)] = Field(
        {}, description="Checks of the nodes, by name: what a node that does not pass means for the run."
    )
    families: list[str] = Field([], max_length=50, description="Names under `families` whose rows it shares.")
    batch: dict[str, OneBatch] = Field(
        {}, description="How much of each workload it trains at once: images per GPU, or {per_gpu: …, global: …}."
    )
    beyond_node: BeyondNode = Field(
        "missing",
        description="A number of ranks on several nodes with fewer: over them, never measured, or no requirement.",
    )
    requirements: list[CheckRow | Row] = Field([], max_length=MOST_REQUIREMENTS)
    remove: list[Removal] = Field([], description="Rows of families, or of the file that this one extends.")
    change: list[Change] = Field([], description="Other severities for such rows.")
    waivers: list[WaiverRow] = Field([], description="Rows whose failure does not reject, until a day.")


class FileForm(Strict):
    """A whole thresholds.yaml."""

    schema_version: int = Field(json_schema_extra={"const": SCHEMA_VERSION})
    extends: str | None = Field(None, description="`packaged`, or the path of the file that this one changes.")
    sources: dict[str, Text] = Field({}, description="Who published numbers, for what, with what: by name.")
    reasons: dict[str, Text] = Field({}, description="What `because` and `provisional` say more than once: by name.")
    margins: dict[str, Margin] = Field(
        {}, description="Bound = published value less (or plus) this: of a metric, or by a name that rows say."
    )
    workloads: dict[str, WorkloadForm] = Field({}, description="What is trained, by name.")
    families: dict[str, list[CheckRow | Row]] = Field({}, description="Rows that SKUs share.")
    skus: dict[str, SkuForm] = Field({}, max_length=MOST_SKUS)
