"""Apply a check to the telemetry of GPUs under load."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

import numpy as np

from pytest_ddpscale.judge.finding import Finding, GpuPlace, NodeEvidence, fault, summed, unknown
from pytest_ddpscale.judge.from_survey import Findings
from pytest_ddpscale.plan.node_check import NodeExpectation
from pytest_ddpscale.run.column_record import BoolArray, IntArray
from pytest_ddpscale.run.telemetry import TelemetryColumns

JudgeWindows = Callable[[NodeExpectation, TelemetryColumns, GpuPlace], Iterable[Finding]]
# A condition in fewer of an arm's windows may be a fluke.
SHARE_OF_WINDOWS = 0.5
# Share of a GPU's blocks that must have telemetry; it is written with each block, so hardly any can be missing.
LEAST_SHARE_WATCHED = 0.9
# Polls are about a second apart, so only windows shorter than this may have none …
LONGEST_UNPOLLED_S = 2.0
# … and even short windows need on average one poll in this time.
RAREST_POLLS_S = 10.0


def each_working_gpu(judge: JudgeWindows, evidence: NodeEvidence) -> Findings:
    """Judge each GPU by all its windows; too few windows, or none, of a planned rank's GPU count as missing data."""
    windows = {**{host: {} for host, _ in evidence.blocks.gpus}, **evidence.windows}
    worked: dict[str, set[str]] = {host: set() for host in windows}
    for host, uuid in evidence.blocks.gpus:
        worked[host].add(uuid)
    return {host: summed(_node(evidence, host, of_host, worked[host], judge)) for host, of_host in windows.items()}


def in_most_windows(
    windows: TelemetryColumns, was_so: BoolArray, was_not: BoolArray, text: str, what: str, place: GpuPlace
) -> Finding:  # fmt: skip
    """A fault if a condition held in at least half of an arm's windows, whatever the unreadable windows contain.

    Arms are judged one by one, so that probes, which heat nothing, cannot outvote a fault that shows only in training.
    An arm is unknown if unreadable windows could change the result, and a GPU if it was hardly polled.

    Args:
        was_so: windows where the condition held.
        was_not: windows where it did not; windows in neither are unreadable.
        text: describes the condition.
        what: the reading that is missing in unreadable windows.
    """
    counting, arms = _by_arm(windows)
    total, so, not_so = (np.bincount(arms, counting & those) for those in (counting, was_so, was_not))
    at_fault = (total > 0) & (so >= SHARE_OF_WINDOWS * total)
    untold = (total > 0) & (total - not_so >= SHARE_OF_WINDOWS * total)
    found = at_fault if at_fault.any() else untold
    names = dict.fromkeys(windows.arms[arm] for arm in windows.arm[counting & found[arms]].tolist())
    of_arms = f" of {', '.join(map(' '.join, names))}" if found.sum() < (total > 0).sum() else ""
    if at_fault.any():
        return fault(f"{text} in {so[found].sum():.0f} of {total[found].sum():.0f} windows under load{of_arms}", place)
    if untold.any():
        unread = (total - so - not_so)[found].sum()
        return unknown(f"{what} cannot be read in {unread:.0f} of {total[found].sum():.0f} windows{of_arms}", place)
    seconds, polls = windows.seconds.sum(), windows.polls.sum()
    if seconds >= RAREST_POLLS_S * max(polls, 1):
        return unknown(f"only {polls:.0f} polls in {seconds:.0f} s under load", place)
    return Finding()


def _by_arm(windows: TelemetryColumns) -> tuple[BoolArray, IntArray]:
    """Windows that count, and their arms; a single window may show a momentary excursion, so an arm needs several.

    Windows without a poll do not count if there are others, because a probe's may be shorter than the time between two
    polls; they do count if the GPU does not answer. If no arm has several windows, all windows are judged together.
    """
    is_silent = windows.unreadable.where(lambda reasons: "device" in reasons)
    counting = (windows.polls > 0) | is_silent | (windows.seconds > LONGEST_UNPOLLED_S)
    counting = counting if counting.any() else np.ones_like(counting)
    of_several = counting & (np.bincount(windows.arm, counting) > 1)[windows.arm]
    return (of_several, windows.arm) if of_several.any() else (counting, np.zeros_like(windows.arm))


def _node(
    evidence: NodeEvidence, host: str, devices: Mapping[str, TelemetryColumns], worked: set[str], judge: JudgeWindows
) -> Iterator[Finding]:
    yield Finding(gpus=len(devices))
    for uuid, windows in devices.items():
        place = GpuPlace(windows.place_of(0).local_rank, uuid)
        yield from judge(evidence.expectation, windows, place)
        yield _missing(evidence, host, place)
    asked = evidence.expectation.gpus_per_node or 1
    watched = len(devices.keys() & _working_gpus(evidence, host, devices, worked))
    if watched < asked:
        yield unknown(f"telemetry of only {watched} of {asked} GPUs")


def _missing(evidence: NodeEvidence, host: str, place: GpuPlace) -> Finding:
    """Missing data unless nearly all blocks that a GPU ran have telemetry."""
    blocks, watched = evidence.watched.get((host, place.uuid), (0, 0))
    if watched >= LEAST_SHARE_WATCHED * blocks:
        return Finding()
    return unknown(f"telemetry of only {watched} of {blocks} blocks", place)


def _working_gpus(evidence: NodeEvidence, host: str, devices: Collection[str], worked: set[str]) -> set[str]:
    """GPUs that the survey lists and that ran a block; `devices` stands in for whichever of the two is unknown."""
    survey = evidence.surveys.get(host)
    known = {gpu.uuid for gpu in survey.gpus} if survey is not None and not survey.problem else set(devices)
    return known & (worked if evidence.blocks.gpus else set(devices))
