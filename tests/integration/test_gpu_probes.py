"""Probes of one real GPU come out right, and near what its data sheet lets expect."""

from __future__ import annotations

import statistics

import pytest

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.run.evidence import evidence_of
from pytest_ddpscale.run.table import Columns
from pytest_ddpscale.thresholds.model import Sku
from tests.builders.measurements import ProbeMeasurement
from tests.builders.probes import value_of
from tests.builders.records import probes_of
from tests.integration.gpu_run import PROBE_BLOCK_S, PROBES, ROUNDS, GpuRun, TorchGpu

pytestmark = pytest.mark.gpu

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
