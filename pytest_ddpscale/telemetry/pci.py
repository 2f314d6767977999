"""Where on the PCI bus a GPU is."""

from __future__ import annotations

import pynvml

from pytest_ddpscale.telemetry.nvml_calls import words


def pci_address(uuid: str) -> str:
    """``0000:17:00.0``, as the kernel writes it. By UUID: NVML's indices are not CUDA's.

    Raises:
        LookupError: NVML does not say.
    """
    try:
        pynvml.nvmlInit()
        try:
            pci = pynvml.nvmlDeviceGetPciInfo(pynvml.nvmlDeviceGetHandleByUUID(uuid))
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        raise LookupError(words(error)) from error
    return f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0"
