"""Going through what GPUs said while they worked."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from pytest_ddpscale.checks.finding import Finding, GpuPlace, NodeEvidence, fault, summed, unknown
from pytest_ddpscale.checks.from_survey import Findings
from pytest_ddpscale.plan.node_check import NodeExpectation
from pytest_ddpscale.results.telemetry_record import Telemetry

JudgeWindows = Callable[[NodeExpectation, Sequence[Telemetry], GpuPlace], Iterable[Finding]]
# Whether something was so in a window; None if that cannot be told.
WasSo = Callable[[Telemetry], bool | None]
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
    windows = {**{host: {} for host, _ in evidence.blocks}, **evidence.windows}
    worked: dict[str, set[str]] = {host: set() for host in windows}
    for host, uuid in evidence.blocks:
        worked[host].add(uuid)
    return {host: summed(_node(evidence, host, of_host, worked[host], judge)) for host, of_host in windows.items()}


def in_most_windows(
    windows: Sequence[Telemetry], was_so: WasSo, text: str, what: str, place: GpuPlace
) -> Finding:  # fmt: skip
    """A fault if something was so in at least half of an arm's windows, whatever the unreadable ones would say.

    Arms are looked at one by one: what shows only in training must not be outvoted by probes that heat nothing.
    Not known is an arm that could not be read in so many windows that they decide, and a GPU that was hardly polled.
    `text` says what was so, and `what` would have to be read.
    """
    answers = {arm: [was_so(window) for window in of_arm] for arm, of_arm in _by_arm(windows).items()}
    half = {arm: SHARE_OF_WINDOWS * len(of_arm) for arm, of_arm in answers.items()}
    at_fault = {arm: of_arm for arm, of_arm in answers.items() if of_arm.count(True) >= half[arm]}
    untold = {arm: of_arm for arm, of_arm in answers.items() if len(of_arm) - of_arm.count(False) >= half[arm]}
    found = [answer for of_arm in (at_fault or untold).values() for answer in of_arm]
    of_arms = f" of {', '.join(at_fault or untold)}" if len(at_fault or untold) < len(answers) else ""
    if at_fault:
        return fault(f"{text} in {found.count(True)} of {len(found)} windows under load{of_arms}", place)
    if untold:
        return unknown(f"{what} cannot be read in {found.count(None)} of {len(found)} windows{of_arms}", place)
    seconds, polls = sum(map(_seconds, windows)), sum(window.polls for window in windows)
    if seconds >= RAREST_POLLS_S * max(polls, 1):
        return unknown(f"it was asked {polls} times in {seconds:.0f} s of work", place)
    return Finding()


def _by_arm(windows: Sequence[Telemetry]) -> dict[str, list[Telemetry]]:
    """Windows that count, by study and arm; what is in a single one may be a moment's excursion.

    Those of a GPU that answers, which were over before it was asked once, do not count, if there are others: a
    probe's may be shorter than the time between two polls. Where no arm has several, all are looked at together.
    """
    counting = [one for one in windows if one.polls or "device" in one.unreadable or _seconds(one) > LONGEST_UNPOLLED_S]
    arms: dict[str, list[Telemetry]] = {}
    for window in counting or windows:
        arms.setdefault(f"{window.study} {window.arm}", []).append(window)
    return {arm: several for arm, several in arms.items() if len(several) > 1} or {"all": list(counting or windows)}


def _seconds(window: Telemetry) -> float:
    return window.ended_unix_s - window.started_unix_s


def _node(
    evidence: NodeEvidence, host: str, devices: Mapping[str, Sequence[Telemetry]], worked: set[str], judge: JudgeWindows
) -> Iterator[Finding]:
    yield Finding(gpus=len(devices))
    for uuid, windows in devices.items():
        place = GpuPlace(windows[0].local_rank, uuid)
        yield from judge(evidence.expectation, windows, place)
        yield _missing(evidence, host, windows, place)
    asked = evidence.expectation.gpus_per_node or 1
    watched = len(devices.keys() & _working_gpus(evidence, host, devices, worked))
    if watched < asked:
        yield unknown(f"{watched} of {asked} GPUs were watched while they worked")


def _missing(evidence: NodeEvidence, host: str, windows: Sequence[Telemetry], place: GpuPlace) -> Finding:
    """Whether there is telemetry of nearly all blocks that a GPU took part in."""
    blocks = set(evidence.blocks.get((host, place.uuid), ()))
    watched = blocks & {(window.study, window.arm, window.round) for window in windows}
    if len(watched) >= LEAST_SHARE_WATCHED * len(blocks):
        return Finding()
    return unknown(f"it was watched in {len(watched)} of {len(blocks)} blocks", place)


def _working_gpus(evidence: NodeEvidence, host: str, devices: Collection[str], worked: set[str]) -> set[str]:
    """Those of some GPUs that the survey knows and that took part in something, as far as either is known."""
    survey = evidence.surveys.get(host)
    known = {gpu.uuid for gpu in survey.gpus} if survey is not None and not survey.problem else set(devices)
    return known & (worked if evidence.blocks else set(devices))
