"""What is known of the places of a requirement, and the one answer that is made of it.

A place is a node, a GPU, a group of ranks or a pair of them. Each is judged at the requested confidence. A false pass
is then no likelier than with one place. With N places a false failure is up to N times as likely, so a failure counts
only if it also holds at 1 - (1 - confidence) / N (Bonferroni).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pytest_ddpscale.judge.agreement import name_unless_most_fail
from pytest_ddpscale.judge.answer import OUTCOMES, Answer
from pytest_ddpscale.judge.devices import BUSY
from pytest_ddpscale.judge.metrics import Groups
from pytest_ddpscale.judge.peers import Slow, median_over_rounds, medians_of_others
from pytest_ddpscale.judge.stats import ABSENT, FAILED, IMPOSSIBLE, OPEN, PASSED, Estimated
from pytest_ddpscale.judge.values import Values
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.place import JudgedPlace, Place
from pytest_ddpscale.run.reason import Reason, because
from pytest_ddpscale.run.table import ArmRounds
from pytest_ddpscale.run.verdicts import PARTLY_KNOWN, AgainstSlowest, Culprit, Flag, Verdict
from pytest_ddpscale.thresholds.cases import Case, NodeCase
from pytest_ddpscale.util.arrays import BoolArray, FloatArray


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
    peers: Callable[[], tuple[ArmRounds, Slow]] | None = None

    def __post_init__(self) -> None:
        self.places = [JudgedPlace("node", (), at) if isinstance(at, str) else at for at in self.values.places]
        self.decide(self.values.estimated(self.blank.confidence, self.limit))

    def decide(self, found: Estimated) -> None:
        """Codes of the places by their estimates and the bound alone."""
        self.found, self.reasons, self.notes = found, dict[int, Reason](), dict[Reason, dict[int, None]]()
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
        return self.groups.at(self.groups.places.index(place))

    def sums(self, of_rounds: Callable[[ArmRounds], FloatArray]) -> tuple[FloatArray, FloatArray]:
        """For each place the sum over its rounds of a value of the measured arm, where known, and their number."""
        if self.groups is None:
            return np.zeros(len(self.values.places)), np.zeros(len(self.values.places))
        values = of_rounds(self.groups.arms[-1])
        total = sum(np.nan_to_num(values), np.zeros(values.shape[1]))  # one after the other, so that 9 × 0.9 is 8.1
        return total, (~np.isnan(values)).sum(axis=0, dtype=np.float64)

    def note(self, place: int, why: Reason | None) -> None:
        """Add a note on a place, if there is any."""
        if why is not None:
            self.notes.setdefault(why, {})[place] = None

    def open(
        self, where: BoolArray, why: Callable[[int], Reason], flag: Flag | None = None,
        of: Sequence[int] = (PASSED, FAILED),
    ) -> list[int]:  # fmt: skip
        """Set places with these codes to open, for a reason; a flag is a note, too. Returns their indices."""
        opened: list[int] = np.flatnonzero(where & np.isin(self.codes, of)).tolist()
        for place in opened:
            self.codes[place], self.reasons[place] = OPEN, why(place)
            if flag is not None:
                self.note(place, because(flag))
                self.flags[place] = (flag,)
        return opened

    def why(self, place: int) -> Reason:
        """Why a place has its code."""
        return self.reasons.get(place) or self.found.why(place, str(self._why[place]))

    def numbers(self, place: int) -> tuple[float, tuple[float, float] | None, float | None]:
        """Value, interval, clipped to possible values, and None if it says nothing, and correlation of a place."""
        definition, found = self.case.requirement.definition, self.found
        value, told = found.found(place, definition.range_at(self.blank.world_size, "possible"))
        correlation = None if told is None or np.isnan(found.correlations[place]) else float(found.correlations[place])
        return value, None if found.say_nothing[place] else told, correlation

    def answer(self, planned: int, missing: Reason | None) -> Answer:
        """One answer for all places, at least one of which is measured unless something is missing.

        ``failed`` if any place fails; else ``error`` if any place has that, ``not_measured`` if something is missing
        (and why), ``inconclusive`` if any place is; else ``passed``. Value and interval are those of the worst place
        with that outcome, which it names; rounds the fewest of any place.
        """
        codes, known, requirement = self.codes, self.codes[self.codes != ABSENT], self.case.requirement
        code = FAILED if FAILED in known else IMPOSSIBLE if IMPOSSIBLE in known else ABSENT if missing else known.min()
        answer = Answer(self.blank, OUTCOMES[int(code)])
        may_fail = [
            self.places[place]
            for place in np.flatnonzero((codes == OPEN) & (code in (FAILED, ABSENT))).tolist()
            if {"host-bound", "implausible"}.isdisjoint(self.flags.get(place, ()))
        ]
        if may_fail:
            answer.flags.append("undecided")
            answer.remarks.append(because("more-may-fail", may_fail[0].noun, tuple(place.name for place in may_fail)))
        if code == ABSENT:
            answer.reasons = [missing] if missing else []
            return answer
        if code == FAILED and (missing or not np.isin(codes, (PASSED, FAILED)).all()):
            answer.flags.insert(0, PARTLY_KNOWN)
        deciding, better = np.flatnonzero(codes == code), self.found.values - requirement.bound
        margins = np.nan_to_num(-better if requirement.definition.upper_bound else better, nan=-np.inf)
        worst, at = int(deciding[margins[deciding].argmin()]), dict.fromkeys(deciding.tolist())
        name, noun, why = self.places[worst].name, self.places[worst].noun, self.why(worst)
        if planned > 1 and code == PASSED and worst in self.against:
            why = because("lowest-of", name, planned, noun, why)
        elif planned > 1 and code == PASSED:
            why = because("kept-on-each", why, planned, noun, name)
        elif planned > 1:
            others = tuple(self.places[one].name for one in at if one != worst)
            why = because("one-of", name, planned, noun, why, answer.outcome, others)
        answer.reasons, answer.place, answer.rounds = [why], name, int(self.found.rounds[codes != ABSENT].min())
        if code != IMPOSSIBLE:
            answer.value, answer.interval, answer.correlation = self.numbers(worst)
        answer.remarks = [
            note if at.keys() <= of.keys() else because("of-places", tuple(self.places[one].name for one in of), note)
            for note, of in self.notes.items()
        ] + ([missing] if missing else []) + answer.remarks  # fmt: skip
        shared = [flag for flag in self.flags.get(worst, ()) if all(flag in self.flags.get(one, ()) for one in at)]
        answer.flags = [*dict.fromkeys([*shared, *answer.flags])]
        answer.culprits = [*dict.fromkeys(culprit for one in at for culprit in self.culprits.get(one, ()))]
        answer.against_slowest = self.against.get(worst)
        return answer

    def why_nodes_missing(self, why_not: Mapping[str, Reason]) -> Reason | None:
        """Why a requirement cannot pass although no node fails; None if all planned nodes are measured.

        `why_not` says why a node has no values.
        """
        measured = [place.host for place, code in zip(self.places, self.codes, strict=True) if code != ABSENT]
        planned, absent = self.evidence.plan.nodes, sorted({*self.evidence.hosts, *why_not} - {*measured})
        if len(measured) >= planned:
            return None
        return because("nodes-missing", tuple(measured), planned, tuple(absent), tuple(why_not.values()))

    def starved(self, place: str) -> Reason | None:
        """Why a node is named for the utilization of its GPUs, most of which miss the bound and idle; None if not."""
        requirement, is_cpu = self.case.requirement, self.evidence.plan.device_type == "cpu"
        if not requirement.definition.reads_utilization or is_cpu:
            return None
        busy = median_over_rounds(self.rounds(place).reading("utilization"))  # NaN of one that was not read
        are_most = 2 * (busy < min(requirement.bound, BUSY)).sum() > len(busy)
        return because("starved", float(np.nanmedian(busy))) if are_most else None

    def name_failed_nodes(self, answer: Answer, planned: int) -> None:
        """Name the nodes that fail, with their value and the others', unless a culprit on them is already named.

        If most fail alike, none is certain (`name_unless_most_fail`), but of ranks that disagree: no bound is involved.
        """
        if FAILED not in self.codes:
            return
        values, definition, unit = self.found.values, self.case.requirement.definition, self.blank.unit
        # Hosts with a certain culprit; for ranks that disagree any culprit will do.
        named = {one.host for one in answer.culprits if one.is_certain or definition.compares_results}
        count, medians = int((~np.isnan(values)).sum()) - 1, np.nan_to_num(medians_of_others(values[np.newaxis])[0])
        culprits = []
        for node in np.flatnonzero(self.codes == FAILED).tolist():
            numbers = float(values[node]), unit, count, float(medians[node])
            if (host := self.places[node].host) not in named:
                why = self.starved(host) or because("node-alone", definition.name, *numbers)
                culprits.append(Culprit("node", (Place(host),), why))
        if definition.compares_results:
            answer.culprits += culprits
        else:
            name_unless_most_fail(answer, culprits, self.codes, planned, "nodes")
