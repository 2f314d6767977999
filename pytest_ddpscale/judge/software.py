"""Whether nodes run the same software, and whether it supports their GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial

from pytest_ddpscale.judge.finding import Finding, GpuPlace, NodeEvidence, NodeFault, fault, note, unknown
from pytest_ddpscale.judge.from_survey import Findings, each_gpu, each_node, gpus_of, looked_at, unread
from pytest_ddpscale.plan.hardware import has_kernels, parse_capability, wheel_for, why_untried
from pytest_ddpscale.plan.node_check import NodeExpectation
from pytest_ddpscale.plan.words import DeviceType
from pytest_ddpscale.run.survey_record import Survey, SurveyedGpu

_COMPARED: dict[DeviceType, tuple[str, ...]] = {
    "cpu": ("torch", "python", "pytest_ddpscale"),
    "cuda": ("driver", "cuda_driver", "cuda", "nccl", "torch", "python", "pytest_ddpscale"),
}
# A difference is only noted, because ranks do not communicate through it.
_NOTED = ("kernel",)
# Ampere; earlier GPUs emulate bf16.
_BF16_CAPABILITY = (8, 0)


def versions(evidence: NodeEvidence) -> Findings:
    """Driver, CUDA, NCCL, torch, Python and this package are the same on all nodes."""
    compared = _COMPARED[evidence.expectation.device_type]
    found = {host: looked_at(survey) or _unread_versions(survey, compared) for host, survey in evidence.surveys.items()}
    seen = {host: survey for host, survey in evidence.surveys.items() if not survey.problem}
    first_with = {version: host for host, version in reversed(_versions_of("torch", seen).items())}
    for version, host in first_with.items():
        if why := why_untried(version):
            found[host] += note(why)
    for name in (*compared, *_NOTED):
        for host, odd in _odd_ones(name, _versions_of(name, seen)).items():
            found[host] += note(odd.text) if name in _NOTED else Finding(faults=(odd,))
    return found


def bf16(evidence: NodeEvidence) -> Findings:
    """Native bf16, if a workload needs it."""
    if "bf16" not in evidence.expectation.precisions:
        return each_node(lambda *_: (), evidence)
    return each_gpu(_bf16, evidence)


def _versions_of(name: str, surveys: Mapping[str, Survey]) -> dict[str, str]:
    read = {host: survey.versions.get(name) for host, survey in surveys.items()}
    return {host: version for host, version in read.items() if version}


def _unread_versions(survey: Survey, compared: tuple[str, ...]) -> Finding:
    missing = [name for name in compared if not survey.versions.get(name)]
    reason = survey.torch_problem or survey.driver_problem
    return unknown(f"no version of {', '.join(missing)}{f' ({reason})' if reason else ''}") if missing else Finding()


def _odd_ones(name: str, found: Mapping[str, str]) -> dict[str, NodeFault]:
    """Nodes that differ from the majority's version; without a majority all nodes, none of them certain."""
    counted = Counter(found.values())
    if len(counted) < 2:
        return {}
    common, count = counted.most_common(1)[0]
    if 2 * count > len(found):
        text = f"{name} {{}}; {count} of {len(found)} nodes have {common}"
        return {host: NodeFault(text.format(version)) for host, version in found.items() if version != common}
    have = ", ".join(sorted(counted))
    return {h: NodeFault(f"{name} {v}; nodes have {have}, no majority", is_certain=False) for h, v in found.items()}


def kernels(expectation: NodeExpectation, survey: Survey) -> Iterator[Finding]:
    """The torch build has kernels for the GPUs."""
    torch, architectures = survey.versions.get("torch"), survey.arch_list
    build = f"torch {torch or 'of unknown version'}"
    if survey.torch_problem:
        yield unknown(f"torch facts cannot be read: {survey.torch_problem}")
    elif not architectures and torch is not None and survey.versions.get("cuda") is None:
        yield fault(f"{build} was built without CUDA")
    elif not architectures:
        yield unknown(f"{build} lists no architectures")
    else:
        yield from gpus_of(expectation, survey, partial(_kernels, build, architectures))


def _kernels(
    build: str, architectures: tuple[str, ...], _: NodeExpectation, gpu: SurveyedGpu, place: GpuPlace
) -> Iterator[Finding]:
    capability = parse_capability(gpu.compute_capability or "")
    if capability is None:
        yield unread(gpu, place, "compute_capability")
    elif not has_kernels(architectures, capability):
        text = f"{build} has no kernels for compute capability {gpu.compute_capability}; it has "
        yield fault(f"{text}{' '.join(architectures)}; {wheel_for(capability)}", place)


def _bf16(_: NodeExpectation, gpu: SurveyedGpu, place: GpuPlace) -> Iterator[Finding]:
    capability = parse_capability(gpu.compute_capability or "")
    if capability is None:
        yield unread(gpu, place, "compute_capability")
    elif capability < _BF16_CAPABILITY:
        yield fault(f"compute capability {gpu.compute_capability} has no native bf16; expected 8.0 or later", place)
