"""Verdicts on places combined to one: it passes if every planned place passes.

A place is a node, a GPU, a group of ranks or a pair of them. Each is judged at the requested confidence. A false pass
is then no likelier than with one place. With N places a false failure is up to N times as likely, so a failure counts
only if it also holds at 1 - (1 - confidence) / N (Bonferroni).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from pytest_ddpscale.judge.agreement import unless_most_fail
from pytest_ddpscale.judge.probes import JudgedPlace
from pytest_ddpscale.plan.metric_catalogue import METRICS
from pytest_ddpscale.run.column_record import IntArray
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.verdicts import PARTLY_KNOWN, Culprit, Verdict, VerdictOutcome
from pytest_ddpscale.util.digits import percent
from pytest_ddpscale.util.listing import first_few


class Clear(NamedTuple):
    """What `combined` reads of a `Verdict` that passes, without flags and culprits: all that a clear place needs."""

    value: float
    margin: float
    rounds: int
    notes: tuple[str, ...] = ()
    outcome: VerdictOutcome = "passed"


class PlaceVerdict:
    """The verdict on one place.

    Thousands of places may be clear, of which only values are needed: `judge` makes their full verdicts on first
    access.
    """

    def __init__(self, place: JudgedPlace, judge: Callable[[JudgedPlace], Verdict], clear: Clear | None = None) -> None:
        self.place, self._judge, self._clear = place, judge, clear
        self.is_clear = clear is not None  # it is known to pass, without flags and culprits

    @cached_property
    def verdict(self) -> Verdict:
        """The full verdict."""
        return self._judge(self.place)

    @cached_property
    def told(self) -> Verdict | Clear:
        """The summary if it is clear, else the verdict."""
        return self.verdict if self._clear is None else self._clear

    @cached_property
    def outcome(self) -> VerdictOutcome:
        """Its verdict's."""
        return self.told.outcome

    @property
    def value(self) -> float | None:
        """Its verdict's."""
        return self.told.value

    @property
    def is_failed(self) -> bool:
        """Whether the place fails."""
        return self.outcome == "failed"


def judge_each(
    judge: Callable[[JudgedPlace, float], Verdict],
    places: Sequence[JudgedPlace],
    planned: int,
    confidence: float,
    clear: Callable[[JudgedPlace], Clear | None],
) -> tuple[PlaceVerdict, ...]:
    """Judge each measured place; failures are judged again at the confidence that holds for all places together.

    `judge` judges one place at a confidence; `clear` has the summary of a place that needs no full verdict, else None.
    """
    of = max(planned, len(places))

    def judge_twice(place: JudgedPlace) -> Verdict:
        verdict = judge(place, confidence)
        if verdict.outcome != "failed" or of == 1:
            return verdict
        again = judge(place, 1 - (1 - confidence) / of)
        if again.outcome == "failed":
            return again
        reason = f"{verdict.reason}, but on one of {of} {place.noun} this may be chance"
        return replace(again, outcome="inconclusive", reason=reason)

    return tuple(PlaceVerdict(place, judge_twice, clear(place)) for place in places)


def combined(blank: Verdict, judged: Sequence[PlaceVerdict], planned: int, missing: str) -> Verdict:
    """Combine the verdicts on places, at least one unless something is missing, to one.

    ``failed`` if any place fails; else ``error`` if any place has that, ``not_measured`` if something is missing (and
    why), ``inconclusive`` if any place is; else ``passed``. Value and interval are those of the worst place with that
    outcome, which it names; rounds the fewest of any place.
    """
    clear = [one for one in judged if one.is_clear]
    told = [one for one in judged if not one.is_clear and one.outcome != "not_measured"]
    found = {one.outcome for one in (*told, *clear[:1])}
    outcome: VerdictOutcome = "passed" if found == {"passed"} else "inconclusive"
    if "failed" in found or "error" in found:
        outcome = "failed" if "failed" in found else "error"
    elif missing:
        outcome = "not_measured"
    undecided = [one.place for one in told if one.verdict.is_open]
    if outcome == "not_measured":
        return _with_undecided(replace(blank, reason=missing), undecided)
    deciding = [one for one in (judged if outcome == "passed" else told) if one.outcome == outcome]
    worst = min(deciding, key=lambda one: -math.inf if one.told.margin is None else one.told.margin)
    notes = _notes(told, clear, deciding)
    verdicts = [one.verdict for one in deciding if not one.is_clear]
    shared = tuple(flag for flag in worst.verdict.flags if all(flag in one.flags for one in verdicts))
    verdict = replace(
        worst.verdict,
        rounds=min(one.told.rounds for one in (*told, *clear)),
        reason=_reason(worst, deciding, planned),
        place=worst.place.name,
        notes=(*notes, missing) if missing else notes,
        culprits=tuple(dict.fromkeys(culprit for one in verdicts for culprit in one.culprits)),
        flags=shared if len(verdicts) == len(deciding) else (),
    )
    if outcome != "failed":
        return verdict
    if missing or {one.outcome for one in judged} - {"passed", "failed"}:
        verdict = replace(verdict, flags=(*verdict.flags, PARTLY_KNOWN))
    return _with_undecided(verdict, undecided)


def _reason(worst: PlaceVerdict, deciding: Sequence[PlaceVerdict], planned: int) -> str:
    if planned == 1:
        return worst.verdict.reason
    name, noun = worst.place.name, worst.place.noun
    if worst.outcome == "passed" and worst.verdict.against_slowest is not None:
        return f"{name}, the lowest of {planned} {noun}: {worst.verdict.reason}"
    if worst.outcome == "passed":
        return f"{worst.verdict.reason} on each of {planned} {noun}; {name} is nearest to it"
    others = [one.place.name for one in deciding if one is not worst]
    more = f" ({worst.outcome} too: {first_few(others)})" if others else ""
    return f"{name}, one of {planned} {noun}: {worst.verdict.reason}{more}"


def _notes(
    told: Sequence[PlaceVerdict], clear: Sequence[PlaceVerdict], deciding: Sequence[PlaceVerdict]
) -> tuple[str, ...]:
    """Notes on the places; with names, unless all deciding places share the note."""
    names: dict[str, list[str]] = {}
    for one in (*told, *(one for one in clear if one.told.notes)):
        for note in one.told.notes:
            names.setdefault(note, []).append(one.place.name)
    there = {note: set(at) for note, at in names.items()}
    return tuple(
        note if all(one.place.name in there[note] for one in deciding) else f"{first_few(at)}: {note}"
        for note, at in names.items()
    )


def _with_undecided(verdict: Verdict, undecided: Sequence[JudgedPlace]) -> Verdict:
    """Note the places that may still fail, of a verdict that can no longer pass."""
    if not undecided:
        return verdict
    names = first_few([place.name for place in undecided])
    note = f"more rounds may fail further {undecided[0].noun}: undecided on {names}"
    return replace(verdict, notes=(*verdict.notes, note), flags=(*verdict.flags, "undecided"))


def why_nodes_missing(nodes: Sequence[PlaceVerdict], evidence: Evidence) -> str:
    """Why a requirement cannot pass although no node fails; empty if all planned nodes are measured."""
    planned = evidence.plan.nodes
    measured = [node.place.host for node in nodes if node.outcome != "not_measured"]
    if len(measured) >= planned:
        return ""
    unmeasured = [node for node in nodes if node.outcome == "not_measured"]
    absent = [node.place.host for node in unmeasured]
    if len(nodes) < planned:
        absent += sorted(set(evidence.hosts) - {node.place.host for node in nodes})
    there = f" ({first_few(measured)})" if measured else ""
    text = f"measured on {len(measured)} of {planned} nodes{there}"
    if absent:
        text += f"; {first_few(absent)} {'is' if len(absent) == 1 else 'are'} missing"
    why = {node.verdict.reason for node in unmeasured}
    return f"{text}: {'; '.join(sorted(why))}" if why else text


def with_failed_nodes(verdict: Verdict, nodes: Sequence[PlaceVerdict], planned: int) -> Verdict:
    """Name the nodes that fail, with their value and the others', unless a culprit on them is already named.

    If most fail alike, none is certain (`unless_most_fail`), but of ranks that disagree: no bound is involved.
    """
    failed = [node for node in nodes if node.is_failed]
    is_told_by_ranks = METRICS[verdict.metric].compares_results
    # Hosts with a certain culprit; for ranks that disagree any culprit will do.
    named = {c.host for c in verdict.culprits if c.is_certain or is_told_by_ranks}
    culprits = [
        Culprit("node", (Place(node.place.host),), _evidence_on(node, nodes))
        for node in failed
        if node.place.host not in named
    ]
    if is_told_by_ranks:
        return replace(verdict, culprits=(*verdict.culprits, *culprits))
    return unless_most_fail(verdict, culprits, codes_of(nodes), planned, "nodes")


def codes_of(judged: Sequence[PlaceVerdict]) -> IntArray:
    """1 where a place passes, -1 where it fails, else 0, (places,)."""
    return np.array([(one.outcome == "passed") - one.is_failed for one in judged], np.int64)


def _evidence_on(node: PlaceVerdict, nodes: Sequence[PlaceVerdict]) -> str:
    def written(value: float) -> str:
        return percent(value, 1) if node.verdict.unit == "fraction" else f"{value:.4g} {node.verdict.unit}"

    others = [n.value for n in nodes if n is not node and n.value is not None]
    value = "unknown" if node.value is None else written(node.value)
    text = f"{node.verdict.metric} {value} on this node alone"
    if not others:
        return text
    whom = "the other node" if len(others) == 1 else f"the median of {len(others)} other nodes"
    return f"{text}; {whom} is {written(statistics.median(others))}"
