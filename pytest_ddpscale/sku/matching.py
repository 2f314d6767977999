"""Find the SKU of the GPUs in a thresholds file. Pure: GPUs and thresholds in, a name or an error out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from pytest_ddpscale.errors import SkuError
from pytest_ddpscale.plan.hardware import is_named
from pytest_ddpscale.run.survey_record import SurveyedGpu
from pytest_ddpscale.thresholds.loading import ThresholdsFile
from pytest_ddpscale.thresholds.model import Thresholds
from pytest_ddpscale.thresholds.parts import MEMORY_TOLERANCE, Detect
from pytest_ddpscale.util.digits import percent

AUTO = "auto"
_BYTES_PER_GIB = 2**30
# NVIDIA's names of virtual GPUs (vGPU), by which a virtual machine has a part of a GPU: "NVIDIA A100-40C".
_VIRTUAL = re.compile(r"GRID .*|.*-\d+(?:[ABCQ]4?|CME)")


def matching_skus(thresholds: Thresholds, gpu: SurveyedGpu) -> list[str]:
    """Names of the SKUs whose `detect` matches `gpu`: name, and PCI device id and memory where given."""
    return [
        name
        for name, sku in thresholds.skus.items()
        if sku.detect.device == "cuda" and all(holds for holds, _ in _compare(sku.detect, gpu).values())
    ]


def resolve_sku(
    file: ThresholdsFile, wanted: str, gpus: Sequence[SurveyedGpu], require_devices: bool = True, why_none: str = ""
) -> str:
    """The canonical name of the SKU to judge by; `wanted` is ``auto``, or a name or alias.

    With `require_devices`, which measuring sets, an explicit SKU must match the GPUs here; planning does not need it.
    `why_none` tells why there are no GPUs.

    Raises:
        SkuError: the SKU does not exist; the GPUs match no SKU, several or another one; or there are no GPUs.
    """
    name, skus = "" if wanted == AUTO else file.sku_name(wanted), file.thresholds.skus
    where, device = f"--gpu-sku={name or AUTO}", skus[name].detect.device if name else "cuda"
    if name and (device == "cpu" or not require_devices):
        return name
    if device == "none":
        found = f"{name} is a published reference, not something to measure"
        raise SkuError(where, found, "the SKU of the GPUs present", "Use --gpu-sku=auto.")
    expected = f"GPUs of SKU {name}" if name else "at least one GPU"
    if not gpus:  # never the CPU instead: that would accept a node without its GPUs
        raise SkuError(
            where, f"no NVIDIA GPU is visible here: {why_none}", expected,
            "Check the driver with nvidia-smi, or run on a GPU node; measure this machine's CPU with --gpu-sku=cpu; "
            "or judge what was measured elsewhere with --ddp-judge RUN_DIR.",
        )  # fmt: skip
    models: dict[str, Model] = {}
    for gpu in gpus:
        models.setdefault(_described(gpu), []).append(gpu)
    matching = {model: matching_skus(file.thresholds, same[0]) for model, same in models.items()}
    others = [same for model, same in models.items() if (name not in matching[model] if name else not matching[model])]
    if others and name:
        other = others[0][0]
        comparison, action = _compare(skus[name].detect, other), f"Add a SKU {_with_detect(file, other)}."
        if _is_near(other, comparison):
            action = f"If they are {name}, correct `detect` at {file.where('skus', name, 'detect')}; else a{action[1:]}"
        if known := matching_skus(file.thresholds, other):
            action = f"Use --gpu-sku={known[0]}, or run where the GPUs are {name}."
        found = f"the GPUs here are not {name}: {_inventory(others, file.thresholds)} ({_differing_text(comparison)})"
        raise SkuError(where, found, expected, action)
    if others:
        raise _unknown(file, others)
    common = [one for one in skus if all(one in known for known in matching.values())]
    if name or len(common) == 1:
        return name or common[0]
    if common:
        raise SkuError(
            where, f"{_inventory(models.values())}: several SKUs match, {', '.join(common)}", "one SKU",
            f"Choose one, such as --gpu-sku={common[0]}, or narrow their `detect` in {file.path}.",
        )  # fmt: skip
    raise SkuError(
        where, f"the GPUs are of different SKUs: {_inventory(models.values(), file.thresholds)}", "GPUs of one SKU",
        "Show one at a time with CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER=PCI_BUS_ID.",
    )  # fmt: skip


def _described(gpu: SurveyedGpu) -> str:
    return f"{gpu.name} (PCI device id {gpu.pci_device_id}, {_memory(gpu)})"


def _memory(gpu: SurveyedGpu) -> str:
    # GB10 works in the host's memory.
    return f"{_memory_gib(gpu):.1f} GiB" if gpu.memory_bytes else "0 GiB of its own"


def _memory_gib(gpu: SurveyedGpu) -> float:
    return (gpu.memory_bytes or 0) / _BYTES_PER_GIB


def _compare(detect: Detect, gpu: SurveyedGpu) -> dict[str, tuple[bool, str]]:
    """Whether each key of a `detect` matches a GPU, with a description."""
    name, ids, gib = detect.name or "", detect.pci_device_ids, detect.memory_gib or 0.0
    is_alike = abs(_memory_gib(gpu) - gib) <= MEMORY_TOLERANCE * gib
    tests = {
        "name": (name, is_named(gpu.name, name), f"name {gpu.name!r}", f"does not match {name!r}"),
        "id": (ids, gpu.pci_device_id in ids, f"PCI device id {gpu.pci_device_id}", f"is not {' or '.join(ids)}"),
        "memory": (
            gib,
            is_alike,
            f"memory {_memory(gpu)}",
            f"is not within {percent(MEMORY_TOLERANCE)} of {gib:g} GiB",
        ),
    }
    return {
        key: (holds, f"{reading} {'matches' if holds else contrast}")
        for key, (expected, holds, reading, contrast) in tests.items()
        if expected
    }


def _differing_text(compared: dict[str, tuple[bool, str]]) -> str:
    return ", ".join(text for _, text in sorted(compared.values(), key=lambda entry: not entry[0]))


Model: TypeAlias = list[SurveyedGpu]  # identical GPUs; never empty


def _inventory(models: Iterable[Model], thresholds: Thresholds | None = None) -> str:
    """``GPU 0, 1: NVIDIA B200 (PCI device id 2901, 179.1 GiB)``, with each model's SKUs if `thresholds` is given."""
    texts = []
    for model in models:
        known = "" if thresholds is None else " or ".join(matching_skus(thresholds, model[0])) or "unknown"
        indices = ", ".join(str(field.index) for field in model)
        texts.append(f"GPU {indices}: {_described(model[0])}{f', SKU {known}' if known else ''}")
    return "; ".join(texts)


def _unknown(file: ThresholdsFile, models: list[Model]) -> SkuError:
    gpu = models[0][0]
    compared = {name: _compare(sku.detect, gpu) for name, sku in file.thresholds.skus.items()}
    nearly = [name for name, comparison in compared.items() if _is_near(gpu, comparison)]
    almost = "".join(f"; nearest is {name}: {_differing_text(compared[name])}" for name in nearly)
    remedies = [f"correct `detect` at {file.where('skus', name, 'detect')} if it is {name}" for name in nearly]
    remedies += [f"add a SKU {_with_detect(file, gpu)}", "test only the CPU with --gpu-sku=cpu"]
    found = f"no SKU of {file.path} matches {_inventory(models)}{almost}"
    return SkuError("--gpu-sku=auto", found, "GPUs that match a `detect`", f"Do one of these: {'; '.join(remedies)}.")


def _is_near(gpu: SurveyedGpu, comparison: dict[str, tuple[bool, str]]) -> bool:
    """Whether it matches in name or PCI device id; matching memory alone does not count."""
    return any(comparison[key][0] for key in comparison if key != "memory") and not _VIRTUAL.fullmatch(gpu.name)


def _with_detect(file: ThresholdsFile, gpu: SurveyedGpu) -> str:
    """A `detect` that matches this GPU, ready to paste."""
    name = re.sub(r"([.^$*+?{}\[\]\\|()])", r"\\\1", gpu.name).replace("'", "''")
    memory = f", memory_gib: {_memory_gib(gpu):.0f}" if gpu.memory_bytes else ""
    detect = f"name: '^{name}$', pci_device_ids: ['{gpu.pci_device_id}']{memory}"
    why = ", as a virtual GPU (vGPU) is a part of a GPU" if _VIRTUAL.fullmatch(gpu.name) else ""
    return f"with `detect: {{{detect}}}` to {file.path}{why}"
