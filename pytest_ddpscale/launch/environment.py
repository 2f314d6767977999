"""The environment that ranks start in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytest_ddpscale.plan.study import DeviceType

# What ranks, and what starts them, rely on. All else stays behind: a variable that somebody once exported must
# not decide how fast a cluster trains, and what torchrun sets (RANK, MASTER_ADDR, PET_*, TORCHELASTIC_*) changes
# another torchrun in silence.
_PASSED = frozenset(
    {
        "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TERM", "TMPDIR", "HOSTNAME",
        "LD_LIBRARY_PATH", "LD_PRELOAD", "LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE",
        "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX", "VIRTUAL_ENV", "MODULEPATH", "LOADEDMODULES",
        "KRB5CCNAME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR", "GLIBC_TUNABLES", "MALLOC_ARENA_MAX", "SLURM_CONF",
    }
)  # fmt: skip
_PASSED_PREFIXES = (
    "LC_", "CONDA_", "CUDA_", "NVIDIA_", "NCCL_", "GLOO_", "TP_", "OMP_", "KMP_", "GOMP_", "MKL_", "OPENBLAS_",
    "TORCH_", "PYTORCH_", "TORCHINDUCTOR_", "TRITON_", "CUDNN_", "CUBLAS_", "CUBLASLT_", "UCX_", "UCC_", "SHARP_",
    "FI_", "OFI_", "RDMAV_", "IBV_", "MLX5_", "PSM3_", "SLURM_", "SLURMD_", "SRUN_", "PMIX_", "ENROOT_", "PYXIS_",
    "APPTAINER_", "APPTAINERENV_", "SINGULARITY_", "SINGULARITYENV_",
)  # fmt: skip
# Passed by a prefix above, and yet of a surrounding torchrun, or of the size of the step around us: srun would take
# them for the size of ours.
_SCRUBBED = frozenset(
    {
        "TORCH_ELASTIC_WORKER_IDENTICAL", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE",
        "SLURM_NTASKS_PER_CORE", "SLURM_NTASKS_PER_SOCKET", "SLURM_NTASKS_PER_GPU", "SLURM_TASKS_PER_NODE",
        "SLURM_CPUS_PER_TASK", "SLURM_TRES_PER_TASK", "SLURM_CPU_BIND", "SLURM_CPU_BIND_LIST",
        "SLURM_CPU_BIND_TYPE", "SLURM_CPU_BIND_VERBOSE", "SLURM_DISTRIBUTION", "SLURM_ARBITRARY_NODELIST",
        "SLURM_EXPORT_ENV", "SLURM_GPUS_PER_TASK", "SLURM_GPU_BIND", "SLURM_LABELIO", "SLURM_UNBUFFEREDIO",
        "SLURM_STDINMODE", "SLURM_STDOUTMODE", "SLURM_STDERRMODE", "SLURM_KILL_BAD_EXIT", "SLURM_WAIT",
        "SLURM_STEP_NODELIST", "SLURM_STEP_NUM_NODES", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE",
        "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_MULTI_PROG", "SLURM_TIMELIMIT", "SRUN_CPUS_PER_TASK",
        "SLURM_EXACT", "SLURM_EXCLUSIVE", "SLURM_HINT", "SLURM_THREADS_PER_CORE", "SLURM_MEM_BIND",
        "SLURM_MEM_BIND_LIST", "SLURM_MEM_BIND_TYPE", "SLURM_MEM_BIND_PREFER", "SLURM_MEM_BIND_SORT",
        "SLURM_MEM_BIND_VERBOSE",
    }
)  # fmt: skip


def worker_environment(
    environ: Mapping[str, str], device_type: DeviceType, *, pass_env: Sequence[str] = ()
) -> dict[str, str]:
    """What ranks are started with: an allow-list of the parent's environment, and what ranks rely on.

    OMP_NUM_THREADS is kept if the user set it, else 1: with a rank per GPU or core, more threads
    would fight each other. On CPU glibc asks for huge pages: with small ones a rank may be 15 % slower
    than its twin for as long as it lives, by where its memory happens to lie.

    Args:
        environ: the parent's.
        device_type: what ranks train on.
        pass_env: further names to pass; a trailing ``*`` stands for any ending.
    """
    kept = {name: value for name, value in environ.items() if _is_passed(name) or _is_named(name, pass_env)}
    kept.setdefault("OMP_NUM_THREADS", "1")
    kept["PYTHONUNBUFFERED"] = "1"
    if device_type == "cuda":
        # So that torch numbers GPUs as NVML and nvidia-smi do.
        kept["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    else:
        kept.setdefault("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
    return kept


def _is_passed(name: str) -> bool:
    return name not in _SCRUBBED and (name in _PASSED or name.startswith(_PASSED_PREFIXES))


def _is_named(name: str, pass_env: Sequence[str]) -> bool:
    return any(
        name.startswith(wanted.removesuffix("*")) if wanted.endswith("*") else name == wanted for wanted in pass_env
    )
