"""What is known of the places of a requirement, and the one verdict that is made of it.

A place is a node, a GPU, a group of ranks or a pair of them. Each is judged at the requested confidence. A false pass
is then no likelier than with one place. With N places a false failure is up to N times as likely, so a failure counts
only if it also holds at 1 - (1 - confidence) / N (Bonferroni).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pytest_ddpscale.judge.agreement import unless_most_fail
from pytest_ddpscale.judge.metrics import Groups
from pytest_ddpscale.judge.peers import medians_of_others
from pytest_ddpscale.judge.slow import SlowRanks
from pytest_ddpscale.judge.stats import ABSENT, FAILED, IMPOSSIBLE, OPEN, PASSED, Estimated
from pytest_ddpscale.judge.values import Values
from pytest_ddpscale.plan.metric_catalogue import METRICS
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.place import JudgedPlace, Place
from pytest_ddpscale.run.table import ArmRounds
from pytest_ddpscale.run.verdicts import PARTLY_KNOWN, AgainstSlowest, Culprit, Flag, Verdict, VerdictOutcome
from pytest_ddpscale.thresholds.cases import AnyCase, Case, NodeCase
from pytest_ddpscale.util.arrays import BoolArray, FloatArray
from pytest_ddpscale.util.digits import percent
from pytest_ddpscale.util.listing import first_few

OUTCOMES: dict[int, VerdictOutcome] = {
    PASSED: "passed", FAILED: "failed", OPEN: "inconclusive", IMPOSSIBLE: "error", ABSENT: "not_measured",
}  # fmt: skip
CODES = {outcome: code for code, outcome in OUTCOMES.items()}


def blank_verdict(case: AnyCase, confidence: float) -> Verdict:
    """The verdict ``not_measured`` on a requirement, with the fields of its line in thresholds.yaml."""
    requirement, source = case.requirement, case.requirement.source
    told = (
        "the site's bound" if source.is_site else "",
        "" if source.measured is None else f"measured {source.measured:g}",
        "" if source.margin_pct is None else f"margin {source.margin_pct:g} %",
        source.reference, source.reasoning, requirement.one_gpu_text,
    )  # fmt: skip
    return Verdict(
        id=case.id,
        metric=requirement.metric,
        workload=requirement.subject,
        world_size=case.world_size,
        severity=requirement.severity,
        bound={requirement.definition.bound_key: requirement.bound},
        outcome="not_measured",
        confidence=confidence,
        provisional=requirement.provisional,
        source="; ".join(part for part in told if part),
        placement=requirement.placement,
        published=source.measured,
        one_gpu=requirement.one_gpu if requirement.times_one_gpu else None,
        unit=case.unit,
    )


@dataclass(eq=False)
class Judged:
    """A requirement, what was measured for it, and the codes of its places, which doubts set to open.

    Attributes:
        blank: the verdict ``not_measured``.
        case: the requirement, on training or a probe.
        evidence: of the run.
        values: of its question or probe.
        limit: largest number of rounds; 0 if no more will come.
        due: number of rounds that were begun and timed every arm of the question.
        groups: complete rounds of the arms, by place; None for a probe.
        peers: the slow ranks; None for a probe, and if not each of several nodes is judged.
        places: those of the values.
        found: estimates, (places,).
        codes: `PASSED` … `ABSENT`, (places,).
        reasons: of places whose code does not come from the bound alone, by index; so are the next ones.
        notes: for the reader, with the places that they are about, each once.
        flags: for code.
        culprits: who is at fault for it.
        against: weak scaling against the slowest GPU.
    """

    blank: Verdict
    case: Case | NodeCase
    evidence: Evidence
    values: Values[str] | Values[JudgedPlace]
    limit: int = 0
    due: int = 0
    groups: Groups | None = None
    peers: SlowRanks | None = None

    def __post_init__(self) -> None:
        self.places = [
            JudgedPlace("node", (), one) if isinstance(one, str) else one for one in self.values.places
        ]  # fmt: skip
        self.decide(self.values.estimated(self.blank.confidence, self.limit))

    def decide(self, found: Estimated) -> None:
        """Codes of the places by their estimates and the bound alone."""
        self.found, self.reasons, self.notes = found, dict[int, str](), dict[str, dict[int, None]]()
        self.flags, self.against = dict[int, tuple[Flag, ...]](), dict[int, AgainstSlowest]()
        self.culprits = dict[int, tuple[Culprit, ...]]()
        requirement, definition = self.case.requirement, self.case.requirement.definition
        # A share may be 0, and a difference of two arms negative.
        least = 0.0 if definition.scale == "differences" and definition.baseline is None else -math.inf
        codes, self._why = found.against(requirement.bound, -1 if definition.upper_bound else 1, least)
        self.codes = np.where(found.rounds == 0, ABSENT, codes)
        for place in np.flatnonzero((~np.isnan(found.drifts) | found.are_single) & (self.codes > IMPOSSIBLE)).tolist():
            self.note(place, found.note(place))

    def rounds(self, place: str) -> ArmRounds:
        """Complete rounds of the measured arm at a place."""
        assert self.groups is not None
        return self.groups.at(self.groups.places.index(place))[-1]

    def sums(self, of_rounds: Callable[[ArmRounds], FloatArray]) -> tuple[FloatArray, FloatArray]:
        """For each place the sum over its rounds of a value of the measured arm, where known, and their number."""
        if self.groups is None:
            return np.zeros(len(self.values.places)), np.zeros(len(self.values.places))
        values = of_rounds(self.groups.arms[-1])
        total = sum(np.nan_to_num(values), np.zeros(values.shape[1]))  # one after the other, so that 9 × 0.9 is 8.1
        return total, (~np.isnan(values)).sum(axis=0, dtype=np.float64)

    def note(self, place: int, text: str) -> None:
        """Add a note on a place, unless it is empty."""
        if text:
            self.notes.setdefault(text, {})[place] = None

    def open(
        self,
        where: BoolArray,
        why: Callable[[int], str],
        flag: Flag | None = None,
        of: Sequence[int] = (PASSED, FAILED),
    ) -> list[int]:
        """Set places with these codes to open, for a reason; a flag is a note, too. Returns their indices."""
        opened: list[int] = np.flatnonzero(where & np.isin(self.codes, of)).tolist()
        for place in opened:
            self.codes[place], self.reasons[place] = OPEN, why(place)
            if flag is not None:
                self.note(place, flag)
                self.flags[place] = (flag,)
        return opened

    def verdict_on(self, place: int) -> Verdict:
        """The verdict on a place; the interval is clipped to possible values, and None if it says nothing."""
        code, found = int(self.codes[place]), self.found
        verdict = replace(
            self.blank, outcome=OUTCOMES[code], rounds=int(found.rounds[place]), reason=self.told(place),
            flags=self.flags.get(place, ()), notes=tuple(note for note, at in self.notes.items() if place in at),
            culprits=self.culprits.get(place, ()), against_slowest=self.against.get(place),
        )  # fmt: skip
        if code in (IMPOSSIBLE, ABSENT):
            return verdict
        possible = self.case.requirement.definition.range_at(self.blank.world_size, "possible")
        value, interval, _ = found.found(place, possible)
        correlation = (
            None if np.isnan(found.correlations[place]) or interval is None else found.correlations[place].item()
        )
        told = None if found.say_nothing[place] else interval
        return replace(verdict, value=value, interval=told, correlation=correlation)

    def told(self, place: int) -> str:
        """Why a place has its code."""
        return self.reasons.get(place) or self.found.told(place, str(self._why[place]))

    def combined(self, planned: int, missing: str) -> Verdict:
        """One verdict on all places, at least one of which is measured unless something is missing.

        ``failed`` if any place fails; else ``error`` if any place has that, ``not_measured`` if something is missing
        (and why), ``inconclusive`` if any place is; else ``passed``. Value and interval are those of the worst place
        with that outcome, which it names; rounds the fewest of any place.
        """
        codes, known, requirement = self.codes, self.codes[self.codes != ABSENT], self.case.requirement
        code = FAILED if FAILED in known else IMPOSSIBLE if IMPOSSIBLE in known else ABSENT if missing else known.min()
        may_fail = [
            self.places[place]
            for place in np.flatnonzero((codes == OPEN) & (code in (FAILED, ABSENT))).tolist()
            if {"host-bound", "implausible"}.isdisjoint(self.flags.get(place, ()))
        ]
        undecided, flags = list[str](), list[Flag]()
        if may_fail:
            names, flags = first_few([place.name for place in may_fail]), ["undecided"]
            undecided = [f"more rounds may fail further {may_fail[0].noun}: undecided on {names}"]
        if code == ABSENT:
            return replace(self.blank, reason=missing, notes=tuple(undecided), flags=tuple(flags))
        if code == FAILED and (missing or not np.isin(codes, (PASSED, FAILED)).all()):
            flags = [PARTLY_KNOWN, *flags]
        deciding, better = np.flatnonzero(codes == code), self.found.values - requirement.bound
        margins = np.nan_to_num(-better if requirement.definition.upper_bound else better, nan=-np.inf)
        worst, at = int(deciding[margins[deciding].argmin()]), dict.fromkeys(deciding.tolist())
        notes = [
            note if at.keys() <= those.keys() else f"{first_few([self.places[one].name for one in those])}: {note}"
            for note, those in self.notes.items()
        ]
        verdict = self.verdict_on(worst)
        shared = [flag for flag in verdict.flags if all(flag in self.flags.get(one, ()) for one in at)]
        return replace(
            verdict,
            rounds=int(self.found.rounds[codes != ABSENT].min()),
            reason=self._reason(verdict, worst, [*at], planned),
            place=self.places[worst].name,
            notes=(*notes, *([missing] if missing else []), *undecided),
            culprits=tuple(dict.fromkeys(culprit for one in at for culprit in self.culprits.get(one, ()))),
            flags=(*shared, *flags),
        )

    def _reason(self, worst: Verdict, at: int, deciding: Sequence[int], planned: int) -> str:
        if planned == 1:
            return worst.reason
        name, noun = self.places[at].name, self.places[at].noun
        if worst.passed and worst.against_slowest is not None:
            return f"{name}, the lowest of {planned} {noun}: {worst.reason}"
        if worst.passed:
            return f"{worst.reason} on each of {planned} {noun}; {name} is nearest to it"
        others = [self.places[one].name for one in deciding if one != at]
        more = f" ({worst.outcome} too: {first_few(others)})" if others else ""
        return f"{name}, one of {planned} {noun}: {worst.reason}{more}"

    def why_nodes_missing(self, why_not: Mapping[str, str], evidence: Evidence) -> str:
        """Why a requirement cannot pass although no node fails; empty if all planned nodes are measured.

        `why_not` says why a node has no values.
        """
        measured = [place.host for place, code in zip(self.places, self.codes, strict=True) if code != ABSENT]
        planned, absent = evidence.plan.nodes, sorted({*evidence.hosts, *why_not} - {*measured})
        if len(measured) >= planned:
            return ""
        there = f" ({first_few(measured)})" if measured else ""
        lost = f"; {first_few(absent)} {'is' if len(absent) == 1 else 'are'} missing" if absent else ""
        why = f": {'; '.join(sorted(set(why_not.values())))}" if why_not else ""
        return f"measured on {len(measured)} of {planned} nodes{there}{lost}{why}"

    def with_failed_nodes(self, verdict: Verdict, planned: int) -> Verdict:
        """Name the nodes that fail, with their value and the others', unless a culprit on them is already named.

        If most fail alike, none is certain (`unless_most_fail`), but of ranks that disagree: no bound is involved.
        """
        if FAILED not in self.codes:
            return verdict
        values, is_told_by_ranks = self.found.values, METRICS[verdict.metric].compares_results
        # Hosts with a certain culprit; for ranks that disagree any culprit will do.
        named = {c.host for c in verdict.culprits if c.is_certain or is_told_by_ranks}
        count, medians = int((~np.isnan(values)).sum()) - 1, medians_of_others(values[np.newaxis])[0]

        def written(value: float) -> str:
            return percent(value, 1) if verdict.unit == "fraction" else f"{value:.4g} {verdict.unit}"

        culprits, whom = [], "the other node" if count == 1 else f"the median of {count} other nodes"
        for node in np.flatnonzero(self.codes == FAILED).tolist():
            evidence = f"{verdict.metric} {written(values[node])} on this node alone"
            evidence += f"; {whom} is {written(medians[node])}" if count else ""
            if self.places[node].host not in named:
                culprits.append(Culprit("node", (Place(self.places[node].host),), evidence))
        if is_told_by_ranks:
            return replace(verdict, culprits=(*verdict.culprits, *culprits))
        return unless_most_fail(verdict, culprits, self.codes, planned, "nodes")
