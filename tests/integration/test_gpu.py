"""What only an NVIDIA GPU can show: NVML's and torch's views of it agree, and a gang really measures on it.

Everywhere else these tests are skipped. On a machine with a GPU: ``pytest tests/integration/test_gpu.py -m gpu -v``.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

import pytest

from pytest_ddpscale.launch.environment import worker_environment
from pytest_ddpscale.launch.limits import Limits
from pytest_ddpscale.launch.place import place_here
from pytest_ddpscale.launch.supervisor import Supervisor
from pytest_ddpscale.plan.study import Arm, Plan, Study
from pytest_ddpscale.plan.workload import Precision, Workload
from pytest_ddpscale.results.records import Measurement
from pytest_ddpscale.results.run_directory import RunDirectory
from pytest_ddpscale.results.run_record import errors_of
from pytest_ddpscale.sku.detection import visible_gpus
from pytest_ddpscale.telemetry.nvml import UtilizationReader

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

ROUNDS, BLOCK_S, BATCH_SIZE = 3, 2.0, 256
RESNET18_PARAMETERS = 11_689_512
GIB = 2**30
_WHAT_TORCH_SEES = """\
import json, torch
gpu = torch.cuda.get_device_properties(0) if torch.cuda.is_available() else None
capability = torch.cuda.get_device_capability(0) if gpu else None
print(json.dumps({"torch": torch.__version__, "capability": capability} | (
    {"uuid": str(gpu.uuid), "name": gpu.name, "memory_bytes": gpu.total_memory} if gpu else {})))
"""
_BUSY = """\
import sys, time, torch
a = torch.randn(8192, 8192, device="cuda", dtype=torch.float16)
b = a @ a
torch.cuda.synchronize()
print("busy", flush=True)
until = time.monotonic() + float(sys.argv[1])
while time.monotonic() < until:
    for _ in range(20):
        torch.matmul(a, a, out=b)
    torch.cuda.synchronize()
"""


@dataclass(frozen=True)
class TorchGpu:
    """torch's cuda:0."""

    uuid: str
    name: str
    memory_bytes: int
    capability: tuple[int, int]


def _environment() -> dict[str, str]:
    return worker_environment(os.environ, "cuda")


def _what_torch_sees() -> dict[str, Any]:
    command = [sys.executable, "-c", _WHAT_TORCH_SEES]
    done = subprocess.run(command, env=_environment(), capture_output=True, text=True, timeout=120, check=True)
    seen: dict[str, Any] = json.loads(done.stdout)
    return seen


@pytest.fixture(scope="module")
def gpu() -> TorchGpu:
    """torch's first GPU; asked of a process of its own, so that this one never imports torch."""
    where = "on a machine with one: pytest tests/integration/test_gpu.py -m gpu"
    # A driver is asked for first, because importing torch takes seconds.
    if not visible_gpus():
        pytest.skip(f"NVML sees no NVIDIA GPU here; {where}")
    seen = _what_torch_sees()
    if seen["capability"] is None:
        pytest.skip(f"torch {seen['torch']} sees no GPU (torch.cuda.is_available() is False); {where}")
    return TorchGpu(seen["uuid"], seen["name"], seen["memory_bytes"], tuple(seen["capability"]))


@pytest.fixture(scope="module")
def measured(gpu: TorchGpu, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A run of one gang on one GPU: fp16, and bf16 where the GPU has it, each alone and under DDP."""
    precisions: tuple[Precision, ...] = ("fp16", "bf16") if gpu.capability >= (8, 0) else ("fp16",)
    plan = Plan("any", "cuda", tuple(_study(precision) for precision in precisions))
    run = RunDirectory.create(tmp_path_factory.mktemp("gang") / "run")
    run.write_json(run.plan_json, plan.as_json())
    supervisor = Supervisor(place_here("cuda"), run, Limits(inactivity_s=100.0))
    supervisor.measure(plan)
    assert errors_of(run.read_records()) == {}
    assert supervisor.gangs_started == 1
    return run


def _study(precision: Precision) -> Study:
    workload = Workload(f"resnet18-{precision}", "resnet18", precision, BATCH_SIZE)
    arms = (Arm("alone", 1, BATCH_SIZE), Arm("ddp", 1, BATCH_SIZE))
    return Study("weak", workload, arms, ROUNDS, BLOCK_S, warmup_s=3.0)


def _blocks(run: RunDirectory, precision: Precision, arm: str) -> list[Measurement]:
    """The measurements of one arm, by round."""
    if run.read_plan().study(f"weak/resnet18-{precision}") is None:
        pytest.skip(f"this GPU has no {precision} of its own (compute capability below 8.0)")
    study = f"weak/resnet18-{precision}"
    return sorted((m for m in run.read_measurements() if (m.study, m.arm) == (study, arm)), key=lambda m: m.round)


EACH_PRECISION = pytest.mark.parametrize("precision", ["fp16", "bf16"])
EACH_ARM = pytest.mark.parametrize("arm", ["alone", "ddp@1"])


def test_nvml_and_torch_name_the_same_gpu(gpu: TorchGpu) -> None:
    first = visible_gpus(_environment())[0]
    assert first.uuid.removeprefix("GPU-") == gpu.uuid.removeprefix("GPU-")
    assert first.name == gpu.name
    # NVML counts what the driver keeps for itself too.
    assert 0.9 * first.memory_gib * GIB <= gpu.memory_bytes <= 1.01 * first.memory_gib * GIB


def test_utilization_is_high_while_the_gpu_multiplies_matrices(gpu: TorchGpu) -> None:
    busy_s = 4.0
    command = [sys.executable, "-c", _BUSY, str(busy_s)]
    with (
        UtilizationReader(gpu.uuid) as reader,
        subprocess.Popen(command, env=_environment(), stdout=subprocess.PIPE, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "busy\n"
            began = time.time()
            time.sleep(busy_s - 0.5)
            utilization, samples = reader.read(began, time.time())
        finally:
            process.kill()
    assert reader.why_unreadable is None
    assert samples >= 1
    assert utilization is not None
    assert 0.5 < utilization <= 1.0


@EACH_PRECISION
@EACH_ARM
def test_a_gang_measures_every_round(measured: RunDirectory, gpu: TorchGpu, precision: Precision, arm: str) -> None:
    blocks = _blocks(measured, precision, arm)
    assert [block.round for block in blocks] == list(range(ROUNDS))
    assert {(block.rank, block.local_rank, block.batch_size) for block in blocks} == {(0, 0, BATCH_SIZE)}
    assert {block.device for block in blocks} == {f"GPU-{gpu.uuid.removeprefix('GPU-')}"}


@EACH_PRECISION
@EACH_ARM
def test_step_times_add_up_to_the_block(measured: RunDirectory, precision: Precision, arm: str) -> None:
    for block in _blocks(measured, precision, arm):
        assert len(block.step_s) == block.steps >= 3
        assert min(block.step_s) > 0
        # CUDA events resolve half a microsecond.
        assert sum(block.step_s) == pytest.approx(block.block_s, abs=1e-6 * (block.steps + 1), rel=1e-5)
        assert 0.5 * BLOCK_S < block.block_s < 2 * BLOCK_S


@EACH_PRECISION
@EACH_ARM
def test_blocks_come_with_utilization_and_peak_memory(
    measured: RunDirectory, gpu: TorchGpu, precision: Precision, arm: str
) -> None:
    # Weights, gradients and momentum in fp32.
    least_bytes = 3 * 4 * RESNET18_PARAMETERS
    for block in _blocks(measured, precision, arm):
        assert block.utilization is not None
        assert 0.5 < block.utilization <= 1.0
        assert block.peak_memory_bytes is not None
        assert least_bytes < block.peak_memory_bytes < gpu.memory_bytes


@EACH_PRECISION
def test_ddp_of_one_rank_costs_little(measured: RunDirectory, precision: Precision) -> None:
    alone, ddp = (
        statistics.median(block.throughput_img_per_s for block in _blocks(measured, precision, arm))
        for arm in ("alone", "ddp@1")
    )
    assert 0.8 < ddp / alone < 1.1


def test_the_rank_says_which_build_of_cuda_it_runs_on(measured: RunDirectory, gpu: TorchGpu) -> None:
    startups = [record for record in measured.read_records() if record["kind"] == "startup"]
    assert [startup["device_name"] for startup in startups] == [gpu.name]
    assert all(startups[0]["versions"][name] for name in ("cuda", "nccl", "cudnn"))
