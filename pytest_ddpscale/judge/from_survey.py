"""Apply a check to surveys, node by node and GPU by GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from pytest_ddpscale.judge.finding import Finding, GpuPlace, NodeEvidence, summed, unknown
from pytest_ddpscale.plan.node_check import NodeExpectation
from pytest_ddpscale.run.survey_record import Survey, SurveyedGpu

Findings = dict[str, Finding]
JudgeNode = Callable[[NodeExpectation, Survey], Iterable[Finding]]
JudgeGpu = Callable[[NodeExpectation, SurveyedGpu, GpuPlace], Iterable[Finding]]
# Readings from the same NVML call share one key in `SurveyedGpu.unreadable`.
_READ_AS = {"memory_bytes": "memory", "pci_device_id": "pci", "nvlinks_active": "nvlinks"}


def each_node(judge: JudgeNode, evidence: NodeEvidence) -> Findings:
    """Judge each node that could be surveyed."""
    return {
        host: looked_at(survey) or summed(judge(evidence.expectation, survey))
        for host, survey in evidence.surveys.items()
    }


def looked_at(survey: Survey) -> Finding | None:
    """Missing data if the survey failed, else None."""
    return unknown(f"survey failed: {survey.problem}") if survey.problem else None


def each_gpu(judge: JudgeGpu, evidence: NodeEvidence) -> Findings:
    """Judge each GPU that ranks may use; one that does not answer counts as missing data."""
    return each_node(lambda expectation, survey: gpus_of(expectation, survey, judge), evidence)


def gpu_places(survey: Survey) -> list[tuple[SurveyedGpu, GpuPlace]]:
    """The GPUs that ranks may use, by local rank.

    The order is that of CUDA_VISIBLE_DEVICES, or the driver's if the survey has no local ranks.
    """
    visible = [gpu for gpu in survey.gpus if gpu.is_visible]
    ranks = [gpu.local_rank for gpu in visible]
    if all(rank is None for rank in ranks):
        ranks = list(range(len(visible)))
    found = [(gpu, GpuPlace(rank, gpu.uuid)) for gpu, rank in zip(visible, ranks, strict=True)]
    return sorted(found, key=lambda one: len(visible) if one[1].index is None else one[1].index)


def unread(gpu: SurveyedGpu, place: GpuPlace, reading: str) -> Finding:
    """Missing data for a reading, with the driver's reason."""
    return unknown(f"{reading} cannot be read ({_reason(gpu, reading) or 'the driver gives no reason'})", place)


def is_unsupported(gpu: SurveyedGpu, reading: str) -> bool:
    """Whether a reading is missing because the hardware does not support it."""
    return "not supported" in _reason(gpu, reading).lower()


def _reason(gpu: SurveyedGpu, reading: str) -> str:
    return gpu.unreadable.get(reading) or gpu.unreadable.get(_READ_AS.get(reading, ""), "")


def gpus_of(expectation: NodeExpectation, survey: Survey, judge: JudgeGpu) -> Iterator[Finding]:
    """Judge the GPUs of one node, as `each_gpu` does."""
    places = gpu_places(survey)
    if not places:
        yield unknown(f"no GPU is visible ({no_gpu_reason(survey)})")
    for gpu, place in places:
        if gpu.problem:
            yield unknown(f"{place.label} does not answer: {gpu.problem}")
        else:
            yield Finding(gpus=1)
            yield from judge(expectation, gpu, place)


def no_gpu_reason(survey: Survey) -> str:
    """Why ranks cannot use any GPU of a node."""
    if survey.driver_problem:
        return survey.driver_problem
    if not survey.has_driver:
        return "no NVIDIA driver is loaded"
    return f"CUDA_VISIBLE_DEVICES hides all {len(survey.gpus)} GPUs" if survey.gpus else "the driver finds no GPU"
