"""The environment that ranks start in."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_ddpscale.plan.study import DeviceType

# Left over from a surrounding torchrun or an earlier shell, these change torchrun in silence.
_SCRUBBED = frozenset(
    {
        "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
        "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
    }
)  # fmt: skip
_SCRUBBED_PREFIXES = ("PET_", "TORCHELASTIC_", "PYTEST_")


def worker_environment(environ: Mapping[str, str], device_type: DeviceType) -> dict[str, str]:
    """The parent's environment without what would mislead torchrun, and with what ranks rely on.

    OMP_NUM_THREADS is kept if the user set it, else 1: with a rank per GPU or core, more threads
    would fight each other. On CPU, gloo is kept on the loopback interface unless told otherwise, and
    glibc asks for huge pages: with small ones a rank may be 15 % slower than its twin for as long as
    it lives, by where its memory happens to lie.
    """
    kept = {
        name: value
        for name, value in environ.items()
        if name not in _SCRUBBED and not name.startswith(_SCRUBBED_PREFIXES)
    }
    kept.setdefault("OMP_NUM_THREADS", "1")
    kept["PYTHONUNBUFFERED"] = "1"
    if device_type == "cuda":
        # So that torch numbers GPUs as NVML and nvidia-smi do.
        kept["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    else:
        kept.setdefault("GLOO_SOCKET_IFNAME", "lo")
        kept.setdefault("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
    return kept
