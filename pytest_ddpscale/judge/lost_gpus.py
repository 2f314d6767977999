"""GPUs that answered before launch but not under load or after ranks failed."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_ddpscale.judge.finding import Finding, GpuPlace, NodeEvidence, fault, note, unknown
from pytest_ddpscale.judge.from_survey import gpu_places
from pytest_ddpscale.run.survey_record import Survey, SurveyedGpu

_GONE = "the driver no longer lists it"

Afterwards = tuple[str, SurveyedGpu, SurveyedGpu, GpuPlace]


def lost_at_work(evidence: NodeEvidence) -> Iterator[tuple[str, Finding]]:
    """Host and finding for each GPU lost since launch, once per GPU even if found several times.

    Sources are the sampler's telemetry under load and the survey taken after ranks failed.
    """
    lost: dict[tuple[str, GpuPlace], str] = {}
    told = evidence.telemetry.of(evidence.telemetry.lost.where(bool))
    for row, (why, ended_unix_s) in enumerate(zip(told.lost, told.ended_unix_s.tolist(), strict=True)):
        host, local_rank, device = told.place_of(row)
        survey = evidence.surveys.get(host)
        # Ignore a loss older than the survey: the node may have been repaired before the run was resumed.
        if survey is None or ended_unix_s >= survey.unix_s:
            lost.setdefault((host, GpuPlace(local_rank, device)), f"lost under load: {why}")
    for host, before, after, place in gpus_afterwards(evidence):
        if after.is_lost and not before.problem:
            lost.setdefault((host, place), f"lost after ranks failed: {after.problem}")
        elif after.problem and not before.problem:
            yield host, unknown(f"{place.label} did not answer after ranks failed: {after.problem}")
    for (host, place), why in lost.items():
        yield host, fault(why, place, stands_alone=True)
    yield from _silent_drivers(evidence)


def gpus_afterwards(evidence: NodeEvidence) -> Iterator[Afterwards]:
    """Host, GPU before launch, GPU after ranks failed, and place, of each GPU that ranks could use.

    For a GPU that the driver no longer lists, the later record has a `problem` that says so.
    """
    for after in evidence.post_mortems:
        before = evidence.surveys.get(after.host)
        if before is None or before.problem or _why_silent(after) or _are_other_gpus(before, after):
            continue
        for gpu, place in gpu_places(before):
            yield after.host, gpu, _found_again(gpu, before, after), place


def _found_again(gpu: SurveyedGpu, before: Survey, after: Survey) -> SurveyedGpu:
    """Find the GPU by UUID; one that no longer gives a UUID is found by index if the list is as long as before."""
    same = next((one for one in after.gpus if one.uuid == gpu.uuid and gpu.uuid), None)
    if same is not None:
        return same
    is_as_long = len(after.gpus) == len(before.gpus) and gpu.index < len(after.gpus)
    if is_as_long and not after.gpus[gpu.index].uuid:
        return after.gpus[gpu.index]
    return SurveyedGpu(gpu.index, gpu.uuid, gpu.name, gpu.pci_bus_id, gpu.pci_device_id, problem=_GONE, is_lost=True)


def _silent_drivers(evidence: NodeEvidence) -> Iterator[tuple[str, Finding]]:
    """Unknown if the driver reports a problem; only a note if the node was slow, as it had little time to answer."""
    for after in evidence.post_mortems:
        before, why = evidence.surveys.get(after.host), _why_silent(after)
        if why:
            text = f"after ranks failed: {why}"
            yield after.host, unknown(text) if after.driver_problem or not after.problem else note(text)
        elif before is not None and not before.problem and _are_other_gpus(before, after):
            yield after.host, note("after ranks failed the node showed other GPUs than before launch")


def _why_silent(after: Survey) -> str:
    return (
        after.problem or after.driver_problem or ("" if after.has_driver else "the NVIDIA driver is no longer loaded")
    )


def _are_other_gpus(before: Survey, after: Survey) -> bool:
    """Whether other GPUs are visible than were surveyed, as in a later job step; they say nothing about those."""
    new = {gpu.uuid for gpu in after.gpus if gpu.uuid} - {gpu.uuid for gpu in before.gpus}
    return len(new) > sum(not gpu.uuid for gpu in before.gpus)
