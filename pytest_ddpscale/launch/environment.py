"""The environment of ranks."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from pytest_ddpscale.launch.launcher import Launch, TorchrunLauncher, launchers
from pytest_ddpscale.plan.words import DeviceType
from pytest_ddpscale.settings import settings_from

# Variables that ranks and their launchers rely on. All others are dropped: a forgotten export must not decide how fast
# a cluster trains, and an outer torchrun's variables (RANK, MASTER_ADDR, PET_*, TORCHELASTIC_*) silently change ours.
_PASSED = frozenset(
    {
        "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TERM", "TMPDIR", "HOSTNAME",
        "LD_LIBRARY_PATH", "LD_PRELOAD", "LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE",
        "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX", "VIRTUAL_ENV", "MODULEPATH", "LOADEDMODULES",
        "KRB5CCNAME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR", "GLIBC_TUNABLES", "MALLOC_ARENA_MAX",
    }
)  # fmt: skip
# Variables that control computation and communication, independent of this machine's file system.
_COMPUTING = (
    "LC_", "NCCL_", "GLOO_", "TP_", "OMP_", "KMP_", "GOMP_", "MKL_", "OPENBLAS_", "TORCH_", "PYTORCH_",
    "TORCHINDUCTOR_", "TRITON_", "CUDNN_", "CUBLAS_", "CUBLASLT_", "UCX_", "UCC_", "SHARP_", "FI_", "OFI_", "RDMAV_",
    "IBV_", "MLX5_", "PSM3_",
)  # fmt: skip
_TRAVELLING = (*_COMPUTING, "CUDA_DEVICE_ORDER", "GLIBC_TUNABLES", "MALLOC_ARENA_MAX", "PYTHONUNBUFFERED")
_PASSED_PREFIXES = (
    *_COMPUTING, "CONDA_", "CUDA_", "NVIDIA_", "PMIX_", "ENROOT_", "PYXIS_", "APPTAINER_", "APPTAINERENV_",
    "SINGULARITY_", "SINGULARITYENV_",
)  # fmt: skip
# Matches a prefix above, but belongs to a surrounding torchrun.
_WITHHELD = frozenset({"TORCH_ELASTIC_WORKER_IDENTICAL"})


def worker_environment(
    environ: Mapping[str, str], device_type: DeviceType, *, pass_env: Sequence[str] = ()
) -> dict[str, str]:
    """The environment of ranks: an allow-list of the parent's, and defaults that ranks rely on.

    OMP_NUM_THREADS is kept if the user set it, else 1: with one rank per GPU or core, more threads would compete. On
    CPU, glibc uses huge pages: with small ones a rank may be 15 % slower than another for its whole life, depending on
    where its memory happens to lie.

    Args:
        pass_env: extra names to pass; a trailing ``*`` matches any ending.
    """
    known, kept = tuple(launchers().values()), dict[str, str]()
    for name, value in environ.items():
        passed = [launcher.passes(name) for launcher in known]
        is_passed = True in passed or name in _PASSED or name.startswith(_PASSED_PREFIXES)
        if _is_named(name, pass_env) or (is_passed and not (False in passed or name in _WITHHELD)):
            kept[name] = value
    kept.setdefault("OMP_NUM_THREADS", "1")
    kept["PYTHONUNBUFFERED"] = "1"
    if device_type == "cuda":
        # Makes torch number GPUs as NVML and nvidia-smi do.
        kept["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    else:
        kept.setdefault("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
    return kept


def travelling(environment: Mapping[str, str], *, pass_env: Sequence[str] = ()) -> dict[str, str]:
    """The variables to send to ranks on machines that do not inherit this environment."""
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(_TRAVELLING) or _is_named(name, pass_env)
    }  # fmt: skip


def _is_named(name: str, pass_env: Sequence[str]) -> bool:
    return any(
        name.startswith(wanted.removesuffix("*")) if wanted.endswith("*") else name == wanted for wanted in pass_env
    )


def launch_here(device_type: DeviceType) -> Launch:
    """A launch on this machine, with the parts of this process's environment that ranks may have."""
    launcher = TorchrunLauncher(settings_from({}, {}, {}), os.environ)
    return Launch(launcher, worker_environment(os.environ, device_type), device_type=device_type)
