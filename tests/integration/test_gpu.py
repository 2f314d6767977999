"""What only an NVIDIA GPU can show: NVML's and torch's views of it agree, and a gang really trains on it.

Everywhere else these tests are skipped. On a machine with a GPU: ``pytest tests/integration -m gpu -v``. All look at
one run of one gang (`gpu_run`): its survey, its probes and what the GPU says of itself while it works.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace

import pytest

from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.hardware import has_kernels
from pytest_ddpscale.plan.node_check import NODE_CHECKS
from pytest_ddpscale.plan.words import Precision
from pytest_ddpscale.report.words.reasons import worded
from pytest_ddpscale.run.evidence import evidence_of
from pytest_ddpscale.run.records import gangs_by_number
from pytest_ddpscale.run.run_record import ended
from pytest_ddpscale.run.survey_record import Survey, SurveyedGpu, surveys_of
from pytest_ddpscale.run.table import Columns
from pytest_ddpscale.run.telemetry import GpuReadings, TelemetryBlock, telemetry_columns_of
from pytest_ddpscale.telemetry.windows import Sampler
from pytest_ddpscale.thresholds.model import Sku
from tests.builders.judged import CONFIDENCE, check_case
from tests.builders.measurements import ProbeMeasurement, measurements_in
from tests.builders.probes import value_of
from tests.builders.records import probes_of
from tests.builders.telemetry import Telemetry, flags_of, telemetry_of
from tests.integration.gpu_run import (
    BATCH_SIZE,
    BLOCK_S,
    PROBE_BLOCK_S,
    PROBES,
    ROUNDS,
    GpuRun,
    TorchGpu,
    gpu_environment,
)
from tests.played_cuda.compiling import LIBRARY_NAME
from tests.telemetry.sampled import cut, wait_until

pytestmark = pytest.mark.gpu

RESNET18_PARAMETERS = 11_689_512
GIB = 2**30


def read(one: object, *names: str) -> list[float]:
    """These readings, all of which are there."""
    values = [getattr(one, name) for name in names]
    assert None not in values, (names, values, getattr(one, "unreadable", ""))
    return values


EACH_PRECISION = pytest.mark.parametrize("precision", ["fp16", "bf16"])
EACH_ARM = pytest.mark.parametrize("arm", ["alone", "ddp@1"])


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
    said = {(one.study, one.arm, one.round): (one.energy_j, one.utilization) for one in training(gpu_run)}
    for block in blocks:
        assert said[block.study, block.arm, block.round] == (block.energy_j, block.utilization)
        utilization, energy_j, peak_memory_bytes = read(block, "utilization", "energy_j", "peak_memory_bytes")
        assert 0.5 < utilization <= 1.0
        assert energy_j > 0
        assert least_bytes < peak_memory_bytes < gpu.memory_bytes


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


# Since Ampere rows are remapped, before it pages were retired; and not every GPU can be cut into slices.
NOT_OF_EVERY_GPU = {"retired_pages_pending", "remapped_rows", "mig_enabled"}


@pytest.fixture(scope="module")
def survey(gpu_run: GpuRun) -> Survey:
    """Of this node, as its agent sent it."""
    (survey,) = surveys_of(gpu_run.directory.read_records()).values()
    return survey


@pytest.fixture(scope="module")
def surveyed(survey: Survey) -> SurveyedGpu:
    """The first GPU that ranks may use: torch's cuda:0."""
    return next(gpu for gpu in survey.gpus if gpu.is_visible)


def test_driver_and_torch_answer(survey: Survey, gpu: TorchGpu) -> None:
    assert (survey.problem, survey.driver_problem, survey.torch_problem) == ("", "", "")
    assert survey.has_driver
    assert (survey.torch_gpus, survey.cuda_problem) == (sum(gpu.is_visible for gpu in survey.gpus), "")
    assert [name for name, version in survey.versions.items() if not version] == []
    assert (survey.versions["torch"], survey.versions["cuda"]) == (gpu.torch_version, gpu.cuda_version)
    # A driver runs what was built for its major version of CUDA, or an earlier one.
    driver, build = (str(survey.versions[name]).partition(".")[0] for name in ("cuda_driver", "cuda"))
    assert int(driver) >= int(build)


def test_the_topology_is_that_of_nvidia_smi(survey: Survey) -> None:
    if shutil.which("nvidia-smi") is None:
        pytest.skip("there is no nvidia-smi here")
    asked = subprocess.run(["nvidia-smi", "topo", "-m"], capture_output=True, text=True, timeout=60)
    assert asked.returncode == 0, f"nvidia-smi topo -m fails: {asked.stdout}{asked.stderr}"
    assert "GPU0" in survey.topology


def test_torch_names_the_architectures_that_it_was_built_for(survey: Survey, gpu: TorchGpu) -> None:
    assert list(survey.arch_list) == gpu.arch_list
    assert has_kernels(survey.arch_list, gpu.capability)


def test_the_gpu_is_the_one_that_torch_sees(surveyed: SurveyedGpu, gpu: TorchGpu) -> None:
    assert surveyed.problem == ""
    assert surveyed.uuid == f"GPU-{gpu.uuid.removeprefix('GPU-')}"
    assert surveyed.name == gpu.name
    assert surveyed.compute_capability == f"{gpu.capability[0]}.{gpu.capability[1]}"
    # NVML counts what the driver keeps for itself too.
    (memory_bytes,) = read(surveyed, "memory_bytes")
    assert 0.9 * memory_bytes <= gpu.memory_bytes <= 1.01 * memory_bytes


def test_the_driver_says_all_that_checks_ask(surveyed: SurveyedGpu, gpu: TorchGpu) -> None:
    assert {name: why for name, why in surveyed.unreadable.items() if name not in NOT_OF_EVERY_GPU} == {}
    assert (surveyed.remapped_rows is not None) == (gpu.capability >= (8, 0))


def test_the_gpu_is_at_rest_and_nobody_elses(surveyed: SurveyedGpu) -> None:
    assert surveyed.processes == ()
    temperature_c, power_limit_w = read(surveyed, "temperature_c", "power_limit_w")
    assert 10 <= temperature_c <= 90
    assert 50 <= power_limit_w <= 2000


def test_memory_and_links_are_those_of_the_data_sheet(survey: Survey, surveyed: SurveyedGpu, sku: Sku) -> None:
    assert sku.node is not None
    if sku.node.ecc is not None:
        assert surveyed.ecc_enabled == sku.node.ecc
    assert (surveyed.ecc_uncorrected, surveyed.mig_enabled or False) == (0, False)
    # Slot and virtual machine may have less: that is for the check to say.
    of_gpu, of_slot = read(surveyed, "pcie_generation_gpu_max", "pcie_generation_max")
    assert of_gpu >= (sku.node.pcie_generation or 1)
    assert 1 <= of_slot <= of_gpu
    active, nvlinks = read(surveyed, "nvlinks_active", "nvlinks")
    has_peers = len(survey.gpus) > 1  # a virtual machine may have one GPU of eight, and none of its links
    assert active <= nvlinks == (sku.node.nvlinks if has_peers and sku.node.nvlinks is not None else nvlinks)


@pytest.mark.parametrize("name", NODE_CHECKS)
def test_the_node_passes_the_checks_of_its_sku(gpu_run: GpuRun, sku: Sku, name: str) -> None:
    if name not in sku.checks:
        pytest.skip(f"thresholds.yaml does not ask {name} of this SKU")
    if name == "topology" and shutil.which("nvidia-smi") is None:
        pytest.skip("there is no nvidia-smi here")
    records = gpu_run.directory.read_records()
    telemetry = telemetry_columns_of(
        [record for record in records if isinstance(record, TelemetryBlock)], gangs_by_number(records)
    )
    evidence = replace(evidence_of(gpu_run.plan, Columns(), records), telemetry=telemetry)
    found = worded(judge(check_case(name, sku=sku), evidence, CONFIDENCE))
    if sku.checks[name] == "fail":
        assert found.outcome == "passed", found.reason
    else:
        assert found.outcome != "not_measured", found.reason


# Less is a mistake of ours or a broken GPU, more a mistake of ours: shapes, kernels and clocks cost less than that.
LEAST_SHARE, MOST_SHARE = 0.3, 1.05
NEEDED_CAPABILITY = {"matmul-bf16": (8, 0), "matmul-fp8": (8, 9)}
# One direction, after the encoding of the line: PCI Express base specifications 3.0 to 6.0.
PCIE_GBPS_PER_LANE = {3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}

EACH_PROBE = pytest.mark.parametrize("name", PROBES)


def measured(gpu_run: GpuRun, gpu: TorchGpu, name: str) -> list[ProbeMeasurement]:
    """One probe's measurements, by round; skips what the GPU cannot do and has said so."""
    records = gpu_run.directory.read_records()
    refusals = evidence_of(gpu_run.plan, Columns(), records).unsupported
    if gpu.capability < NEEDED_CAPABILITY.get(name, (0, 0)):
        assert name in refusals
        pytest.skip(refusals[name])
    assert name not in refusals, refusals[name]
    return sorted((one for one in probes_of(records) if one.probe == name), key=lambda one: one.round)


def peak(sku: Sku, name: str) -> float | None:
    """What the data sheet promises, in the unit of the probe's metric; None if thresholds.yaml does not say."""
    probe, promised = Arm(name), sku.peak
    precision = probe.operation.precision
    if precision is None and probe.operation.kind != "memory-copy":
        return pcie_gbps(sku)
    if promised is None:
        return None
    if precision is None:
        return promised.memory_bandwidth_gbps
    if precision == "fp8":
        # Dense, twice that of fp16 on every GPU that has it: data sheets of Ada, Hopper and Blackwell.
        return None if promised.fp16_tflops is None else 2 * promised.fp16_tflops
    return promised.tflops(precision)


def pcie_gbps(sku: Sku) -> float | None:
    if sku.node is None or not sku.node.pcie_generation or not sku.node.pcie_width:
        return None
    return PCIE_GBPS_PER_LANE[sku.node.pcie_generation] * sku.node.pcie_width


@EACH_PROBE
def test_a_probe_is_done_in_every_round_and_its_result_is_right(gpu_run: GpuRun, gpu: TorchGpu, name: str) -> None:
    found = measured(gpu_run, gpu, name)
    assert [one.round for one in found] == list(range(ROUNDS))
    assert [one.is_correct for one in found] == [True] * ROUNDS
    assert {one.device for one in found} == {f"GPU-{gpu.uuid.removeprefix('GPU-')}"}
    for one in found:
        assert 0.3 * PROBE_BLOCK_S < one.seconds < 3 * PROBE_BLOCK_S


@EACH_PROBE
def test_a_probe_reaches_what_the_data_sheet_lets_expect(gpu_run: GpuRun, gpu: TorchGpu, sku: Sku, name: str) -> None:
    found, promised = measured(gpu_run, gpu, name), peak(sku, name)
    if promised is None:
        pytest.skip(f"thresholds.yaml promises nothing for {name}")
    share = statistics.median(map(value_of, found)) / promised
    assert LEAST_SHARE <= share <= MOST_SHARE


@EACH_PROBE
def test_rounds_of_a_probe_are_alike(gpu_run: GpuRun, gpu: TorchGpu, name: str) -> None:
    values = [value_of(one) for one in measured(gpu_run, gpu, name)]
    assert max(values) < 1.5 * min(values)


# Power samples are means over the last second: after two only the load is in them.
SETTLED_S, WINDOW_S = 2.0, 4.0
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


@pytest.fixture(scope="module")
def steady(gpu: TorchGpu, tmp_path_factory: pytest.TempPathFactory) -> GpuReadings:
    """A window of nothing but matrix products, with the same on either side of it."""
    command = [sys.executable, "-c", _BUSY, str(SETTLED_S + WINDOW_S + 3)]
    uuid = gpu.uuid  # bare, as torch has it
    with (
        closing(Sampler(uuid, tmp_path_factory.mktemp("node") / "lines")) as sampler,
        subprocess.Popen(command, env=gpu_environment(), stdout=subprocess.PIPE, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "busy\n"
            start = time.time() + SETTLED_S
            wait_until(start + WINDOW_S)
            return cut(sampler, start, start + WINDOW_S)
        finally:
            process.kill()


def training(gpu_run: GpuRun) -> list[Telemetry]:
    """Telemetry of the blocks in which a model was trained."""
    records = gpu_run.directory.read_records()
    found = [one for one in telemetry_of(records, gangs_by_number(records)) if one.study.startswith("weak/")]
    assert len(found) == len(gpu_run.plan.studies) * 2 * ROUNDS
    return found


def polled(gpu_run: GpuRun) -> list[Telemetry]:
    """Telemetry of the blocks that a poll fell into: all of them on a GPU.

    Played GPUs compute on the host's CPU, so that their sampler may wait for it throughout a block.
    """
    found = training(gpu_run)
    seen = [one for one in found if one.polls >= 1]
    is_played = LIBRARY_NAME in os.environ.get("LD_PRELOAD", "")
    assert len(seen) >= (0.5 if is_played else 1.0) * len(found), [one.polls for one in found]
    return seen


def has_gpm(gpu: TorchGpu) -> bool:
    """Whether NVIDIA documents GPM for it: data-centre GPUs from Hopper on."""
    return gpu.capability[0] in (9, 10)


def test_energy_utilization_and_power_of_matrix_products_fit_together(steady: GpuReadings) -> None:
    utilization, energy_j, power_w = read(steady, "utilization", "energy_j", "power_w")
    assert 0.5 < utilization <= 1.0
    assert flags_of(steady) == ()
    assert energy_j == pytest.approx(power_w * WINDOW_S, rel=0.1)


def test_gpm_sees_the_sms_at_work(steady: GpuReadings, gpu: TorchGpu) -> None:
    if not has_gpm(gpu):
        pytest.skip(f"{gpu.name} has no GPM")
    assert read(steady, "sm_activity")[0] > 0.5


def test_every_timed_block_has_one_line_of_telemetry(gpu_run: GpuRun, gpu: TorchGpu) -> None:
    run = gpu_run.directory
    trained = [(one.study, one.arm, one.round, one.rank) for one in measurements_in(run)]
    probed = [(one.study, one.probe, one.round, one.rank) for one in probes_of(run.read_records())]
    telemetry = telemetry_of(run.read_records(), gangs_by_number(run.read_records()))
    assert trained
    assert probed
    assert sorted((one.study, one.arm, one.round, one.rank) for one in telemetry) == sorted(trained + probed)
    assert {one.device for one in telemetry} == {f"GPU-{gpu.uuid.removeprefix('GPU-')}"}


def test_power_clocks_energy_and_throttling_are_read_in_every_polled_block(gpu_run: GpuRun, gpu: TorchGpu) -> None:
    for one in polled(gpu_run):
        assert one.throttle_reasons is not None
        power_w, limit_w, energy_j = read(one, "power_w", "power_limit_w", "energy_j")
        # A driver lets boards go above their limit for milliseconds.
        assert 0.1 * limit_w < power_w < 1.1 * limit_w
        clock_mhz, most_mhz = read(one, "sm_clock_mhz", "sm_clock_max_mhz")
        assert 0.4 * most_mhz < clock_mhz <= most_mhz
        # Not closer: power samples are means over a second, so that those of a short block are half of what was before.
        assert energy_j == pytest.approx(power_w * (one.ended_unix_s - one.started_unix_s), rel=0.5)
        if has_gpm(gpu):
            assert 0 < read(one, "sm_activity")[0] <= 1


def test_training_is_neither_stalled_nor_held_down(gpu_run: GpuRun) -> None:
    assert [flags_of(one) for one in training(gpu_run) if set(flags_of(one)) - {"idle"}] == []
