"""Find the SKU of the GPUs in a thresholds file. Pure: GPUs and thresholds in, a name or an error out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from pytest_ddpscale.errors import SkuError
from pytest_ddpscale.plan.hardware import is_named
from pytest_ddpscale.run.survey_record import SurveyedGpu
from pytest_ddpscale.thresholds.loading import ThresholdsFile
from pytest_ddpscale.thresholds.model import Thresholds
from pytest_ddpscale.thresholds.parts import MEMORY_TOLERANCE, Detect
from pytest_ddpscale.util.digits import percent

AUTO = "auto"
_BYTES_PER_GIB = 2**30


def matching_skus(thresholds: Thresholds, gpu: SurveyedGpu) -> list[str]:
    """Names of the SKUs whose `detect` matches `gpu`: name, and PCI device id and memory where given."""
    return [
        name
        for name, sku in thresholds.skus.items()
        if sku.detect.device == "cuda" and not _compare(sku.detect, gpu)[1]
    ]


def resolve_sku(
    thresholds_file: ThresholdsFile,
    asked: str,
    gpus: Sequence[SurveyedGpu],
    require_devices: bool = True,
    why_none: str = "",
) -> str:
    """The canonical name of the SKU to judge by; `asked` is ``auto``, or a name or alias.

    With `require_devices`, which measuring sets, an explicit SKU must match the GPUs here; planning does not need it.
    `why_none` tells why there are no GPUs.

    Raises:
        SkuError: the SKU does not exist; the GPUs match no SKU, several or another one; or there are no GPUs.
    """
    if asked == AUTO:
        if not gpus:  # never the CPU instead: that would accept a node without its GPUs
            raise SkuError(
                "--gpu-sku=auto", f"no NVIDIA GPU is visible here: {why_none}", "at least one GPU",
                "Check the driver with nvidia-smi; to measure the CPU, use --gpu-sku=cpu.",
            )  # fmt: skip
        return _detected(thresholds_file, gpus)
    name = thresholds_file.sku_name(asked)
    if require_devices:
        _refuse_if_absent(thresholds_file, name, gpus, why_none)
    return name


def _memory_gib(gpu: SurveyedGpu) -> float:
    return (gpu.memory_bytes or 0) / _BYTES_PER_GIB


def _compare(detect: Detect, gpu: SurveyedGpu) -> tuple[dict[str, str], dict[str, str]]:
    """The keys of a `detect` that match a GPU, and those that do not, each with a description."""
    told: tuple[dict[str, str], dict[str, str]] = {}, {}
    if detect.name is not None:
        holds = is_named(gpu.name, detect.name)
        told[not holds]["name"] = f"name {gpu.name!r} {'matches' if holds else f'does not match {detect.name!r}'}"
    if detect.pci_device_ids:
        holds, listed = gpu.pci_device_id in detect.pci_device_ids, " or ".join(detect.pci_device_ids)
        told[not holds]["id"] = f"PCI device id {gpu.pci_device_id} {'matches' if holds else f'is not {listed}'}"
    if detect.memory_gib is not None:
        holds = abs(_memory_gib(gpu) - detect.memory_gib) <= MEMORY_TOLERANCE * detect.memory_gib
        contrast = f"is not within {percent(MEMORY_TOLERANCE)} of {detect.memory_gib:g} GiB"
        told[not holds]["memory"] = f"memory {_memory_gib(gpu):.1f} GiB {'matches' if holds else contrast}"
    return told


def _said(agrees: dict[str, str], differs: dict[str, str]) -> str:
    return ", ".join([*agrees.values(), *differs.values()])


def _detected(thresholds_file: ThresholdsFile, gpus: Sequence[SurveyedGpu]) -> str:
    thresholds = thresholds_file.thresholds
    models = _by_model(gpus)
    unknown = [model for model in models if not matching_skus(thresholds, model[0])]
    if unknown:
        raise _unknown(thresholds_file, unknown)
    common = [name for name in thresholds.skus if all(name in matching_skus(thresholds, gpu) for gpu in gpus)]
    if len(common) == 1:
        return common[0]
    if common:
        raise SkuError(
            "--gpu-sku=auto", f"{_inventory(models)}: several SKUs match, {', '.join(common)}", "one SKU",
            f"Choose one, such as --gpu-sku={common[0]}, or narrow their `detect` in {thresholds_file.path}.",
        )  # fmt: skip
    raise SkuError(
        "--gpu-sku=auto", f"the GPUs are of different SKUs: {_inventory(models, thresholds)}", "GPUs of one SKU",
        "Show one at a time with CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER=PCI_BUS_ID.",
    )  # fmt: skip


def _refuse_if_absent(thresholds_file: ThresholdsFile, name: str, gpus: Sequence[SurveyedGpu], why_none: str) -> None:
    """Raise SkuError unless this machine can be measured as the SKU `name`."""
    detect = thresholds_file.thresholds.skus[name].detect
    if detect.device == "cpu":
        return
    where = f"--gpu-sku={name}"
    if detect.device == "none":
        raise SkuError(
            where, f"{name} is a published reference, not something to measure",
            "the SKU of the GPUs present", "Use --gpu-sku=auto.",
        )  # fmt: skip
    if not gpus:
        raise SkuError(
            where, f"no NVIDIA GPU is visible here: {why_none}", f"GPUs of SKU {name}",
            "Run on a GPU node; or try the plugin on this machine's CPU with --gpu-sku=cpu; "
            "or judge what was measured elsewhere with --ddp-judge RUN_DIR.",
        )  # fmt: skip
    others = [model for model in _by_model(gpus) if _compare(detect, model[0])[1]]
    if others:
        raise _mismatch(thresholds_file, name, others)


Model = list[SurveyedGpu]  # identical GPUs; never empty


def _by_model(gpus: Sequence[SurveyedGpu]) -> list[Model]:
    models: dict[tuple[str, str, float], Model] = {}
    for gpu in gpus:
        models.setdefault((gpu.name, gpu.pci_device_id, round(_memory_gib(gpu), 1)), []).append(gpu)
    return list(models.values())


def _inventory(models: Iterable[Model], thresholds: Thresholds | None = None) -> str:
    """``GPU 0, 1: NVIDIA B200 (PCI device id 2901, 179.1 GiB)``, with each model's SKUs if `thresholds` is given."""
    texts = []
    for model in models:
        gpu = model[0]
        text = f"GPU {', '.join(str(each.index) for each in model)}: {gpu.name}"
        text += f" (PCI device id {gpu.pci_device_id}, {_memory_gib(gpu):.1f} GiB)"
        if thresholds is not None:
            text += f", SKU {' or '.join(matching_skus(thresholds, gpu)) or 'unknown'}"
        texts.append(text)
    return "; ".join(texts)


def _unknown(thresholds_file: ThresholdsFile, models: list[Model]) -> SkuError:
    path, gpu = thresholds_file.path, models[0][0]
    # Those that match in name or PCI device id but not in all else; matching memory alone does not count.
    compared = {name: _compare(sku.detect, gpu) for name, sku in thresholds_file.thresholds.skus.items()}
    nearly = {name: told for name, told in compared.items() if told[0].keys() - {"memory"}}
    almost = "".join(f"; nearest is {name}: {_said(*told)}" for name, told in nearly.items())
    lines = {name: thresholds_file.where("skus", name, "detect") for name in nearly}
    ways = [f"correct `detect` at {line} if it is {name}" for name, line in lines.items()]
    ways += [f"add a SKU with `detect: {_detect_line(gpu)}` to {path}", "test only the CPU with --gpu-sku=cpu"]
    return SkuError(
        "--gpu-sku=auto", f"no SKU of {path} matches {_inventory(models)}{almost}", "GPUs that match a `detect`",
        f"Do one of these: {'; '.join(ways)}.",
    )  # fmt: skip


def _mismatch(thresholds_file: ThresholdsFile, name: str, models: list[Model]) -> SkuError:
    thresholds = thresholds_file.thresholds
    told = _said(*_compare(thresholds.skus[name].detect, models[0][0]))
    suggestion = matching_skus(thresholds, models[0][0])
    if suggestion:
        action = f"Use --gpu-sku={suggestion[0]}, or run where the GPUs are {name}."
    else:
        action = f"If they are {name}, correct `detect` at {thresholds_file.where('skus', name, 'detect')}."
    return SkuError(
        f"--gpu-sku={name}", f"the GPUs here are not {name}: {_inventory(models, thresholds)} ({told})",
        f"GPUs of SKU {name}", action,
    )  # fmt: skip


def _detect_line(gpu: SurveyedGpu) -> str:
    """A `detect` that matches this GPU, ready to paste."""
    name = re.sub(r"([.^$*+?{}\[\]\\|()])", r"\\\1", gpu.name).replace("'", "''")
    return f"{{name: '^{name}$', pci_device_ids: ['{gpu.pci_device_id}'], memory_gib: {_memory_gib(gpu):.0f}}}"
