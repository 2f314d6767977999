"""What only an NVIDIA GPU can show: NVML's and torch's views of it agree, and a gang really trains on it.

Everywhere else these tests, and those of test_gpu_survey, test_gpu_probes and test_gpu_telemetry, are skipped. On a
machine with a GPU: ``pytest tests/integration -m gpu -v``. All look at one run of one gang (`gpu_run`).
"""

from __future__ import annotations

import statistics

import pytest

from pytest_ddpscale.node.survey import visible_gpus
from pytest_ddpscale.plan.words import Precision
from pytest_ddpscale.run.evidence import evidence_of
from pytest_ddpscale.run.records import gangs_by_number
from pytest_ddpscale.run.run_record import ended
from pytest_ddpscale.run.table import Columns
from tests.integration.gpu_run import BATCH_SIZE, BLOCK_S, ROUNDS, GpuRun, TorchGpu, gpu_environment

pytestmark = pytest.mark.gpu

RESNET18_PARAMETERS = 11_689_512
GIB = 2**30

EACH_PRECISION = pytest.mark.parametrize("precision", ["fp16", "bf16"])
EACH_ARM = pytest.mark.parametrize("arm", ["alone", "ddp@1"])


def test_nvml_and_torch_name_the_same_gpu(gpu: TorchGpu) -> None:
    first = visible_gpus(gpu_environment())[0]
    assert first.uuid.removeprefix("GPU-") == gpu.uuid.removeprefix("GPU-")
    assert first.name == gpu.name
    # NVML counts what the driver keeps for itself too.
    assert first.memory_bytes
    assert 0.9 * first.memory_bytes <= gpu.memory_bytes <= 1.01 * first.memory_bytes


def test_one_gang_measures_all_of_it(gpu_run: GpuRun) -> None:
    assert ended(gpu_run.directory.read_records(), "error") == {}
    assert [log.name for log in gpu_run.directory.logs.glob("gang-*.log")] == ["gang-0.log"]


@EACH_PRECISION
@EACH_ARM
def test_a_gang_measures_every_round(gpu_run: GpuRun, gpu: TorchGpu, precision: Precision, arm: str) -> None:
    blocks = gpu_run.blocks(precision, arm)
    assert [block.round for block in blocks] == list(range(ROUNDS))
    assert {(block.rank, block.local_rank, block.batch_size) for block in blocks} == {(0, 0, BATCH_SIZE)}
    assert {block.device for block in blocks} == {f"GPU-{gpu.uuid.removeprefix('GPU-')}"}


@EACH_PRECISION
@EACH_ARM
def test_step_times_add_up_to_the_block(gpu_run: GpuRun, precision: Precision, arm: str) -> None:
    blocks = gpu_run.blocks(precision, arm)
    assert blocks
    for block in blocks:
        assert len(block.step_s) == block.steps >= 3
        assert min(block.step_s) > 0
        # CUDA events resolve half a microsecond.
        assert sum(block.step_s) == pytest.approx(block.block_s, abs=1e-6 * (block.steps + 1), rel=1e-5)
        assert 0.5 * BLOCK_S < block.block_s < 2 * BLOCK_S


@EACH_PRECISION
@EACH_ARM
def test_blocks_come_with_utilization_energy_and_peak_memory(
    gpu_run: GpuRun, gpu: TorchGpu, precision: Precision, arm: str
) -> None:
    # Weights, gradients and momentum in fp32.
    least_bytes = 3 * 4 * RESNET18_PARAMETERS
    blocks = gpu_run.blocks(precision, arm)
    assert blocks
    for block in blocks:
        assert block.utilization is not None
        assert 0.5 < block.utilization <= 1.0
        assert block.energy_j is not None
        assert block.energy_j > 0
        assert block.peak_memory_bytes is not None
        assert least_bytes < block.peak_memory_bytes < gpu.memory_bytes


@EACH_PRECISION
def test_ddp_of_one_rank_costs_little(gpu_run: GpuRun, precision: Precision) -> None:
    alone, ddp = (
        statistics.median(block.throughput_samples_per_s for block in gpu_run.blocks(precision, arm))
        for arm in ("alone", "ddp@1")
    )
    assert 0.8 < ddp / alone < 1.1


def test_the_rank_says_which_build_of_cuda_it_runs_on(gpu_run: GpuRun, gpu: TorchGpu) -> None:
    (gang,) = gangs_by_number(gpu_run.directory.read_records()).values()
    assert gang.ranks[0].device_name == gpu.name
    assert gang.versions_of(0)["torch"] == gpu.torch_version
    assert all(gang.versions_of(0)[name] for name in ("cuda", "nccl", "cudnn"))


def test_nccl_says_how_it_would_talk(gpu_run: GpuRun, gpu: TorchGpu) -> None:
    records = gpu_run.directory.read_records()
    ((place, transport),) = evidence_of(gpu_run.plan, Columns(), records).transports.items()
    assert (transport.problem, transport.unreadable) == ("", ())
    assert (transport.rank, place.uuid) == (0, f"GPU-{gpu.uuid.removeprefix('GPU-')}")
    # Alone it is connected with nobody, and says all the same what it would take to other nodes.
    assert transport.network
