"""What a SKU is, apart from what it has to reach: how it is recognised, and what its data sheet promises."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, model_validator

from pytest_ddpscale.plan.device_name import why_no_name_pattern
from pytest_ddpscale.plan.workload import Precision

# Drivers reserve memory, more or less by version: an 80 GB A100 reports 79.3 or 80 GiB, a 16 GB V100
# as little as 15.8. Wider would take an 84 GB RTX PRO 6000D for the 96 GB RTX PRO 6000.
MEMORY_TOLERANCE = 0.10


def _readable(text: str) -> str:
    odd = next((c for c in text if not c.isprintable() and c != "\n"), None)
    if odd is not None:
        raise ValueError(f"there is a control character, {odd!r}, in it; expected plain text")
    return text


# Text for people, which is printed on terminals and in reports.
Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1), AfterValidator(_readable)]


class Strict(BaseModel):
    """A mapping of thresholds.yaml with these keys and no others."""

    # NaN compares as false with every bound, so it would slip through each check.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Detect(Strict):
    """How a device is recognised: all that is given has to match."""

    device: Literal["cuda", "cpu", "none"] = Field(
        default="cuda", description="`none` is a reference that is never looked for on a machine."
    )
    name: str | None = Field(default=None, description="Anchored regular expression for the name NVML gives.")
    pci_device_ids: list[Annotated[str, Field(pattern=r"^[0-9a-f]{4}$")]] = Field(
        default=[], description="PCI device ids, four lower-case hexadecimal digits."
    )
    memory_gib: float | None = Field(default=None, gt=0, description="Nominal device memory.")

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


class Peak(Strict):
    """What the vendor promises for one GPU."""

    fp16_tflops: float | None = Field(default=None, gt=0, description="Dense tensor-core fp16, TFLOPS.")
    bf16_tflops: float | None = Field(default=None, gt=0, description="Dense tensor-core bf16, TFLOPS.")
    fp32_tflops: float | None = Field(default=None, gt=0, description="Non-tensor fp32 (no TF32), TFLOPS.")
    memory_bandwidth_gbps: float | None = Field(default=None, gt=0, description="Device memory, GB/s.")
    link: Text | None = Field(default=None, description="GPU to GPU, for example NVLink3.")
    link_bandwidth_gbps: float | None = Field(default=None, gt=0, description="GPU to GPU, one direction, GB/s.")
    published: str | None = Field(default=None, description="Where it is from: a name under `sources`.")

    def tflops(self, precision: Precision) -> float | None:
        """Dense peak in a workload's precision, in TFLOPS; None if it is not known.

        For fp32 that of the plain units: TF32 keeps fewer digits, and is no precision of a workload.
        """
        return {"fp16": self.fp16_tflops, "bf16": self.bf16_tflops, "fp32": self.fp32_tflops}[precision]


class Node(Strict):
    """What a node with this SKU has to be."""

    gpus: int | None = Field(default=None, ge=1, le=64, description="GPUs of this SKU that a node has at least.")
    pcie_generation: int | None = Field(default=None, ge=1, le=9, description="That GPU and slot can have together.")
    pcie_width: int | None = Field(default=None, ge=1, le=32, description="Lanes of each GPU.")
    nvlinks: int | None = Field(default=None, ge=0, le=64, description="NVLinks of each GPU; 0 for none.")
    ecc: bool | None = Field(default=None, description="Whether errors of device memory have to be corrected.")
    free_disk_gib: float = Field(default=1.0, gt=0, description="Where the run is written.")
    clock_skew_s: float = Field(default=1.0, gt=0, description="Most that clocks of nodes may differ.")
    published: str | None = Field(default=None, description="Where it is from: a name under `sources`.")
