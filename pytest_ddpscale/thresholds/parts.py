"""Parts of a thresholds file as written: a device, its data sheet and its node; a workload and its batch."""

from __future__ import annotations

from functools import cache, reduce
from operator import or_
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, get_type_hints

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    WrapValidator,
    create_model,
    model_validator,
)

from pytest_ddpscale.families import FAMILIES, Family, family_of, known_models
from pytest_ddpscale.plan.hardware import why_no_name_pattern
from pytest_ddpscale.plan.words import Precision
from pytest_ddpscale.plan.workload import MOST_LOADER_WORKERS, MOST_PREFETCH
from pytest_ddpscale.util.nearest import did_you_mean

# Drivers reserve memory, depending on the version: an 80 GB A100 reports 79.3 or 80 GiB, a 16 GB V100 as little as
# 15.8. A wider band would mistake an 84 GB RTX PRO 6000D for the 96 GB RTX PRO 6000.
MEMORY_TOLERANCE = 0.10
FEWEST_LETTERS = 2
LONGEST_TEXT = 4_000


def _readable(text: str) -> str:
    odd = next((c for c in text if not c.isprintable() and c != "\n"), None)
    if odd is not None:
        raise ValueError(f"contains the control character {odd!r}; expected plain text")
    return text


def _in_words(text: str) -> str:
    if sum(map(str.isalpha, text)) < FEWEST_LETTERS:
        raise ValueError(f"{text!r} says nothing; expected words")
    return text


def _in_one_line(text: str) -> str:
    if "\n" in text:
        raise ValueError(f"{text!r} has several lines; expected one name")
    return text


# Text printed on terminals and in reports.
Text = Annotated[
    str, StringConstraints(strip_whitespace=True, min_length=1, max_length=LONGEST_TEXT), AfterValidator(_readable)
]
# Why: no dash, no digit.
Words = Annotated[Text, AfterValidator(_in_words)]
# Who signs.
Person = Annotated[Words, AfterValidator(_in_one_line)]
# A key that somebody chose, which YAML may take for a number.
Name = Annotated[str, BeforeValidator(str)]


class Strict(BaseModel):
    """A mapping of thresholds.yaml that allows only known keys."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,  # NaN compares as false with every bound, so it would pass each check
        defer_build=True,
        protected_namespaces=(),  # model_flops_utilization is a metric
    )


class Detect(Strict):
    """How to recognise a device; all given keys must match."""

    device: Literal["cuda", "cpu", "none"] = Field(
        default="cuda", description="`none` is a published reference that no machine is measured as."
    )
    name: str | None = Field(default=None, description="Anchored regular expression for NVML's name.")
    pci_device_ids: list[Annotated[str, Field(pattern=r"^[0-9a-f]{4}$")]] = Field(
        default=[], description="PCI device ids, four lower-case hexadecimal digits."
    )
    memory_gib: float | None = Field(default=None, gt=0, le=10**4, description="Nominal device memory.")

    @property
    def memory_band_gib(self) -> tuple[float, float] | None:
        """Smallest and largest memory that a driver may report, in GiB; None for any."""
        if self.memory_gib is None:
            return None
        return self.memory_gib * (1 - MEMORY_TOLERANCE), self.memory_gib * (1 + MEMORY_TOLERANCE)

    @model_validator(mode="after")
    def _check(self) -> Detect:
        if self.name is not None:
            why_not = why_no_name_pattern(self.name)
            if why_not:
                raise ValueError(f"name {self.name!r} {why_not}")
        return self


_Positive = Annotated[float | None, Field(gt=0, le=10**5)]


class Peak(Strict):
    """Data-sheet values of one GPU."""

    fp16_tflops: _Positive = Field(default=None, description="Dense tensor-core fp16, TFLOPS.")
    bf16_tflops: _Positive = Field(default=None, description="Dense tensor-core bf16, TFLOPS.")
    fp32_tflops: _Positive = Field(default=None, description="Non-tensor fp32 (no TF32), TFLOPS.")
    memory_bandwidth_gbps: _Positive = Field(default=None, description="Device memory, GB/s.")
    link: Text | None = Field(default=None, description="GPU to GPU, for example NVLink3.")
    link_bandwidth_gbps: _Positive = Field(default=None, description="GPU to GPU, one direction, GB/s.")
    published: str | None = Field(default=None, description="Source of the values: a name under `sources`.")

    def tflops(self, precision: Precision) -> float | None:
        """Dense peak in a workload's precision, in TFLOPS; None if unknown.

        For fp32 it is the peak of the plain units; TF32 has fewer digits and is not a precision of workloads.
        """
        return {"fp16": self.fp16_tflops, "bf16": self.bf16_tflops, "fp32": self.fp32_tflops}[precision]


class Node(Strict):
    """Expected state of a node with this SKU."""

    gpus: int | None = Field(default=None, ge=1, le=64, description="Minimum number of GPUs of this SKU in a node.")
    pcie_generation: int | None = Field(default=None, ge=1, le=9, description="Maximum of GPU and slot together.")
    pcie_width: Literal[1, 2, 4, 8, 12, 16, 32] | None = Field(default=None, description="PCIe lanes of each GPU.")
    nvlinks: int | None = Field(default=None, ge=0, le=64, description="NVLinks of each GPU; 0 for none.")
    ecc: bool | None = Field(default=None, description="Whether ECC must be on.")
    free_disk_gib: float = Field(
        default=1.0, gt=0, le=10**6, description="Required free space where the run is written, GiB."
    )
    published: str | None = Field(default=None, description="Source of the values: a name under `sources`.")


def _absolute(path: str) -> str:
    if not PurePath(path).is_absolute():
        raise ValueError(f"{path!r} is not an absolute path; ranks may start in any directory")
    return path


class FolderForm(Strict):
    """Training samples that ranks read from a folder."""

    folder: Annotated[str, AfterValidator(_absolute)] = Field(
        description="Absolute path, on every node, with train/CLASS/IMAGE as make-dataset writes."
    )
    workers: int = Field(4, ge=0, le=MOST_LOADER_WORKERS, description="Processes of each rank that read and decode.")
    prefetch: int = Field(2, ge=1, le=MOST_PREFETCH, description="Batches that each worker prefetches.")
    pin_memory: bool = Field(True, description="Whether batches go through pinned memory on their way to a GPU.")


def _known_model(name: str) -> str:
    if family_of(name) is None:
        models = sorted(set().union(*(family.models for family in FAMILIES.values())))
        raise ValueError(f"there is no model {name!r}{did_you_mean(name, models) or f'; expected {known_models()}'}")
    return name


class WorkloadForm(Strict):
    """A training job, the same on each SKU; its batch size is the SKU's `batch`. Options of its family are beside."""

    model: Annotated[str, AfterValidator(_known_model)] = Field(description=f"Model, {known_models()}.")
    precision: Precision = Field(description="Precision of computation; `fp16` and `bf16` use autocast.")
    compile: bool = Field(False, description="Whether torch.compile is applied.")
    data: Literal["synthetic"] | FolderForm = Field(
        "synthetic", description="Samples generated on the device, or {folder: …, workers: …} to read a folder."
    )

    @property
    def family(self) -> Family:
        """The options that only the family of its model has."""
        kind: Any = family_of(self.model)
        family: Family = kind(self.model, **{option.name: getattr(self, option.name) for option in kind.options()})
        return family

    @model_validator(mode="after")
    def _can_be_trained(self) -> WorkloadForm:
        family = self.family  # refuses options that its model cannot take
        if self.data != "synthetic" and not family.reads_folders:
            raise ValueError(f"{family.samples} are not read from folders; expected `data: synthetic`")
        return self


@cache
def form_of(family: type[Family]) -> type[WorkloadForm]:
    """The form of workloads of a family."""
    kinds, fields = get_type_hints(family), dict[str, Any]()
    for option in family.options():
        limits = {"ge": 1, "le": option.metadata["most"]} if option.metadata["most"] else {}
        fields[option.name] = (
            kinds[option.name],
            Field(option.default, description=option.metadata["description"], **limits),
        )
    made: type[WorkloadForm] = create_model(f"{family.__name__}Workload", __base__=WorkloadForm, **fields)
    made.__doc__ = WorkloadForm.__doc__
    return made


def _of_its_family(data: Any, _: Any) -> WorkloadForm:
    """A workload in the form of its model's family; if no family has the model, of the first."""
    family = family_of(data.get("model")) if isinstance(data, dict) else None
    return form_of(family or next(iter(FAMILIES.values()))).model_validate(data)


if TYPE_CHECKING:
    AnyWorkload: TypeAlias = WorkloadForm
else:
    AnyWorkload = Annotated[reduce(or_, map(form_of, FAMILIES.values())), WrapValidator(_of_its_family)]


class BatchForm(Strict):
    """Batch sizes of a workload on a SKU."""

    per_gpu: int = Field(ge=1, le=10**6, description="Samples per GPU, constant in weak scaling.")
    in_all: int | None = Field(
        None, alias="global", ge=1, le=10**8, description="Global batch that strong scaling divides among the GPUs."
    )
