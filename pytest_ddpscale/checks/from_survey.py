"""Going through what surveys say, node by node and GPU by GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from pytest_ddpscale.checks.finding import Finding, GpuPlace, NodeEvidence, summed, unknown
from pytest_ddpscale.plan.node_check import NodeExpectation
from pytest_ddpscale.results.survey_record import Survey, SurveyedGpu

Findings = dict[str, Finding]
JudgeNode = Callable[[NodeExpectation, Survey], Iterable[Finding]]
JudgeGpu = Callable[[NodeExpectation, SurveyedGpu, GpuPlace], Iterable[Finding]]
# What is asked of the driver together goes by one name in `SurveyedGpu.unreadable`.
_READ_AS = {"memory_bytes": "memory", "pci_device_id": "pci", "nvlinks_active": "nvlinks"}


def each_node(judge: JudgeNode, evidence: NodeEvidence) -> Findings:
    """Judge each node that could be looked at."""
    return {
        host: looked_at(survey) or summed(judge(evidence.expectation, survey))
        for host, survey in evidence.surveys.items()
    }


def looked_at(survey: Survey) -> Finding | None:
    """That nothing is known of a node which could not be looked at; None of any other."""
    return unknown(f"it could not be looked at: {survey.problem}") if survey.problem else None


def each_gpu(judge: JudgeGpu, evidence: NodeEvidence) -> Findings:
    """Judge each GPU that ranks may use and that answers; of one that does not, nothing is known."""
    return each_node(lambda expectation, survey: gpus_of(expectation, survey, judge), evidence)


def gpu_places(survey: Survey) -> list[tuple[SurveyedGpu, GpuPlace]]:
    """The GPUs that ranks may use, each with its local rank, in the order of these.

    The order is CUDA_VISIBLE_DEVICES's. Where a survey does not say it, it is the driver's.
    """
    visible = [gpu for gpu in survey.gpus if gpu.is_visible]
    ranks = [gpu.local_rank for gpu in visible]
    if all(rank is None for rank in ranks):
        ranks = list(range(len(visible)))
    found = [(gpu, GpuPlace(rank, gpu.uuid)) for gpu, rank in zip(visible, ranks, strict=True)]
    return sorted(found, key=lambda one: len(visible) if one[1].index is None else one[1].index)


def unread(gpu: SurveyedGpu, place: GpuPlace, reading: str) -> Finding:
    """That a reading is not known, with the driver's reason."""
    return unknown(f"{reading} cannot be read ({_reason(gpu, reading) or 'the driver does not say why'})", place)


def is_unsupported(gpu: SurveyedGpu, reading: str) -> bool:
    """Whether a reading is missing because the hardware has no such thing."""
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
    """Why ranks may use no GPU of a node."""
    if survey.driver_problem:
        return survey.driver_problem
    if not survey.has_driver:
        return "there is no NVIDIA driver"
    return f"CUDA_VISIBLE_DEVICES hides all {len(survey.gpus)} GPUs" if survey.gpus else "the driver finds no GPU"
