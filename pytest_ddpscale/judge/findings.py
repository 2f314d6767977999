"""What node checks find, and how they go through the nodes and GPUs of a run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import Any, TypeAlias

import numpy as np

from pytest_ddpscale.plan.node_check import NodeExpectation
from pytest_ddpscale.run.column_record import BoolArray
from pytest_ddpscale.run.place import Culprit, Place
from pytest_ddpscale.run.survey_record import Survey, SurveyedGpu
from pytest_ddpscale.run.telemetry import NO_TELEMETRY, TelemetryColumns
from pytest_ddpscale.run.transport_record import RankTransport

Gpu = tuple[str, str]  # host and UUID
# A condition in fewer of an arm's windows may be a fluke.
SHARE_OF_WINDOWS = 0.5
# Polls are about a second apart, so only windows shorter than this may have none …
LONGEST_UNPOLLED_S = 2.0
# … and even short windows need on average one poll in this time.
RAREST_POLLS_S = 10.0
# Readings from the same NVML call share one key in `SurveyedGpu.unreadable`.
_READ_AS = {"nvlinks_active": "nvlinks"}


@dataclass(frozen=True)
class NodeEvidence:
    """All that checks read.

    Attributes:
        surveys: by host; hosts that sent none are absent.
        worked: GPUs that ran any block; empty if unknown.
        post_mortems: surveys taken after ranks failed; empty if none did.
        hosts: that took part; those of which a check finds nothing cannot pass it.
        gpu_errors: GPUs whose errors ended ranks.
        unended: studies that did not put the planned load on the GPUs.
        lost: GPUs that were not measured while their peers were, with the number of rounds.
    """

    expectation: NodeExpectation
    surveys: Mapping[str, Survey]
    hosts_planned: int
    telemetry: TelemetryColumns = NO_TELEMETRY
    transports: Mapping[Place, RankTransport] = field(default_factory=dict)
    worked: Collection[Gpu] = ()
    post_mortems: Sequence[Survey] = ()
    hosts: Collection[str] = ()
    lost: Mapping[Place, int] = field(default_factory=dict)
    gpu_errors: Iterable[Culprit] = ()
    unended: Collection[str] = ()

    @cached_property
    def windows(self) -> Mapping[str, Mapping[str, TelemetryColumns]]:
        """Telemetry by host and GPU UUID."""
        found: dict[str, dict[str, TelemetryColumns]] = {}
        for windows in self.telemetry.by_gpu:
            place = windows.place_of(0)
            found.setdefault(place.host, {})[place.uuid] = windows
        return found


@dataclass(frozen=True)
class NodeFault:
    """A deviation from the expectation: what was found, and what was expected.

    Attributes:
        gpu: the GPU concerned; None for the whole node.
        stands_alone: whether it is a fault regardless of other nodes, such as a lost GPU. For other faults the
            expectation may be wrong if most nodes do not meet it.
        is_certain: False if several nodes differ and it is unclear which of them is wrong.
        is_from_outside: whether the cause may be shared by several nodes, such as the facility's power; no node is
            certain to be at fault if most nodes have it.
        prevents_ranks: whether no rank can run there, whoever is to blame.
    """

    text: str
    gpu: Place | None = None
    stands_alone: bool = False
    is_certain: bool = True
    is_from_outside: bool = False
    prevents_ranks: bool = False


@dataclass(frozen=True)
class Finding:
    """What a check finds on one node: faults, missing data with reasons, notes, and the number of GPUs checked."""

    faults: tuple[NodeFault, ...] = ()
    unknown: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    gpus: int = 0

    def __add__(self, other: Finding) -> Finding:
        return summed((self, other))

    def at(self, gpu: Place) -> Finding:
        """The same about one GPU of the node."""
        unknown, notes = (tuple(f"{gpu.label}: {text}" for text in texts) for texts in (self.unknown, self.notes))
        return Finding(tuple(replace(one, gpu=gpu) for one in self.faults), unknown, notes, self.gpus)

    def of_faults(self, **changes: Any) -> Finding:
        """The same with other properties of its faults."""
        return replace(self, faults=tuple(replace(one, **changes) for one in self.faults))


Findings: TypeAlias = dict[str, Finding]  # by host
Check: TypeAlias = Callable[[NodeEvidence], Findings]


def summed(findings: Iterable[Finding]) -> Finding:
    """Combine findings into one; none at all give a finding that passes."""
    many = list(findings)
    if len(many) == 1:
        return many[0]

    def of_all(name: str) -> Any:
        return tuple(chain.from_iterable(getattr(one, name) for one in many))

    return Finding(of_all("faults"), of_all("unknown"), of_all("notes"), sum(one.gpus for one in many))


def fault(text: str, *, stands_alone: bool = False, prevents_ranks: bool = False) -> Finding:
    """A finding with one fault."""
    return Finding(faults=(NodeFault(text, stands_alone=stands_alone, prevents_ranks=prevents_ranks),))


def unknown(text: str) -> Finding:
    """A finding with one item of missing data."""
    return Finding(unknown=(text,))


def note(text: str) -> Finding:
    """A finding with one note."""
    return Finding(notes=(text,))


def each_node(judge: Callable[[NodeExpectation, Survey], Iterable[Finding]]) -> Check:
    """Judge each node that could be surveyed."""
    return lambda seen: {
        host: looked_at(survey) or summed(judge(seen.expectation, survey)) for host, survey in seen.surveys.items()
    }


def looked_at(survey: Survey) -> Finding | None:
    """Missing data if the survey failed, else None."""
    return unknown(f"survey failed: {survey.problem}") if survey.problem else None


def each_gpu(judge: Callable[[NodeExpectation, SurveyedGpu], Iterable[Finding]]) -> Check:
    """Judge each GPU that ranks may use; one that does not answer counts as missing data."""
    return each_node(lambda expectation, survey: gpus_of(survey, lambda gpu: judge(expectation, gpu)))


def gpus_of(survey: Survey, judge: Callable[[SurveyedGpu], Iterable[Finding]]) -> Iterator[Finding]:
    """Judge the GPUs of one node, as `each_gpu` does."""
    places = gpu_places(survey)
    if not places:
        yield unknown(f"no GPU is visible ({no_gpu_reason(survey)})")
    for gpu, place in places:
        if gpu.problem:
            yield unknown(f"{place.label} does not answer: {gpu.problem}")
        elif found := tuple(judge(gpu)):
            yield summed(found).at(place)
    yield Finding(gpus=sum(not gpu.problem for gpu, _ in places))


def gpu_places(survey: Survey) -> list[tuple[SurveyedGpu, Place]]:
    """The GPUs that ranks may use, by local rank; then those without one, such as a lost one, by index."""
    visible = [gpu for gpu in survey.gpus if gpu.is_visible]
    found = [(gpu, gpu.on(survey.host)) for gpu in visible]
    last = len(found)
    return sorted(found, key=lambda one: (last if one[0].local_rank is None else one[0].local_rank, one[0].index))


def no_gpu_reason(survey: Survey) -> str:
    """Why ranks cannot use any GPU of a node."""
    if survey.driver_problem:
        return survey.driver_problem
    if not survey.has_driver:
        return "no NVIDIA driver is loaded"
    return f"CUDA_VISIBLE_DEVICES hides all {len(survey.gpus)} GPUs" if survey.gpus else "the driver finds no GPU"


def unread(gpu: SurveyedGpu, reading: str) -> Finding:
    """Missing data for a reading, with the driver's reason."""
    return unknown(f"{reading} cannot be read ({_reason(gpu, reading) or 'the driver gives no reason'})")


def is_unsupported(gpu: SurveyedGpu, reading: str) -> bool:
    """Whether a reading is missing because the hardware does not support it."""
    return "not supported" in _reason(gpu, reading).lower()


def _reason(gpu: SurveyedGpu, reading: str) -> str:
    return gpu.unreadable.get(reading) or gpu.unreadable.get(_READ_AS.get(reading, ""), "")


def each_working_gpu(judge: Callable[[NodeExpectation, TelemetryColumns], Iterable[Finding]]) -> Check:
    """Judge each GPU by all its windows; too few windows, or none, of a planned rank's GPU count as missing data."""

    def find(seen: NodeEvidence) -> Findings:
        windows = {**{host: {} for host, _ in seen.worked}, **seen.windows}
        worked: dict[str, set[str]] = {host: set() for host in windows}
        for host, uuid in seen.worked:
            worked[host].add(uuid)
        return {host: summed(on_node(seen, host, theirs, worked[host])) for host, theirs in windows.items()}

    def on_node(
        seen: NodeEvidence, host: str, devices: Mapping[str, TelemetryColumns], worked: set[str]
    ) -> Iterator[Finding]:
        yield Finding(gpus=len(devices))
        for windows in devices.values():
            yield summed(judge(seen.expectation, windows)).at(windows.place_of(0))
        # Only GPUs that the survey lists and that ran a block count, as far as both are known.
        asked, survey = seen.expectation.gpus_per_node or 1, seen.surveys.get(host)
        counting = devices.keys() & worked if seen.worked else devices.keys()
        if survey is not None and not survey.problem:
            counting &= {gpu.uuid for gpu in survey.gpus}
        watched = len(counting)
        if watched < asked:
            yield unknown(f"telemetry of only {watched} of {asked} GPUs")

    return find


def in_most_windows(
    windows: TelemetryColumns, was_so: BoolArray, was_not: BoolArray, text: str, what: str
) -> Finding:  # fmt: skip
    """A fault if a condition held in at least half of an arm's windows, whatever the unreadable windows contain.

    Arms are judged one by one, so that probes, which heat nothing, cannot outvote a fault that shows only in training.
    An arm is unknown if unreadable windows could change the result, and a GPU if it was hardly polled. A single window
    may show a momentary excursion, so an arm needs several; if none has, all windows are judged together.

    Args:
        windows: of one GPU. Those without a poll do not count if there are others, because a probe's may be shorter
            than the time between two polls; they do count if the GPU does not answer.
        was_so: windows where the condition held.
        was_not: windows where it did not; windows in neither are unreadable.
        text: describes the condition.
        what: the reading that is missing in unreadable windows.
    """
    is_silent = windows.unreadable.where(lambda reasons: "device" in reasons)
    counting = (windows.polls > 0) | is_silent | (windows.seconds > LONGEST_UNPOLLED_S)
    counting = counting if counting.any() else np.ones_like(counting)
    of_several = counting & (np.bincount(windows.arm, counting) > 1)[windows.arm]
    counting, arms = (of_several, windows.arm) if of_several.any() else (counting, np.zeros_like(windows.arm))
    total, so, not_so = (np.bincount(arms, counting & those) for those in (counting, was_so, was_not))
    at_fault = (total > 0) & (so >= SHARE_OF_WINDOWS * total)
    untold = (total > 0) & (total - not_so >= SHARE_OF_WINDOWS * total)
    found = at_fault if at_fault.any() else untold
    names = dict.fromkeys(windows.arms[arm] for arm in windows.arm[counting & found[arms]].tolist())
    of_arms = f" of {', '.join(map(' '.join, names))}" if found.sum() < (total > 0).sum() else ""
    if at_fault.any():
        return fault(f"{text} in {so[found].sum():.0f} of {total[found].sum():.0f} windows under load{of_arms}")
    if untold.any():
        unread = (total - so - not_so)[found].sum()
        return unknown(f"{what} cannot be read in {unread:.0f} of {total[found].sum():.0f} windows{of_arms}")
    seconds, polls = windows.seconds.sum(), windows.polls.sum()
    if seconds >= RAREST_POLLS_S * max(polls, 1):
        return unknown(f"only {polls:.0f} polls in {seconds:.0f} s under load")
    return Finding()
