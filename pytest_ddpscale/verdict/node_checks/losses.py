"""GPUs that answered before ranks began, and not while they worked or after they had failed."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_ddpscale.results.survey_record import Survey, SurveyedGpu
from pytest_ddpscale.results.telemetry_record import Telemetry
from pytest_ddpscale.verdict.node_checks.finding import Finding, GpuPlace, NodeEvidence, fault, unknown
from pytest_ddpscale.verdict.node_checks.surveyed import Findings, gpu_places

# NVML's words on a GPU that is gone until it, or its node, is reset. Any other error may be the driver's.
_LOST = ("NVMLError_GpuIsLost", "NVMLError_ResetRequired")

_GONE = "the driver no longer has it"

Afterwards = tuple[str, SurveyedGpu, SurveyedGpu, GpuPlace]


def lost_at_work(evidence: NodeEvidence) -> Findings:
    """A fault for each GPU that ranks used and that was lost since: once, however often it was found to be.

    As the sampler was told while they worked, and as a look at the GPUs says after they have failed.
    """
    lost: dict[tuple[str, GpuPlace], str] = {}
    for window in evidence.telemetry:
        if why := _loss_in(window):
            lost.setdefault((window.host, GpuPlace(window.local_rank, window.device)), f"lost while it worked: {why}")
    for host, before, after, place in gpus_afterwards(evidence):
        if after.problem and not before.problem:
            lost.setdefault((host, place), f"lost when ranks had failed: {after.problem}")
    found: Findings = {}
    for (host, place), why in lost.items():
        found[host] = found.get(host, Finding()) + fault(why, place, stands_alone=True)
    for host, why in _silent_drivers(evidence):
        found[host] = found.get(host, Finding()) + unknown(f"after ranks had failed: {why}")
    return found


def gpus_afterwards(evidence: NodeEvidence) -> Iterator[Afterwards]:
    """Host, the GPU before ranks began and after they had failed, and its place, of each that ranks could use.

    One that the driver no longer lists has a problem afterwards that says so.
    """
    for after in evidence.post_mortems:
        before = evidence.surveys.get(after.host)
        if before is None or before.problem or after.problem or after.driver_problem:
            continue
        for gpu, place in gpu_places(before):
            yield after.host, gpu, _found_again(gpu, before, after), place


def _found_again(gpu: SurveyedGpu, before: Survey, after: Survey) -> SurveyedGpu:
    """By its UUID; one that tells none any more is where it was, unless the list is shorter than it was."""
    same = next((one for one in after.gpus if one.uuid == gpu.uuid and gpu.uuid), None)
    if same is not None:
        return same
    if len(after.gpus) == len(before.gpus) and not after.gpus[gpu.index].uuid:
        return after.gpus[gpu.index]
    return SurveyedGpu(gpu.index, gpu.uuid, gpu.name, gpu.pci_bus_id, gpu.pci_device_id, problem=_GONE)


def _silent_drivers(evidence: NodeEvidence) -> Iterator[tuple[str, str]]:
    for after in evidence.post_mortems:
        why = after.problem or after.driver_problem
        if why:
            yield after.host, why


def _loss_in(window: Telemetry) -> str:
    """NVML's words on a GPU that was lost in a window; empty if it was not, as far as is known."""
    told = sorted(reason for reason in window.unreadable.values() if reason.startswith(_LOST))
    return told[0].partition(": ")[2] if told else ""
