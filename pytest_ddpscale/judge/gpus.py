"""Whether a node has all requested GPUs, without MIG and without foreign processes."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_ddpscale.judge.finding import Finding, GpuPlace, NodeEvidence, fault, note, unknown
from pytest_ddpscale.judge.from_survey import Findings, each_node, gpu_places, is_unsupported, no_gpu_reason, unread
from pytest_ddpscale.judge.lost_gpus import lost_at_work
from pytest_ddpscale.plan.hardware import is_named
from pytest_ddpscale.plan.node_check import NodeExpectation
from pytest_ddpscale.run.survey_record import Survey, SurveyedGpu

_GIB = 2**30


def gpus(evidence: NodeEvidence) -> Findings:
    """As many GPUs of the SKU as requested, all answering, also under load; on CPU at least one core per rank."""
    if evidence.expectation.device_type == "cpu":
        return each_node(_cores, evidence)
    found = each_node(_gpus, evidence)
    for host, finding in lost_at_work(evidence):
        found[host] = found.get(host, Finding()) + finding
    return found


def processes(_: NodeExpectation, gpu: SurveyedGpu, place: GpuPlace) -> Iterator[Finding]:
    """No foreign processes on the GPUs."""
    if gpu.processes is None:
        yield unread(gpu, place, "processes")
    for process in gpu.processes or ():
        held = "unknown memory" if process.memory_bytes is None else f"{process.memory_bytes / _GIB:.1f} GiB"
        name = process.name or "name not visible"
        yield fault(f"foreign process {process.pid} ({name}) holds {held}", place)


def mig(_: NodeExpectation, gpu: SurveyedGpu, place: GpuPlace) -> Iterator[Finding]:
    """MIG is off on all GPUs."""
    if gpu.mig_enabled:
        yield fault("MIG is enabled; expected the whole GPU", place)
    elif gpu.mig_enabled is None and not is_unsupported(gpu, "mig_enabled"):
        yield unread(gpu, place, "mig_enabled")


def _cores(expectation: NodeExpectation, survey: Survey) -> Iterator[Finding]:
    asked = expectation.gpus_per_node or 1
    if survey.cores is None:
        yield unknown("the number of CPU cores for ranks is unknown")
    elif survey.cores < asked:
        yield fault(f"{survey.cores} CPU cores for {asked} ranks")


def _gpus(expectation: NodeExpectation, survey: Survey) -> Iterator[Finding]:
    places = gpu_places(survey)
    yield Finding(gpus=len(places))
    for gpu, place in places:
        if gpu.problem:
            yield fault(f"lost: {gpu.problem}", place, stands_alone=True)
        else:
            yield from _model(expectation, gpu, place)
    asked = expectation.gpus_per_node or 1
    if len(places) < asked:
        why = "" if places else f": {no_gpu_reason(survey)}"
        yield fault(f"{len(places)} GPUs are visible; expected {asked}{why}")
    # Detects a GPU missing from the driver's list even if the remaining GPUs suffice for all ranks.
    pattern, least = expectation.name_pattern or "^.*$", expectation.gpus_installed or 0
    # A GPU withheld by a cgroup has no name.
    seen = sum(not gpu.name or is_named(gpu.name, pattern) for gpu in survey.gpus)
    if seen < least:
        yield fault(f"the driver has {seen} GPUs of this SKU; expected {least}")
    for gpu in survey.gpus:
        if gpu.problem and not gpu.is_visible:
            yield note(f"GPU {gpu.index} of the node, which ranks do not use, does not answer: {gpu.problem}")


def _model(expectation: NodeExpectation, gpu: SurveyedGpu, place: GpuPlace) -> Iterator[Finding]:
    """Compare name, PCI device id and memory, as far as the SKU sets them."""
    pattern, ids, band = expectation.name_pattern, expectation.pci_device_ids, expectation.memory_gib
    differences = []
    if pattern is not None and not gpu.name:
        yield unread(gpu, place, "name")
    elif pattern is not None and not is_named(gpu.name, pattern):
        differences.append(f"is a {gpu.name}; expected a name like {pattern}")
    if ids and not gpu.pci_device_id:
        yield unread(gpu, place, "pci_device_id")
    elif ids and gpu.pci_device_id not in ids:
        differences.append(f"has PCI device id {gpu.pci_device_id}; expected {' or '.join(ids)}")
    if band is not None and gpu.memory_bytes is None:
        yield unread(gpu, place, "memory_bytes")
    elif band is not None and gpu.memory_bytes is not None and not band[0] <= gpu.memory_bytes / _GIB <= band[1]:
        differences.append(f"has {gpu.memory_bytes / _GIB:.1f} GiB; expected {band[0]:.1f} to {band[1]:.1f}")
    if differences:
        yield fault(", ".join(differences), place)
