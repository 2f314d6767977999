"""A run of one gang on one real GPU, for all tests that need one: surveyed, probed, trained on and sampled."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest

from pytest_ddpscale.families.image import ImageFamily
from pytest_ddpscale.launch.environment import launch_here, worker_environment
from pytest_ddpscale.launch.gang_state import Limits
from pytest_ddpscale.launch.supervisor import Supervisor
from pytest_ddpscale.node.survey import visible_gpus
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.study import Plan, ProbeStudy, Study
from pytest_ddpscale.plan.words import Precision
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.sku.matching import matching_skus
from pytest_ddpscale.thresholds.loading import load_thresholds
from pytest_ddpscale.thresholds.model import Sku
from pytest_ddpscale.util.packaged import packaged
from tests.builders.measurements import Measurement, measurements_in

ROUNDS, BLOCK_S, BATCH_SIZE = 3, 2.0, 256
PROBES = (
    *("matmul-fp16", "matmul-bf16", "matmul-fp32", "matmul-fp8"),
    *("memory-copy", "host-to-device", "device-to-host"),
)
PROBE_BLOCK_S = 0.3
_WHAT_TORCH_SEES = """\
import json, torch
gpu = torch.cuda.get_device_properties(0) if torch.cuda.is_available() else None
capability = torch.cuda.get_device_capability(0) if gpu else None
print(json.dumps({"torch_version": torch.__version__, "cuda_version": torch.version.cuda, "capability": capability,
    "arch_list": torch.cuda.get_arch_list()} | (
    {"uuid": str(gpu.uuid), "name": gpu.name, "memory_bytes": gpu.total_memory} if gpu else {})))
"""
_WHERE = "on a machine with one: pytest tests/integration -m gpu"


@dataclass(frozen=True)
class TorchGpu:
    """torch's cuda:0, and the build of torch that sees it."""

    uuid: str
    name: str
    memory_bytes: int
    capability: tuple[int, int]
    torch_version: str
    cuda_version: str
    arch_list: list[str]


@dataclass(frozen=True)
class GpuRun:
    """What one gang measured."""

    directory: RunDirectory
    plan: Plan

    def blocks(self, precision: Precision, arm: str) -> list[Measurement]:
        """The measurements of one arm, by round; skips where the GPU has no such precision."""
        study = f"weak/resnet18-{precision}"
        if self.plan.study(study) is None:
            assert precision == "bf16", "all GPUs have the others"
            pytest.skip(f"this GPU has no {precision} of its own (compute capability below 8.0)")
        measured = [one for one in measurements_in(self.directory) if (one.study, one.arm) == (study, arm)]
        return sorted(measured, key=lambda one: one.round)


def gpu_environment() -> dict[str, str]:
    """That of ranks: GPUs are numbered as NVML does."""
    return worker_environment(os.environ, "cuda")


@pytest.fixture(scope="session")
def gpu() -> TorchGpu:
    """torch's first GPU; asked of a process of its own, so that this one never imports torch."""
    # A driver is asked for first, because importing torch takes seconds.
    if not visible_gpus():
        pytest.skip(f"NVML sees no NVIDIA GPU here; {_WHERE}")
    seen = _what_torch_sees()
    if seen["capability"] is None:
        pytest.skip(f"torch {seen['torch_version']} sees no GPU (torch.cuda.is_available() is False); {_WHERE}")
    return TorchGpu(**seen | {"capability": tuple(seen["capability"])})


@pytest.fixture(scope="session")
def sku(gpu: TorchGpu) -> Sku:
    """What the packaged thresholds say of this GPU."""
    thresholds = load_thresholds(packaged("thresholds.yaml")).thresholds
    names = matching_skus(thresholds, visible_gpus(gpu_environment())[0])
    if not names:
        pytest.skip(f"thresholds.yaml has no SKU for {gpu.name}")
    return thresholds.skus[names[0]]


@pytest.fixture(scope="session")
def gpu_run(gpu: TorchGpu, tmp_path_factory: pytest.TempPathFactory) -> GpuRun:
    """A survey, all probes that one GPU can do, and training in fp16 and, where the GPU has it, bf16.

    Whether anything broke is for tests to say: what was measured all the same is worth looking at.
    """
    precisions: tuple[Precision, ...] = ("fp16", "bf16") if gpu.capability >= (8, 0) else ("fp16",)
    probes = ProbeStudy(tuple(map(Arm, PROBES)), ROUNDS, PROBE_BLOCK_S)
    plan = Plan("any", "cuda", tuple(map(_study, precisions)), probes=probes, survey=True)
    directory = RunDirectory.create(tmp_path_factory.mktemp("gang") / "run")
    directory.write_json(directory.plan_json, plan)
    Supervisor(launch_here("cuda"), directory, Limits(inactivity_s=100.0)).measure(plan)
    return GpuRun(directory, plan)


def _study(precision: Precision) -> Study:
    workload = Workload(f"resnet18-{precision}", ImageFamily("resnet18"), precision, BATCH_SIZE)
    arms = (Arm("alone", 1, BATCH_SIZE), Arm("ddp", 1, BATCH_SIZE))
    return Study("weak", workload, arms, ROUNDS, BLOCK_S, warmup_s=3.0)


def _what_torch_sees() -> dict[str, Any]:
    command = [sys.executable, "-c", _WHAT_TORCH_SEES]
    done = subprocess.run(command, env=gpu_environment(), capture_output=True, text=True, timeout=120, check=True)
    seen: dict[str, Any] = json.loads(done.stdout)
    return seen
