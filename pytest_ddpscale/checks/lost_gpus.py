"""GPUs that answered before ranks began, and not while they worked or after they had failed."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_ddpscale.checks.finding import Finding, GpuPlace, NodeEvidence, fault, note, unknown
from pytest_ddpscale.checks.from_survey import gpu_places
from pytest_ddpscale.results.survey_record import Survey, SurveyedGpu

_GONE = "the driver no longer has it"

Afterwards = tuple[str, SurveyedGpu, SurveyedGpu, GpuPlace]


def lost_at_work(evidence: NodeEvidence) -> Iterator[tuple[str, Finding]]:
    """By host a fault for each GPU that ranks used and that was lost since: once, however often it was found to be.

    As the sampler was told while they worked, and as a look at the GPUs says after they have failed.
    """
    lost: dict[tuple[str, GpuPlace], str] = {}
    told = evidence.telemetry.of(evidence.telemetry.lost.where(bool))
    for row, (why, ended_unix_s) in enumerate(zip(told.lost, told.ended_unix_s.tolist(), strict=True)):
        host, local_rank, device = told.place_of(row)
        survey = evidence.surveys.get(host)
        # One older than what is known of the node: a run that was resumed may have been mended meanwhile.
        if survey is None or ended_unix_s >= survey.unix_s:
            lost.setdefault((host, GpuPlace(local_rank, device)), f"lost while it worked: {why}")
    for host, before, after, place in gpus_afterwards(evidence):
        if after.is_lost and not before.problem:
            lost.setdefault((host, place), f"lost when ranks had failed: {after.problem}")
        elif after.problem and not before.problem:
            yield host, unknown(f"{place.label} did not answer when ranks had failed: {after.problem}")
    for (host, place), why in lost.items():
        yield host, fault(why, place, stands_alone=True)
    yield from _silent_drivers(evidence)


def gpus_afterwards(evidence: NodeEvidence) -> Iterator[Afterwards]:
    """Host, the GPU before ranks began and after they had failed, and its place, of each that ranks could use.

    One that the driver no longer lists has a problem afterwards that says so.
    """
    for after in evidence.post_mortems:
        before = evidence.surveys.get(after.host)
        if before is None or before.problem or _why_silent(after) or _are_other_gpus(before, after):
            continue
        for gpu, place in gpu_places(before):
            yield after.host, gpu, _found_again(gpu, before, after), place


def _found_again(gpu: SurveyedGpu, before: Survey, after: Survey) -> SurveyedGpu:
    """By its UUID; one that tells none any more is where it was, unless the list is shorter than it was."""
    same = next((one for one in after.gpus if one.uuid == gpu.uuid and gpu.uuid), None)
    if same is not None:
        return same
    is_as_long = len(after.gpus) == len(before.gpus) and gpu.index < len(after.gpus)
    if is_as_long and not after.gpus[gpu.index].uuid:
        return after.gpus[gpu.index]
    return SurveyedGpu(gpu.index, gpu.uuid, gpu.name, gpu.pci_bus_id, gpu.pci_device_id, problem=_GONE, is_lost=True)


def _silent_drivers(evidence: NodeEvidence) -> Iterator[tuple[str, Finding]]:
    """Of a driver that says that something is wrong nothing can be told; one that is slow had little time."""
    for after in evidence.post_mortems:
        before, why = evidence.surveys.get(after.host), _why_silent(after)
        if why:
            text = f"after ranks had failed: {why}"
            yield after.host, unknown(text) if after.driver_problem or not after.problem else note(text)
        elif before is not None and not before.problem and _are_other_gpus(before, after):
            yield after.host, note("after ranks had failed other GPUs were there than before they began")


def _why_silent(after: Survey) -> str:
    return after.problem or after.driver_problem or ("" if after.has_driver else "there is no NVIDIA driver any more")


def _are_other_gpus(before: Survey, after: Survey) -> bool:
    """Whether others are there than were surveyed, as a later job step may be given: they tell nothing of those."""
    new = {gpu.uuid for gpu in after.gpus if gpu.uuid} - {gpu.uuid for gpu in before.gpus}
    return len(new) > sum(not gpu.uuid for gpu in before.gpus)
