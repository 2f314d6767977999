"""The GPUs that CUDA will see, as NVML describes them: no CUDA context, no torch."""

from __future__ import annotations

import contextlib
import os
import platform
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_ddpscale.errors import SkuError

_BYTES_PER_GIB = 2**30
_INDEX = re.compile(r"\+?[0-9]+")


@dataclass(frozen=True)
class Gpu:
    """One GPU of this machine.

    Attributes:
        index: NVML's index, in PCI bus order; CUDA_VISIBLE_DEVICES does not renumber it.
        uuid: ``GPU-…``.
        name: from the driver; old drivers omit ``NVIDIA ``, pre-release ones give no name.
        pci_device_id: four lower-case hexadecimal digits, without the vendor's.
        memory_gib: total device memory, GiB; up to some per cent below nominal, depending on the driver.
    """

    index: int
    uuid: str
    name: str
    pci_device_id: str
    memory_gib: float


@dataclass(frozen=True)
class NoGpu:
    """Why no GPU can be used; whether the machine is at fault, and not a setting."""

    reason: str
    is_fault: bool = False


def visible_gpus(environ: Mapping[str, str] = os.environ, silent: list[SkuError] | None = None) -> list[Gpu]:
    """The GPUs that a CUDA program started with `environ` would see, in its order.

    NVML itself ignores CUDA_VISIBLE_DEVICES, so it is applied here, by CUDA's own rules and with
    indices in PCI bus order: the program has to run with CUDA_DEVICE_ORDER=PCI_BUS_ID.

    Without an NVML library or a driver the list is empty. A GPU that does not answer is left out and its error
    appended to `silent`; with `silent` None the error is raised.

    Raises:
        SkuError: NVML does not work, a GPU is lost, or a MIG slice is requested.
    """
    import pynvml

    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded):
        return []
    except pynvml.NVMLError as error:
        raise _nvml_is_broken(error) from None
    try:
        return _visible(pynvml, environ.get("CUDA_VISIBLE_DEVICES"), silent)
    finally:
        # If the driver died meanwhile, shutdown must not hide the first error.
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def no_gpu_reason(environ: Mapping[str, str] = os.environ) -> NoGpu:
    """Why `visible_gpus` is empty although no GPU is silent."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return NoGpu("no NVIDIA driver is loaded here")
    try:
        count = len(_indices(pynvml))
    except SkuError as error:
        return NoGpu(error.found)
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()
    if count == 0:
        return NoGpu("the NVIDIA driver is loaded and lists no GPU: look for Xid messages with `dmesg`", is_fault=True)
    hidden = f"CUDA_VISIBLE_DEVICES={environ.get('CUDA_VISIBLE_DEVICES', '')}"
    return NoGpu(f"{hidden} or a cgroup hides all {count} GPUs of this machine")


def visible_ordinals(visible_devices: str | None, uuids: Sequence[str]) -> list[int]:
    """Positions in `uuids` of the devices that CUDA_VISIBLE_DEVICES leaves visible.

    The rules are CUDA's, as torch.cuda mirrors them: the first entry decides between indices and
    UUID prefixes; the first entry that names no device, or more than one, ends the list; a
    repeated device makes the whole list empty.

    Args:
        visible_devices: the variable's value; None if it is not set.
        uuids: the UUID of every device of the machine, in PCI bus order.
    """
    if visible_devices is None:
        return list(range(len(uuids)))
    by_uuid = visible_devices.startswith("GPU-")
    ordinals: list[int] = []
    for entry in visible_devices.split(","):
        ordinal = _with_uuid_prefix(entry, uuids) if by_uuid else _with_index(entry, len(uuids))
        if ordinal is None:
            break
        if ordinal in ordinals:
            return []
        ordinals.append(ordinal)
    return ordinals


def _with_uuid_prefix(entry: str, uuids: Sequence[str]) -> int | None:
    found = [i for i, uuid in enumerate(uuids) if uuid.startswith(entry)] if entry.startswith("GPU-") else []
    return found[0] if len(found) == 1 else None


def _with_index(entry: str, count: int) -> int | None:
    # CUDA parses the leading number of an entry, as strtoul does: '1st' is 1.
    number = _INDEX.match(entry.strip())
    return int(number[0]) if number and int(number[0]) < count else None


def _visible(pynvml: Any, visible_devices: str | None, silent: list[SkuError] | None) -> list[Gpu]:
    if visible_devices is not None:
        _refuse_mig(visible_devices)
        if not visible_devices.strip():
            return []
    devices = [gpu for index in _indices(pynvml) if (gpu := _answering(pynvml, index, silent)) is not None]
    return [devices[i] for i in visible_ordinals(visible_devices, [gpu.uuid for gpu in devices])]


def _refuse_mig(visible_devices: str) -> None:
    slices = [entry for entry in visible_devices.split(",") if entry.strip().startswith("MIG-")]
    if slices:
        raise SkuError(
            "CUDA_VISIBLE_DEVICES", f"{slices[0].strip()} is a MIG slice",
            "whole GPUs, because thresholds apply to whole GPUs",
            "Disable MIG (`nvidia-smi -mig 0`), or name GPUs by index or GPU-UUID.",
        )  # fmt: skip


def _indices(pynvml: Any) -> range:
    try:
        return range(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError as error:
        raise _nvml_is_broken(error) from None


def _answering(pynvml: Any, index: int, silent: list[SkuError] | None) -> Gpu | None:
    """The device if this process may open it (CUDA skips the others) and it answers, else None."""
    try:
        handle = _handle(pynvml, index)
        return None if handle is None else _describe(pynvml, index, handle)
    except SkuError as error:
        if silent is None:
            raise
        silent.append(error)
        return None


def _handle(pynvml: Any, index: int) -> Any:
    try:
        return pynvml.nvmlDeviceGetHandleByIndex(index)
    except pynvml.NVMLError_NoPermission:
        return None  # a cgroup withholds this GPU: NVML counts it, CUDA does not
    except pynvml.NVMLError as error:
        raise _does_not_answer(pynvml, index, "nvmlDeviceGetHandleByIndex", error) from None


def _describe(pynvml: Any, index: int, handle: Any) -> Gpu:
    pci = _ask(pynvml, index, pynvml.nvmlDeviceGetPciInfo, handle)
    memory = _ask(pynvml, index, pynvml.nvmlDeviceGetMemoryInfo, handle)
    return Gpu(
        index=index,
        uuid=_ask(pynvml, index, pynvml.nvmlDeviceGetUUID, handle),
        name=_ask(pynvml, index, pynvml.nvmlDeviceGetName, handle),
        pci_device_id=f"{pci.pciDeviceId >> 16:04x}",  # the low half is the vendor, 10de
        memory_gib=memory.total / _BYTES_PER_GIB,
    )


def _ask(pynvml: Any, index: int, question: Callable[..., Any], *arguments: Any) -> Any:
    """Call NVML for one GPU; name that GPU in the error if it does not answer."""
    try:
        return question(*arguments)
    except pynvml.NVMLError as error:
        raise _does_not_answer(pynvml, index, question.__name__, error) from None


def _does_not_answer(pynvml: Any, index: int, question: str, error: Exception) -> SkuError:
    found, action = f"{question} fails ({error})", "Make `nvidia-smi` work on this machine first."
    if isinstance(error, pynvml.NVMLError_GpuIsLost):
        found = "the driver has lost this GPU (NVML: GPU is lost)"
        action = "Look for Xid messages with `dmesg`, drain the node, then reset the GPU or reboot."
    return SkuError(f"GPU {index} of {platform.node()}", found, "a GPU that answers", action)


def _nvml_is_broken(error: Exception) -> SkuError:
    return SkuError(
        f"NVML on {platform.node()}", f"the NVIDIA driver is loaded but does not answer ({error})",
        "a working driver", "Make `nvidia-smi` work on this machine first: reload the driver or reboot.",
    )  # fmt: skip


if __name__ == "__main__":  # run by `devices.refuse_hanging_driver` to see whether the driver answers at all
    with contextlib.suppress(SkuError):
        visible_gpus(silent=[])
