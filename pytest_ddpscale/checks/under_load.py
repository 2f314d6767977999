"""Going through what GPUs said while they worked."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

import numpy as np

from pytest_ddpscale.checks.finding import Finding, GpuPlace, NodeEvidence, fault, summed, unknown
from pytest_ddpscale.checks.from_survey import Findings
from pytest_ddpscale.evidence.telemetry_columns import TelemetryColumns
from pytest_ddpscale.plan.node_check import NodeExpectation
from pytest_ddpscale.results.column_record import BoolArray, IntArray

JudgeWindows = Callable[[NodeExpectation, TelemetryColumns, GpuPlace], Iterable[Finding]]
# What is no more than a fluke lies in fewer of an arm's windows.
SHARE_OF_WINDOWS = 0.5
# Of the blocks that a GPU took part in: telemetry is written with each, so that hardly any can be missing.
LEAST_SHARE_WATCHED = 0.9
# Polls are a second apart, or a little more: only windows that are shorter than two can have none of them …
LONGEST_UNPOLLED_S = 2.0
# … and not one short window after the other.
RAREST_POLLS_S = 10.0


def each_working_gpu(judge: JudgeWindows, evidence: NodeEvidence) -> Findings:
    """Judge each GPU by all its windows; a GPU of a planned rank that has none, or too few, is not known."""
    windows = {**{host: {} for host, _ in evidence.blocks.gpus}, **evidence.windows}
    worked: dict[str, set[str]] = {host: set() for host in windows}
    for host, uuid in evidence.blocks.gpus:
        worked[host].add(uuid)
    return {host: summed(_node(evidence, host, of_host, worked[host], judge)) for host, of_host in windows.items()}


def in_most_windows(
    windows: TelemetryColumns, was_so: BoolArray, was_not: BoolArray, text: str, what: str, place: GpuPlace
) -> Finding:  # fmt: skip
    """A fault if something was so in at least half of an arm's windows, whatever the unreadable ones would say.

    Arms are looked at one by one: what shows only in training must not be outvoted by probes that heat nothing.
    Not known is an arm that could not be read in so many windows that they decide, and a GPU that was hardly polled.
    Where it neither was so nor was not, that cannot be told. `text` says what was so, and `what` would have to be read.
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
        return unknown(f"it was asked {polls:.0f} times in {seconds:.0f} s of work", place)
    return Finding()


def _by_arm(windows: TelemetryColumns) -> tuple[BoolArray, IntArray]:
    """Windows that count, and their arms; what is in a single one may be a moment's excursion.

    Those of a GPU that answers, which were over before it was asked once, do not count, if there are others: a
    probe's may be shorter than the time between two polls. Where no arm has several, all are looked at together.
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
        yield unknown(f"{watched} of {asked} GPUs were watched while they worked")


def _missing(evidence: NodeEvidence, host: str, place: GpuPlace) -> Finding:
    """Whether there is telemetry of nearly all blocks that a GPU took part in."""
    blocks, watched = evidence.watched.get((host, place.uuid), (0, 0))
    if watched >= LEAST_SHARE_WATCHED * blocks:
        return Finding()
    return unknown(f"it was watched in {watched} of {blocks} blocks", place)


def _working_gpus(evidence: NodeEvidence, host: str, devices: Collection[str], worked: set[str]) -> set[str]:
    """Those of some GPUs that the survey knows and that took part in something, as far as either is known."""
    survey = evidence.surveys.get(host)
    known = {gpu.uuid for gpu in survey.gpus} if survey is not None and not survey.problem else set(devices)
    return known & (worked if evidence.blocks.gpus else set(devices))
