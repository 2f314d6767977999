"""PCIe and NVLink: what a GPU has, and what it has while it works."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from pytest_ddpscale.checks.finding import Finding, GpuPlace, NodeEvidence, fault, gpu_label, note, unknown
from pytest_ddpscale.checks.from_survey import Findings, each_gpu, each_node, gpus_of, unread
from pytest_ddpscale.checks.under_load import each_working_gpu, in_most_windows
from pytest_ddpscale.plan.node_check import NodeExpectation
from pytest_ddpscale.results.survey_record import Survey, SurveyedGpu
from pytest_ddpscale.results.telemetry_record import Telemetry

# Below it a GPU may have been let save power, its link with it.
BUSY_UTILIZATION = 0.5
_NOTHING_EXPECTED = "the SKU's `node:` says nothing of {}"


def pcie(evidence: NodeEvidence) -> Findings:
    """Generation and width that GPU and slot can have together: an idle GPU saves power by having less of either."""
    return each_gpu(evidence, _pcie)


def pcie_under_load(evidence: NodeEvidence) -> Findings:
    """Generation and width of links while GPUs work."""
    return each_working_gpu(evidence, _under_load)


def nvlink(evidence: NodeEvidence) -> Findings:
    """All links are up, unless a node has one GPU and needs none."""
    return each_node(evidence, lambda expectation, survey: gpus_of(expectation, survey, partial(_nvlink, survey)))


def _pcie(expectation: NodeExpectation, gpu: SurveyedGpu, place: GpuPlace) -> Finding:
    generation, width = expectation.pcie_generation, expectation.pcie_width
    found = _unless_expected(expectation)
    if generation is not None and gpu.pcie_generation_max is None:
        found += unread(gpu, place, "pcie_generation_max")
    elif generation is not None and gpu.pcie_generation_max is not None and gpu.pcie_generation_max < generation:
        own = "" if gpu.pcie_generation_gpu_max is None else f" (the GPU alone: {gpu.pcie_generation_gpu_max})"
        text = f"PCIe of GPU and slot reaches generation {gpu.pcie_generation_max}{own}; expected {generation}"
        found += fault(text, place)
    return found if width is None else found + _width(gpu, place, width)


def _width(gpu: SurveyedGpu, place: GpuPlace, expected: int) -> Finding:
    """Too few lanes are certain if there can be no more, or if the link does not save power."""
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
    return note(f"{gpu_label(place)}: PCIe has {gpu.pcie_width} of {expected} lanes {saving}: see pcie_under_load")


def _nvlink(survey: Survey, expectation: NodeExpectation, gpu: SurveyedGpu, place: GpuPlace) -> Finding:
    if expectation.nvlinks is None:
        return unknown(_NOTHING_EXPECTED.format("nvlinks"))
    if gpu.nvlinks_active is None:
        return Finding() if expectation.nvlinks == 0 else unread(gpu, place, "nvlinks_active")
    if gpu.nvlinks_active == expectation.nvlinks:
        return Finding()
    if gpu.nvlinks_active == 0 and len(survey.gpus) == 1 and _asked_for(expectation) == 1:
        text = f"none of {expectation.nvlinks} NVLinks is up, and this GPU is the only one here: there is nothing to"
        return note(f"{gpu_label(place)}: {text} link it with, as in a virtual machine that is given one GPU")
    return fault(f"{gpu.nvlinks_active} NVLinks are up; expected {expectation.nvlinks}", place)


def _asked_for(expectation: NodeExpectation) -> int:
    return max(expectation.gpus_per_node or 1, expectation.gpus_installed or 1)


def _under_load(expectation: NodeExpectation, windows: Sequence[Telemetry], place: GpuPlace) -> Finding:
    found = _unless_expected(expectation)
    if not any(window.utilization is None or _is_busy(window) for window in windows):
        return found + unknown(f"{gpu_label(place)}: it was never busy")
    working = [window for window in windows if window.utilization is None or _is_busy(window)]
    generation, width = expectation.pcie_generation, expectation.pcie_width
    if generation is not None:
        text = f"PCIe runs at generation {_range(window.pcie_generation for window in working)}, expected {generation},"
        found += in_most_windows(working, lambda w: _below(w, w.pcie_generation, generation), text, "PCIe", place)
    if width is not None:
        text = f"PCIe has {_range(window.pcie_width for window in working)} lanes, expected {width},"
        found += in_most_windows(working, lambda w: _below(w, w.pcie_width, width), text, "PCIe", place)
    return found


def _unless_expected(expectation: NodeExpectation) -> Finding:
    is_expected = expectation.pcie_generation is not None or expectation.pcie_width is not None
    return Finding() if is_expected else unknown(_NOTHING_EXPECTED.format("pcie_generation or pcie_width"))


def _is_busy(window: Telemetry) -> bool:
    return window.utilization is not None and window.utilization.mean >= BUSY_UTILIZATION


def _below(window: Telemetry, seen: int | None, expected: int) -> bool | None:
    """Whether less was seen than expected; not to be told of a GPU that may have been idle."""
    if seen is None:
        return None
    if seen >= expected:
        return False
    return True if _is_busy(window) else None


def _range(seen: Iterable[int | None]) -> str:
    known = sorted({value for value in seen if value is not None})
    return " to ".join(map(str, dict.fromkeys((known[0], known[-1])))) if known else "unknown"
