"""The name of a GPU in all messages and reports: NVML's index, which ``nvidia-smi -i`` takes, UUID and PCI address.

CUDA_VISIBLE_DEVICES and a lost GPU renumber CUDA's devices, and with them local ranks. So the local rank is only beside
the index, where it differs. It stands alone where the index is not known.
"""

from __future__ import annotations

_CPU = "cpu"
_LONGEST_UUID, _SHOWN_OF_UUID = 13, 12  # the first group of a UUID is enough to recognize a GPU


def gpu_name(
    index: int | None, uuid: str | None, local_rank: int | None = None, pci_bus_id: str | None = None
) -> str:  # fmt: skip
    """``GPU 6 (GPU-5d3a91c2-…, 00000000:C1:00.0, local rank 2)``, as far as it is known; ``CPU rank 2`` on a CPU."""
    brackets = [uuid or "", pci_bus_id or "", _beside(index, local_rank)]
    if uuid == _CPU:
        return gpu_number(index, local_rank, uuid)
    said = ", ".join(filter(None, brackets))
    return f"{gpu_number(index, local_rank)} ({said})" if said else gpu_number(index, local_rank)


def short_gpu_name(index: int | None, uuid: str | None, local_rank: int | None = None) -> str:
    """``GPU 6 (GPU-5d3a91c2…, local rank 2)``: the name for a headline."""
    is_long = uuid is not None and len(uuid) > _LONGEST_UUID
    return gpu_name(index, f"{uuid[:_SHOWN_OF_UUID]}…" if uuid and is_long else uuid, local_rank)


def gpu_number(index: int | None, local_rank: int | None = None, uuid: str | None = None) -> str:
    """``GPU 6``, ``GPU of local rank 2`` without an index, ``CPU rank 2`` on a CPU."""
    if uuid == _CPU:
        return f"CPU rank {'–' if index is None else index}"
    if index is not None:
        return f"GPU {index}"
    return "GPU" if local_rank is None else f"GPU of local rank {local_rank}"


def _beside(index: int | None, local_rank: int | None) -> str:
    """The local rank where it differs from a known index."""
    return "" if index is None or local_rank in (None, index) else f"local rank {local_rank}"
