"""Ranks get what they rely on and what the user names, and nothing that would mislead them or torchrun."""

from __future__ import annotations

from pytest_ddpscale.launch.environment import worker_environment

INHERITED = {"PATH": "/bin", "NCCL_DEBUG": "INFO", "CUDA_VISIBLE_DEVICES": "1", "PYTHONPATH": "src"}
LEFTOVERS = (
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
    "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PET_NNODES", "PET_NPROC_PER_NODE",
    "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE", "TORCH_ELASTIC_WORKER_IDENTICAL", "PYTEST_ADDOPTS",
    "PYTEST_CURRENT_TEST", "DDPSCALE_HOST", "DDPSCALE_GANG",
)  # fmt: skip
STEP_AROUND_US = (
    "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE", "SLURM_CPUS_PER_TASK", "SLURM_CPU_BIND",
    "SLURM_DISTRIBUTION", "SLURM_EXPORT_ENV", "SLURM_GPUS_PER_TASK", "SLURM_GPU_BIND", "SLURM_KILL_BAD_EXIT",
    "SLURM_LABELIO", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_TIMELIMIT", "SLURM_WAIT",
    "SLURM_STEP_NODELIST", "SLURM_STEP_NUM_NODES", "SLURM_STEP_NUM_TASKS", "SLURM_STDINMODE",
    "SRUN_CPUS_PER_TASK", "SLURM_EXACT", "SLURM_EXCLUSIVE", "SLURM_HINT", "SLURM_THREADS_PER_CORE", "SLURM_MEM_BIND",
    "SLURM_MEM_BIND_LIST", "SLURM_MEM_BIND_TYPE", "SLURM_MEM_BIND_PREFER", "SLURM_MEM_BIND_SORT",
    "SLURM_MEM_BIND_VERBOSE",
)  # fmt: skip


def test_what_would_change_torchrun_or_srun_in_silence_is_scrubbed() -> None:
    for name in [*LEFTOVERS, *STEP_AROUND_US]:
        assert worker_environment({name: "7"}, "cuda") == worker_environment({}, "cuda")


def test_what_ranks_rely_on_is_passed() -> None:
    for name in [
        "NCCL_IB_HCA", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "UCX_TLS", "FI_PROVIDER", "TORCH_NCCL_BLOCKING_WAIT",
        "SLURM_JOB_ID", "SLURM_JOB_NAME", "SLURM_JOB_NODELIST", "SLURM_CONF", "LD_LIBRARY_PATH", "HOME", "TMPDIR",
        "LC_ALL", "CONDA_PREFIX", "CUBLASLT_WORKSPACE_SIZE", "APPTAINER_BIND", "ENROOT_DATA_PATH",
    ]:  # fmt: skip
        assert worker_environment({name: "7"}, "cuda")[name] == "7"


def test_what_nobody_knows_stays_behind() -> None:
    unknown = "RANKED", "MASTER", "HTTP_PROXY", "AWS_SECRET_ACCESS_KEY", "MY_NCCL_DEBUG", "PATHS", "NCCL", "nccl_debug"
    for name in unknown:
        assert worker_environment({name: "7"}, "cuda") == worker_environment({}, "cuda")


def test_what_the_user_names_is_passed_even_if_it_is_scrubbed_else() -> None:
    environ = {"MY_SITE": "1", "MY_SITE_2": "2", "LUSTRE_A": "3", "LUSTRE_": "4", "XLUSTRE_B": "5", "SLURM_WAIT": "6"}
    passed = worker_environment(environ, "cuda", pass_env=("MY_SITE", "LUSTRE_*", "SLURM_WAIT", "NOT_THERE"))
    added = passed.items() - worker_environment({}, "cuda").items()
    assert added == {("MY_SITE", "1"), ("LUSTRE_A", "3"), ("LUSTRE_", "4"), ("SLURM_WAIT", "6")}


def test_a_gpu_gang_numbers_devices_as_nvml_does_whatever_the_user_set() -> None:
    environment = worker_environment(INHERITED | {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, "cuda")
    assert environment == INHERITED | {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
    }


def test_a_cpu_gang_asks_for_huge_pages() -> None:
    environment = worker_environment(INHERITED, "cpu")
    assert environment == INHERITED | {
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
    }


def test_threads_and_interface_of_the_user_are_kept() -> None:
    chosen = {"OMP_NUM_THREADS": "4", "GLOO_SOCKET_IFNAME": "eth0", "GLIBC_TUNABLES": "glibc.malloc.check=1"}
    assert worker_environment(chosen, "cpu") == chosen | {"PYTHONUNBUFFERED": "1"}


def test_the_parents_environment_is_left_alone() -> None:
    parent = {"RANK": "3", "PATH": "/bin"}
    worker_environment(parent, "cpu")
    assert parent == {"RANK": "3", "PATH": "/bin"}
