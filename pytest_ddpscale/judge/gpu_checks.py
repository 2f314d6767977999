"""Checks of GPUs: present and alone, memory errors, throttled clocks, PCIe and NVLink; before launch and under load."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

import numpy as np

from pytest_ddpscale.judge.devices import THROTTLE_FAULTS, THROTTLED
from pytest_ddpscale.judge.findings import (
    Finding,
    Findings,
    NodeEvidence,
    each_gpu,
    each_node,
    each_working_gpu,
    fault,
    gpu_places,
    gpus_of,
    in_most_windows,
    is_unsupported,
    no_gpu_reason,
    note,
    unknown,
    unread,
)
from pytest_ddpscale.plan.hardware import is_named
from pytest_ddpscale.plan.node_check import NodeExpectation
from pytest_ddpscale.run.column_record import FloatArray
from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.survey_record import Survey, SurveyedGpu, is_older_cuda
from pytest_ddpscale.run.telemetry import TelemetryColumns

# Below this utilization a GPU, and with it its link, may be saving power.
BUSY_UTILIZATION = 0.5
_GIB = 2**30
_NOTHING_EXPECTED = "the SKU's `node:` does not set {}"


def gpus(seen: NodeEvidence) -> Findings:
    """As many GPUs of the SKU as requested, all answering, also under load; on CPU at least one core per rank."""
    found = _usable(seen)
    for host, finding in () if seen.expectation.device_type == "cpu" else _lost_at_work(seen):
        found[host] = found.get(host, Finding()) + finding
    return found


@each_node
def _usable(expectation: NodeExpectation, survey: Survey) -> Iterator[Finding]:
    asked = expectation.gpus_per_node or 1
    if expectation.device_type == "cpu":
        if survey.cores is None:
            yield unknown("the number of CPU cores for ranks is unknown")
        elif survey.cores < asked:
            yield fault(f"{survey.cores} CPU cores for {asked} ranks")
        return
    places = gpu_places(survey)
    yield Finding(gpus=len(places))
    has_too_few = sum(not gpu.is_lost for gpu, _ in places) < asked  # CUDA does not list lost ones
    for gpu, place in places:
        text, prevents = f"lost: {gpu.problem}", has_too_few and gpu.is_lost
        lost = [fault(text, stands_alone=True, prevents_ranks=prevents)] if gpu.problem else _model(expectation, gpu)
        yield from (one.at(place) for one in (*lost, *_compute_mode(gpu)))
    if len(places) < asked:
        why = "" if places else f": {no_gpu_reason(survey)}"
        yield fault(f"{len(places)} GPUs are visible; expected {asked}{why}", prevents_ranks=has_too_few)
    yield from _counted_by_cuda(expectation, survey, asked)
    # Detects a GPU missing from the driver's list even if the remaining GPUs suffice for all ranks.
    pattern, least = expectation.name_pattern or "^.*$", expectation.gpus_installed or 0
    # A GPU withheld by a cgroup has no name.
    listed = sum(not gpu.name or is_named(gpu.name, pattern) for gpu in survey.gpus)
    if listed < least:
        yield fault(f"the driver has {listed} GPUs of this SKU; expected {least}")
    for gpu in survey.gpus:
        if gpu.problem and not gpu.is_visible:
            yield note(f"GPU {gpu.index} of the node, which ranks do not use, does not answer: {gpu.problem}")


def _counted_by_cuda(expectation: NodeExpectation, survey: Survey, asked: int) -> Iterator[Finding]:
    """Whether CUDA has all GPUs that NVML lists; with a driver too old for torch `kernels` tells."""
    count, why = survey.torch_gpus, survey.cuda_problem.rpartition("set an error? ")[2]  # torch's guess at the cause
    listed = sum(gpu.is_visible and not gpu.is_lost and bool(gpu.uuid) for gpu in survey.gpus)
    if count is None:
        if why:
            yield unknown(f"CUDA did not count its GPUs: {why}")
    elif count < listed and not is_older_cuda(survey.versions.get("cuda_driver"), survey.versions.get("cuda")):
        cure = "look for Xid in dmesg"
        if "Error 802" in why and any("GB200" in gpu.name or "GB300" in gpu.name for gpu in survey.gpus):
            cure = "check nvidia-imex and the NVLink switch trays"
        elif "Error 802" in why and expectation.nvlinks:
            cure = f"start nvidia-fabricmanager {survey.versions.get('driver')}, the driver's version"
        text = f"CUDA finds {count} of the {listed} GPUs that ranks may use{why and f' ({why})'}: {cure}"
        yield fault(text, prevents_ranks=count < asked)


def _compute_mode(gpu: SurveyedGpu) -> Iterator[Finding]:
    """Whether processes may use a GPU; that of a lost one is unknown.

    In an exclusive mode one process at a time may. That is enough here, as each GPU has one rank, gangs run one after
    another, and NVML and NCCL's peer-to-peer access need no second process with a context on it. It is only noted,
    because DataParallel from one process, and users who share GPUs, need the default mode.
    """
    cure = f"nvidia-smi -i {gpu.index} -c 0"
    if gpu.compute_mode == "Prohibited":
        yield fault(f"compute mode Prohibited; {cure}", stands_alone=True, prevents_ranks=True)
    elif gpu.compute_mode in ("Exclusive_Process", "Exclusive_Thread"):
        yield note(
            f"compute mode {gpu.compute_mode}: one process at a time can use it, so `suite data-parallel` fails; {cure}"
        )


def _model(expectation: NodeExpectation, gpu: SurveyedGpu) -> Iterator[Finding]:
    """Compare name, PCI device id and memory, as far as the SKU sets them."""
    pattern, ids, band = expectation.name_pattern, expectation.pci_device_ids, expectation.memory_gib
    differences = []
    if pattern is not None and not gpu.name:
        yield unread(gpu, "name")
    elif pattern is not None and not is_named(gpu.name, pattern):
        differences.append(f"is a {gpu.name}; expected a name like {pattern}")
    if ids and not gpu.pci_device_id:
        yield unread(gpu, "pci_device_id")
    elif ids and gpu.pci_device_id not in ids:
        differences.append(f"has PCI device id {gpu.pci_device_id}; expected {' or '.join(ids)}")
    if band is not None and gpu.memory_bytes is None:
        yield unread(gpu, "memory_bytes")
    elif band is not None and gpu.memory_bytes is not None and not band[0] <= gpu.memory_bytes / _GIB <= band[1]:
        differences.append(f"has {gpu.memory_bytes / _GIB:.1f} GiB; expected {band[0]:.1f} to {band[1]:.1f}")
    if differences:
        yield fault(", ".join(differences))


@each_gpu
def processes(_: NodeExpectation, gpu: SurveyedGpu) -> Iterator[Finding]:
    """No foreign processes on the GPUs."""
    if gpu.processes is None:
        yield unread(gpu, "processes")
    for process in gpu.processes or ():
        held = "unknown memory" if process.memory_bytes is None else f"{process.memory_bytes / _GIB:.1f} GiB"
        name = process.name or "name not visible"
        yield fault(f"foreign process {process.pid} ({name}) holds {held}")


@each_gpu
def mig(_: NodeExpectation, gpu: SurveyedGpu) -> Iterator[Finding]:
    """MIG is off on all GPUs."""
    if gpu.mig_enabled:
        yield fault("MIG is enabled; expected the whole GPU")
    elif gpu.mig_enabled is None and not is_unsupported(gpu, "mig_enabled"):
        yield unread(gpu, "mig_enabled")


@each_gpu
def ecc(expectation: NodeExpectation, gpu: SurveyedGpu) -> Iterator[Finding]:
    """ECC mode is as expected, no uncorrectable errors, and no repair has failed or waits for a reset.

    A GPU either retires pages (before Ampere) or remaps rows (since); it does not support the other.
    """
    if gpu.ecc_enabled is None:
        if expectation.ecc is not None or not is_unsupported(gpu, "ecc_enabled"):
            yield unread(gpu, "ecc_enabled")
        return
    if expectation.ecc is not None and gpu.ecc_enabled != expectation.ecc:
        yield fault("ECC is off; expected on" if expectation.ecc else "ECC is on; expected off")
    if not gpu.ecc_enabled:
        return
    if gpu.ecc_uncorrected is None:
        yield unread(gpu, "ecc_uncorrected")
    elif count := gpu.ecc_uncorrected:
        yield fault(f"{count} uncorrectable memory errors since the driver was loaded", stands_alone=True)
    if gpu.ecc_corrected:
        yield note(f"{gpu.ecc_corrected} corrected memory errors since the driver was loaded")
    rows = gpu.remapped_rows
    if gpu.retired_pages_pending is None and not is_unsupported(gpu, "retired_pages_pending") and rows is None:
        yield unread(gpu, "retired_pages_pending")
    if rows is None and not is_unsupported(gpu, "remapped_rows"):
        yield unread(gpu, "remapped_rows")
    for is_so, text in (
        (gpu.retired_pages_pending, "a memory page waits for a reset of the GPU to be retired"),
        (rows and rows.failed, "a faulty memory row could not be remapped"),
        (rows and rows.pending, "a memory row waits for a reset of the GPU to be remapped"),
    ):
        if is_so:
            yield fault(text, stands_alone=True)
    if rows and rows.uncorrectable:
        yield note(f"{rows.uncorrectable} memory rows were remapped for uncorrectable errors")


def ecc_under_load(seen: NodeEvidence) -> Findings:
    """No new uncorrectable errors under load or after ranks have failed."""
    found = _new_errors(seen)
    for before, after, place in _gpus_afterwards(seen):
        new, known = _new_since(before, after), found.get(place.host, Finding())
        # An unchanged counter does not make up for missing telemetry.
        if new and all(one.gpu is None or one.gpu.identity != place.identity for one in known.faults):
            found[place.host] = known + fault(new, stands_alone=True).at(place)
    return found


@each_working_gpu
def _new_errors(expectation: NodeExpectation, windows: TelemetryColumns) -> Iterator[Finding]:
    """New errors of all windows.

    One unread window makes the result unknown: if it is the last one of a launch, no later one counts its errors.
    """
    uncorrected, corrected = int(np.nansum(windows.ecc_uncorrected)), int(np.nansum(windows.ecc_corrected))
    reasons = windows.unreadable[np.isnan(windows.ecc_uncorrected)]
    if uncorrected:
        yield fault(f"{uncorrected} new uncorrectable memory errors under load", stands_alone=True)
    if corrected:
        yield note(f"{corrected} new corrected memory errors under load")
    has_ecc = any("not supported" not in one.get("ecc_uncorrected", "").lower() for one in reasons.different)
    if len(reasons) and (has_ecc or expectation.ecc is True):
        first = next(iter(reasons))
        reason = first.get("ecc_uncorrected") or first.get("device", "the driver gives no reason")
        where = f"{len(reasons)} of {len(windows)} windows under load"
        yield unknown(f"memory error counters cannot be read in {where} ({reason})")


def _new_since(before: SurveyedGpu, after: SurveyedGpu) -> str:
    """Errors that appeared between launch and the ranks' failure, which they may have caused; empty if none."""
    was, now = before.ecc_uncorrected, after.ecc_uncorrected
    if was is not None and now is not None and now > was:
        return f"{now - was} new uncorrectable memory errors after ranks failed"
    if before.retired_pages_pending is False and after.retired_pages_pending:
        return "a memory page waits to be retired after ranks failed"
    rows_before, rows = before.remapped_rows, after.remapped_rows
    if rows_before is None or rows is None:
        return ""
    if rows.failed and not rows_before.failed:
        return "a faulty memory row could not be remapped after ranks failed"
    return "a memory row waits to be remapped after ranks failed" if rows.pending and not rows_before.pending else ""


@each_gpu
def throttling(_: NodeExpectation, gpu: SurveyedGpu) -> Iterator[Finding]:
    """Clocks are not throttled now."""
    if gpu.throttle_reasons is None:
        yield unread(gpu, "throttle_reasons")
    elif found := _faults_among(gpu.throttle_reasons):
        heat = "" if gpu.temperature_c is None else f" at {gpu.temperature_c} °C"
        yield _alone(fault(f"clocks are throttled{heat}: {', '.join(found)}"), found)


@each_working_gpu
def throttling_under_load(_: NodeExpectation, windows: TelemetryColumns) -> Iterator[Finding]:
    """Clocks are not throttled under load."""
    reasons = windows.throttle_reasons
    seen = {reason for one in reasons.different for reason in _lasting_faults(one)}
    text = f"clocks are throttled: {', '.join(sorted(seen))},"
    was_held_down = reasons.where(lambda one: bool(_lasting_faults(one))) & (windows.polls > 0)
    was_not = reasons.where(lambda one: one is not None) & (windows.polls > 0) & ~was_held_down
    yield _alone(in_most_windows(windows, was_held_down, was_not, text, "throttle_reasons"), seen)


def _faults_among(reasons: Iterable[str]) -> list[str]:
    return [reason for reason in reasons if reason in THROTTLE_FAULTS]


def _lasting_faults(reasons: Mapping[str, float] | None) -> list[str]:
    return _faults_among(reason for reason, share in (reasons or {}).items() if share >= THROTTLED)


def _alone(found: Finding, reasons: Collection[str]) -> Finding:
    """Mark the faults as needing no comparison; a power brake without heat may come from the facility.

    With the brake, NVML also sets ``hw_slowdown``.
    """
    is_braked = any("power_brake" in reason for reason in reasons)
    is_from_outside = is_braked and not any("thermal" in reason for reason in reasons)
    return found.of_faults(stands_alone=True, is_from_outside=is_from_outside)


@each_gpu
def pcie(expectation: NodeExpectation, gpu: SurveyedGpu) -> Iterator[Finding]:
    """Maximum PCIe generation and width of GPU and slot together; an idle GPU lowers the current ones to save power."""
    yield from _unless_any(expectation)
    expected, found = expectation.pcie_generation, gpu.pcie_generation_max
    if expected is not None and found is None:
        yield unread(gpu, "pcie_generation_max")
    elif expected is not None and found is not None and found < expected:
        own = "" if gpu.pcie_generation_gpu_max is None else f" (the GPU alone: {gpu.pcie_generation_gpu_max})"
        yield fault(f"PCIe of GPU and slot reaches generation {found}{own}; expected {expected}")
    if expectation.pcie_width is not None:
        yield _width(gpu, expectation.pcie_width)


def _width(gpu: SurveyedGpu, expected: int) -> Finding:
    """Too few lanes are a fault if GPU and slot cannot have more, or if the link is not saving power."""
    if gpu.pcie_width_max is not None and gpu.pcie_width_max < expected:
        return fault(f"PCIe of GPU and slot reaches {gpu.pcie_width_max} lanes; expected {expected}")
    if gpu.pcie_width is None:
        return unread(gpu, "pcie_width")
    if gpu.pcie_width >= expected:
        return Finding()
    for reading in ("pcie_generation", "pcie_generation_max"):
        if getattr(gpu, reading) is None:
            return unread(gpu, reading)
    if gpu.pcie_generation == gpu.pcie_generation_max:
        return fault(f"PCIe has {gpu.pcie_width} lanes; expected {expected}")
    saving = f"at generation {gpu.pcie_generation} of {gpu.pcie_generation_max}, where it may save power"
    return note(f"PCIe has {gpu.pcie_width} of {expected} lanes {saving}: see pcie_under_load")


@each_working_gpu
def pcie_under_load(expectation: NodeExpectation, windows: TelemetryColumns) -> Iterator[Finding]:
    """PCIe generation and width under load; too little is a fault of a busy GPU, and an idle one decides nothing."""
    yield from _unless_any(expectation)
    working = windows.of(~(windows.utilization < BUSY_UTILIZATION))  # includes unknown utilization
    if not len(working):
        yield unknown(f"utilization never reached {100 * BUSY_UTILIZATION:.0f} %")
        return
    generation, width = working.pcie_generation, working.pcie_width
    for seen, expected, text in (
        (generation, expectation.pcie_generation, f"PCIe runs at generation {_range(generation)}, expected {{}},"),
        (width, expectation.pcie_width, f"PCIe has {_range(width)} lanes, expected {{}},"),
    ):
        if expected is not None:
            was_below = (seen < expected) & (working.utilization >= BUSY_UTILIZATION)
            yield in_most_windows(working, was_below, seen >= expected, text.format(expected), "PCIe")


def _unless_any(expectation: NodeExpectation) -> Iterator[Finding]:
    if expectation.pcie_generation is None and expectation.pcie_width is None:
        yield unknown(_NOTHING_EXPECTED.format("pcie_generation or pcie_width"))


def _range(seen: FloatArray) -> str:
    known = np.unique(seen[~np.isnan(seen)])
    return " to ".join(f"{value:.0f}" for value in dict.fromkeys(known[[0, -1]].tolist())) if len(known) else "unknown"


@each_node
def nvlink(expectation: NodeExpectation, survey: Survey) -> Iterator[Finding]:
    """All NVLinks are up; a node with a single GPU needs none."""
    expected = expectation.nvlinks
    is_alone = len(survey.gpus) == max(expectation.gpus_per_node or 1, expectation.gpus_installed or 1) == 1

    def judge(gpu: SurveyedGpu) -> Iterator[Finding]:
        if expected is None:
            yield unknown(_NOTHING_EXPECTED.format("nvlinks"))
        elif gpu.nvlinks_active is None:
            if expected != 0:
                yield unread(gpu, "nvlinks_active")
        elif gpu.nvlinks_active == 0 < expected and is_alone:
            text = f"none of {expected} NVLinks is up; this GPU is the only one of the node and has no peer to"
            yield note(f"{text} link to, for example in a virtual machine with one GPU")
        elif gpu.nvlinks_active != expected:
            yield fault(f"{gpu.nvlinks_active} NVLinks are up; expected {expected}")

    return gpus_of(survey, judge)


def _lost_at_work(seen: NodeEvidence) -> Iterator[tuple[str, Finding]]:
    """Host and finding for each GPU lost since launch, once per GPU even if found several times.

    Sources are the sampler's telemetry under load, the survey taken after ranks failed, rounds of its peers in which it
    was not measured, and errors that ended its ranks.
    """
    lost: dict[object, tuple[Place, str]] = {}  # by the GPU's identity
    told = seen.telemetry.of(seen.telemetry.lost.where(bool))
    for row, (why, ended_unix_s) in enumerate(zip(told.lost, told.ended_unix_s.tolist(), strict=True)):
        place = told.place_of(row)
        survey = seen.surveys.get(place.host)
        # Ignore a loss older than the survey: the node may have been repaired before the run was resumed.
        if survey is None or ended_unix_s >= survey.unix_s:
            lost.setdefault(place.identity, (place, f"lost under load: {why}"))
    for before, after, gpu in _gpus_afterwards(seen):
        if after.is_lost and not before.problem:
            lost.setdefault(gpu.identity, (gpu, f"lost after ranks failed: {after.problem}"))
        elif after.problem and not before.problem:
            yield gpu.host, unknown(f"{gpu.label} did not answer after ranks failed: {after.problem}")
    for place, rounds in seen.lost.items():
        why = f"lost under load: not measured in {rounds} rounds in which its peers were"
        lost.setdefault(place.identity, (place, why))
    for error in seen.gpu_errors:
        if error.is_certain:
            lost.setdefault(error.place.identity, (error.place, error.evidence))
        elif error.place.identity not in lost:
            yield error.place.host, note(error.evidence).at(error.place)
    for gpu, why in lost.values():
        yield gpu.host, fault(why, stands_alone=True).at(gpu)
    for after_all in seen.post_mortems:
        why, known = _why_silent(after_all), seen.surveys.get(after_all.host)
        if why:  # only a note if the node was slow, as it had little time to answer
            text = f"after ranks failed: {why}"
            yield after_all.host, unknown(text) if after_all.driver_problem or not after_all.problem else note(text)
        elif known is not None and not known.problem and _are_other_gpus(known, after_all):
            yield after_all.host, note("after ranks failed the node showed other GPUs than before launch")


def _gpus_afterwards(seen: NodeEvidence) -> Iterator[tuple[SurveyedGpu, SurveyedGpu, Place]]:
    """GPU before launch, GPU after ranks failed, and place, of each GPU that ranks could use.

    For a GPU that the driver no longer lists, the later record has a `problem` that says so.
    """
    for after in seen.post_mortems:
        before = seen.surveys.get(after.host)
        if before is None or before.problem or _why_silent(after) or _are_other_gpus(before, after):
            continue
        for gpu, place in gpu_places(before):
            yield gpu, _found_again(gpu, before, after), place


def _found_again(gpu: SurveyedGpu, before: Survey, after: Survey) -> SurveyedGpu:
    """Find the GPU by UUID; one that no longer gives a UUID is found by index if the list is as long as before."""
    same = next((one for one in after.gpus if one.uuid == gpu.uuid and gpu.uuid), None)
    if same is not None:
        return same
    is_as_long = len(after.gpus) == len(before.gpus) and gpu.index < len(after.gpus)
    if is_as_long and not after.gpus[gpu.index].uuid:
        return after.gpus[gpu.index]
    gone = "the driver no longer lists it"
    return SurveyedGpu(gpu.index, gpu.uuid, gpu.name, gpu.pci_bus_id, gpu.pci_device_id, problem=gone, is_lost=True)


def _why_silent(after: Survey) -> str:
    gone = "" if after.has_driver else "the NVIDIA driver is no longer loaded"
    return after.problem or after.driver_problem or gone


def _are_other_gpus(before: Survey, after: Survey) -> bool:
    """Whether other GPUs are visible than were surveyed, as in a later job step; they say nothing about those."""
    new = {gpu.uuid for gpu in after.gpus if gpu.uuid} - {gpu.uuid for gpu in before.gpus}
    return len(new) > sum(not gpu.uuid for gpu in before.gpus)
