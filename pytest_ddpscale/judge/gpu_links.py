"""PCIe and NVLink of each GPU: capability, and state under load."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from pytest_ddpscale.judge.finding import Finding, GpuPlace, fault, note, unknown
from pytest_ddpscale.judge.from_survey import gpus_of, unread
from pytest_ddpscale.judge.under_load import in_most_windows
from pytest_ddpscale.plan.node_check import NodeExpectation
from pytest_ddpscale.run.column_record import FloatArray
from pytest_ddpscale.run.survey_record import Survey, SurveyedGpu
from pytest_ddpscale.run.telemetry import TelemetryColumns

# Below this utilization a GPU, and with it its link, may be saving power.
BUSY_UTILIZATION = 0.5
_NOTHING_EXPECTED = "the SKU's `node:` does not set {}"


def pcie(expectation: NodeExpectation, gpu: SurveyedGpu, place: GpuPlace) -> Iterator[Finding]:
    """Maximum PCIe generation and width of GPU and slot together; an idle GPU lowers the current ones to save power."""
    yield from _unless_expected(expectation)
    expected, found = expectation.pcie_generation, gpu.pcie_generation_max
    if expected is not None and found is None:
        yield unread(gpu, place, "pcie_generation_max")
    elif expected is not None and found is not None and found < expected:
        own = "" if gpu.pcie_generation_gpu_max is None else f" (the GPU alone: {gpu.pcie_generation_gpu_max})"
        yield fault(f"PCIe of GPU and slot reaches generation {found}{own}; expected {expected}", place)
    if expectation.pcie_width is not None:
        yield _width(gpu, place, expectation.pcie_width)


def pcie_under_load(
    expectation: NodeExpectation, windows: TelemetryColumns, place: GpuPlace
) -> Iterator[Finding]:  # fmt: skip
    """PCIe generation and width under load."""
    yield from _unless_expected(expectation)
    working = windows.of(~(windows.utilization < BUSY_UTILIZATION))  # includes unknown utilization
    if not len(working):
        yield unknown(f"utilization never reached {100 * BUSY_UTILIZATION:.0f} %", place)
        return
    generation, width = expectation.pcie_generation, expectation.pcie_width
    if generation is not None:
        text = f"PCIe runs at generation {_range(working.pcie_generation)}, expected {generation},"
        yield _below(working, working.pcie_generation, generation, text, place)
    if width is not None:
        text = f"PCIe has {_range(working.pcie_width)} lanes, expected {width},"
        yield _below(working, working.pcie_width, width, text, place)


def nvlink(expectation: NodeExpectation, survey: Survey) -> Iterator[Finding]:
    """All NVLinks are up; a node with a single GPU needs none."""
    return gpus_of(expectation, survey, partial(_nvlink, survey))


def _width(gpu: SurveyedGpu, place: GpuPlace, expected: int) -> Finding:
    """Too few lanes are a fault if GPU and slot cannot have more, or if the link is not saving power."""
    if gpu.pcie_width_max is not None and gpu.pcie_width_max < expected:
        return fault(f"PCIe of GPU and slot reaches {gpu.pcie_width_max} lanes; expected {expected}", place)
    if gpu.pcie_width is None:
        return unread(gpu, place, "pcie_width")
    if gpu.pcie_width >= expected:
        return Finding()
    for reading in ("pcie_generation", "pcie_generation_max"):
        if getattr(gpu, reading) is None:
            return unread(gpu, place, reading)
    if gpu.pcie_generation == gpu.pcie_generation_max:
        return fault(f"PCIe has {gpu.pcie_width} lanes; expected {expected}", place)
    saving = f"at generation {gpu.pcie_generation} of {gpu.pcie_generation_max}, where it may save power"
    return note(f"PCIe has {gpu.pcie_width} of {expected} lanes {saving}: see pcie_under_load", place)


def _nvlink(survey: Survey, expectation: NodeExpectation, gpu: SurveyedGpu, place: GpuPlace) -> Iterator[Finding]:
    asked_for = max(expectation.gpus_per_node or 1, expectation.gpus_installed or 1)
    if expectation.nvlinks is None:
        yield unknown(_NOTHING_EXPECTED.format("nvlinks"))
    elif gpu.nvlinks_active is None:
        if expectation.nvlinks != 0:
            yield unread(gpu, place, "nvlinks_active")
    elif gpu.nvlinks_active == expectation.nvlinks:
        return
    elif gpu.nvlinks_active == 0 and len(survey.gpus) == asked_for == 1:
        text = f"none of {expectation.nvlinks} NVLinks is up; this GPU is the only one of the node and has no peer to"
        yield note(f"{text} link to, for example in a virtual machine with one GPU", place)
    else:
        yield fault(f"{gpu.nvlinks_active} NVLinks are up; expected {expectation.nvlinks}", place)


def _unless_expected(expectation: NodeExpectation) -> Iterator[Finding]:
    if expectation.pcie_generation is None and expectation.pcie_width is None:
        yield unknown(_NOTHING_EXPECTED.format("pcie_generation or pcie_width"))


def _below(windows: TelemetryColumns, seen: FloatArray, expected: int, text: str, place: GpuPlace) -> Finding:
    """A fault if a busy GPU showed less than expected; an idle GPU decides nothing."""
    was_below = (seen < expected) & (windows.utilization >= BUSY_UTILIZATION)
    return in_most_windows(windows, was_below, seen >= expected, text, "PCIe", place)


def _range(seen: FloatArray) -> str:
    known = np.unique(seen[~np.isnan(seen)])
    return " to ".join(f"{value:.0f}" for value in dict.fromkeys(known[[0, -1]].tolist())) if len(known) else "unknown"
