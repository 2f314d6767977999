"""What a real GPU says of itself while it works, and that its own readings agree with each other."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import closing

import pytest

from pytest_ddpscale.plan.words import Precision
from pytest_ddpscale.run.records import gangs_by_number
from pytest_ddpscale.run.telemetry import GpuReadings
from pytest_ddpscale.telemetry.windows import Sampler
from tests.builders.measurements import measurements_in
from tests.builders.records import probes_of
from tests.builders.telemetry import Telemetry, flags_of, telemetry_of
from tests.integration.gpu_run import ROUNDS, GpuRun, TorchGpu, gpu_environment
from tests.played_cuda.compiling import LIBRARY_NAME
from tests.telemetry.sampled import cut, wait_until

pytestmark = pytest.mark.gpu

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
EACH_PRECISION = pytest.mark.parametrize("precision", ["fp16", "bf16"])


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


def test_utilization_is_high_while_the_gpu_multiplies_matrices(steady: GpuReadings) -> None:
    assert steady.utilization is not None
    assert 0.5 < steady.utilization <= 1.0
    assert flags_of(steady) == ()


def test_the_energy_counter_and_power_samples_agree(steady: GpuReadings) -> None:
    assert steady.energy_j is not None
    assert steady.power_w is not None
    assert steady.energy_j == pytest.approx(steady.power_w * WINDOW_S, rel=0.1)


def test_gpm_sees_the_sms_at_work(steady: GpuReadings, gpu: TorchGpu) -> None:
    if not has_gpm(gpu):
        pytest.skip(f"{gpu.name} has no GPM")
    assert steady.sm_activity is not None, steady.unreadable
    assert steady.sm_activity > 0.5


def test_every_timed_block_has_one_line_of_telemetry(gpu_run: GpuRun, gpu: TorchGpu) -> None:
    run = gpu_run.directory
    trained = [(one.study, one.arm, one.round, one.rank) for one in measurements_in(run)]
    probed = [(one.study, one.probe, one.round, one.rank) for one in probes_of(run.read_records())]
    telemetry = telemetry_of(run.read_records(), gangs_by_number(run.read_records()))
    assert trained
    assert probed
    assert sorted((one.study, one.arm, one.round, one.rank) for one in telemetry) == sorted(trained + probed)
    assert {one.device for one in telemetry} == {f"GPU-{gpu.uuid.removeprefix('GPU-')}"}


def test_power_clocks_and_throttling_are_read_in_every_polled_block(gpu_run: GpuRun) -> None:
    for one in polled(gpu_run):
        assert one.throttle_reasons is not None
        assert one.power_w is not None
        assert one.power_limit_w is not None
        # A driver lets boards go above their limit for milliseconds.
        assert 0.1 * one.power_limit_w < one.power_w < 1.1 * one.power_limit_w
        assert one.sm_clock_mhz is not None
        assert one.sm_clock_max_mhz is not None
        assert 0.4 * one.sm_clock_max_mhz < one.sm_clock_mhz <= one.sm_clock_max_mhz


def test_training_is_neither_stalled_nor_held_down(gpu_run: GpuRun) -> None:
    assert [flags_of(one) for one in training(gpu_run) if set(flags_of(one)) - {"idle"}] == []


def test_energy_is_about_power_times_time_in_every_polled_block(gpu_run: GpuRun) -> None:
    for one in polled(gpu_run):
        assert one.energy_j is not None
        assert one.power_w is not None
        # Not closer: power samples are means over a second, so that those of a short block are half of what was before.
        seconds = one.ended_unix_s - one.started_unix_s
        assert one.energy_j == pytest.approx(one.power_w * seconds, rel=0.5)


def test_gpm_is_read_in_every_polled_block(gpu_run: GpuRun, gpu: TorchGpu) -> None:
    if not has_gpm(gpu):
        pytest.skip(f"{gpu.name} has no GPM")
    for one in polled(gpu_run):
        assert one.sm_activity is not None, one.unreadable
        assert 0 < one.sm_activity <= 1


@EACH_PRECISION
def test_measurements_have_the_energy_and_utilization_of_their_gpu(gpu_run: GpuRun, precision: Precision) -> None:
    blocks = gpu_run.blocks(precision, "ddp@1")
    said = {(one.study, one.arm, one.round): one for one in training(gpu_run)}
    assert len(blocks) == ROUNDS
    for block in blocks:
        telemetry = said[block.study, block.arm, block.round]
        assert telemetry.utilization is not None
        assert (block.energy_j, block.utilization) == (telemetry.energy_j, telemetry.utilization)


@EACH_PRECISION
def test_images_per_joule_are_measured_in_every_round(gpu_run: GpuRun, precision: Precision) -> None:
    blocks = gpu_run.blocks(precision, "alone")
    values = [one.batch_size * one.steps / one.energy_j for one in blocks if one.energy_j]
    assert len(values) == ROUNDS
    assert all(0.5 < value < 200 for value in values)  # ResNet-18 on GPUs from V100 to B200: some 5 to 30
