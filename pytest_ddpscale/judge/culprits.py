"""Culprits of failed requirements: ranks and nodes that compute slowly."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from pytest_ddpscale.judge.links import with_slow_node_pairs
from pytest_ddpscale.judge.own_pace import as_steps, own_pace_of, own_pace_s
from pytest_ddpscale.judge.peers import MINIMUM_ROUNDS, averages_of, compare, median_over_rounds, medians_of_others
from pytest_ddpscale.judge.rounds import NO_ROUNDS, ArmRounds, merged
from pytest_ddpscale.judge.stragglers import (
    Straggler,
    find_watched,
    groups_text,
    in_ranks,
    node_culprit,
    slow_nodes,
    stragglers_of,
)
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.metric_catalogue import METRICS
from pytest_ddpscale.plan.study import Study
from pytest_ddpscale.plan.words import DeviceType
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.place import Culprit, Place
from pytest_ddpscale.run.verdicts import Verdict
from pytest_ddpscale.thresholds.cases import Case
from pytest_ddpscale.util.digits import percent
from pytest_ddpscale.util.listing import first_few

# For a thresholds file that says nothing of peers, or does not compare them: what fails names somebody all the same.
UNLESS_TOLD: Mapping[DeviceType, float] = {"cuda": 0.05, "cpu": 1.0}
_LEAST_BUSY = 0.01  # utilization that is compared as that; 0 has no ratio
_EXPLAINS_NOTHING = "too little to explain the failure"


@dataclass(frozen=True)
class RankComparison:
    """Slow ranks for a judged study, computed on first access, from rounds in which every rank has its own pace.

    Attributes:
        study: that is judged.
        evidence: of the run.
        limit: by which a rank may be slower than its peers, 0.05 for 5 %; None for `UNLESS_TOLD`.
    """

    study: Study
    evidence: Evidence
    limit: float | None

    @cached_property
    def where(self) -> tuple[Study, Arm] | None:
        """Study and arm of the rounds; None without any.

        Arms in which each computes alone: training first, then the judged study, then most ranks. A slow rank is slow
        in any workload, so another study will do, and all requirements name the same ranks. If no rank trains alone,
        forward passes of the judged study, whose ranks train together; if nothing is trained, other forward passes.
        """
        studies = self.evidence.plan.studies
        arms = [(study, arm) for study in studies for arm in study.arms if arm.compares_ranks]
        found = max(
            arms, key=lambda one: (one[1].kind == "each", one[0] == self.study, one[1].world_size), default=None
        )
        if found is not None and found[1].kind == "each":
            return found
        if (pace := own_pace_of(self.study, self.evidence)) is not None and len(pace.rounds) >= MINIMUM_ROUNDS:
            return self.study, next(arm for arm in self.study.arms if arm.name == pace.rounds.measured.arm)
        return found

    @cached_property
    def rounds(self) -> ArmRounds:
        """The complete rounds."""
        if self.where is None:
            return NO_ROUNDS
        study, arm = self.where
        rounds = merged(self.evidence.columns, study.id, arm, self.evidence.plan.layout)
        return rounds if arm.compares_ranks else as_steps(rounds, own_pace_s(rounds))

    @property
    def at_most(self) -> float:
        """The limit, or that for devices of this type."""
        return UNLESS_TOLD[self.evidence.plan.device_type] if self.limit is None else self.limit

    @cached_property
    def stragglers(self) -> list[Straggler]:
        """Slow ranks, slowest first."""
        return self.evidence.once(("stragglers", self.study.id, self.at_most), self._find_stragglers)

    def _find_stragglers(self) -> list[Straggler]:
        found = stragglers_of(self.rounds, self.at_most)
        if not found and (pace := own_pace_of(self.study, self.evidence)) is not None:
            # Noise may leave open in one study what the forward passes of another show.
            found = stragglers_of(pace.as_steps, self.at_most)
        return found

    @property
    def watched(self) -> list[Straggler]:
        """Ranks that are slow by too little to be named, slowest first."""
        find = partial(find_watched, self.rounds, self.stragglers, self.at_most)
        return self.evidence.once(("watched", self.study.id, self.at_most), find)

    def slow_nodes_of(self, stragglers: Sequence[Straggler]) -> dict[str, list[Straggler]]:
        """Nodes of these stragglers on which all ranks are slow, slowest first, with these ranks."""
        if self.evidence.plan.nodes == 1:
            return slow_nodes(stragglers, self.rounds)
        # All ranks of the node count, also those outside the judged arm.
        hosts = {straggler.host for straggler in stragglers}
        return {host: ranks for host, ranks in slow_nodes(self.stragglers, self.rounds).items() if host in hosts}

    def among(self, found: Sequence[Straggler], measured: ArmRounds) -> list[Straggler]:
        """Those of `found` that are ranks of the judged arm."""
        # Ranks are renumbered after a node was lost; their places stay.
        places = set(measured.ranks.places)
        return [one for one in found if one.culprit.place.of_rank in places]


def with_culprits(
    verdict: Verdict, case: Case, compared: RankComparison, find_rounds: Callable[[], ArmRounds]
) -> Verdict:
    """Add the culprits that stand out in the measurements to a verdict that did not pass.

    `find_rounds` returns complete rounds of the judged arm; with several nodes, of those that did not pass.
    """
    if verdict.outcome not in ("failed", "inconclusive") or verdict.culprits:
        return verdict
    definition, measured = METRICS[verdict.metric], find_rounds()
    if definition.reads_utilization:
        idle = _idle(measured, verdict.bound_value, compared.at_most) if verdict.outcome == "failed" else ()
        return replace(verdict, culprits=tuple(idle))
    if not definition.slowed_by_one_rank:
        return verdict
    named = _with_stragglers(verdict, case, compared, measured)
    if definition.measured in ("infer", "no_sync"):  # nothing is communicated
        return named
    if not compared.evidence.plan.layout.judged_by_node(case.question.arms):
        named = with_slow_node_pairs(named, compared.evidence)
    note = "" if named.culprits else _note_on_computation(named, compared)
    return replace(named, notes=(*named.notes, note)) if note else named


def _idle(measured: ArmRounds, bound: float, limit: float) -> Iterator[Culprit]:
    """Devices less busy than the bound, and clearly than their peers, who keep it: else the host may hold up all."""
    busy = measured.measured.reading("utilization")
    own, peers = (median_over_rounds(one) for one in (busy, medians_of_others(busy)))
    compared = compare(1 / np.maximum(busy, _LEAST_BUSY), limit)
    for at in np.flatnonzero((compared.low > 1 + limit) & (own < bound) & (peers >= bound)).tolist():
        evidence = f"{percent(own[at])} busy; the median of {compared.peers[at]} peers is {percent(peers[at])}"
        yield Culprit("gpu", (measured.ranks.who(at)[1],), evidence)


def _with_stragglers(verdict: Verdict, case: Case, compared: RankComparison, measured: ArmRounds) -> Verdict:
    definition, found = METRICS[verdict.metric], compared.among(compared.stragglers, measured)
    if not found:
        if not definition.reads_own_pace or len(compared.rounds) < MINIMUM_ROUNDS:
            return verdict
        watched = compared.among(compared.watched, measured)
        notes = (*verdict.notes, _watched_note(watched)) if watched else verdict.notes
        reason = f"{verdict.reason}; no rank stands out clearly enough to be named"
        return replace(verdict, reason=reason, notes=notes)
    nodes = compared.slow_nodes_of(found)
    blame = _Blame(verdict, case, compared, tuple(found))
    named = [(blame.of_node(ranks), f"host {host}") for host, ranks in nodes.items()]
    named += [(blame.of_gpu(s), f"rank {s.rank} on {s.host}") for s in found if s.host not in nodes]
    named.sort(key=lambda one: not one[0].is_certain)
    first, who = named[0]
    more = f" and {len(named) - 1} more" if len(named) > 1 else ""
    seen = f"{who}{more} {'are' if more else 'is'} slow even without communication ({first.evidence})"
    if others := found[0].others:
        seen = groups_text(found, nodes)
    if not definition.communicates and not others:
        reason = f"{verdict.reason}; slow: {who}{more}"
    elif verdict.world_size == 1 or not blame.is_explained:
        reason = f"{verdict.reason}; {seen}"
    else:
        is_sure = verdict.outcome == "failed" and first.is_certain and not found[0].ambiguous
        reason = f"{verdict.reason}; {seen}; DDP {'waits' if is_sure else 'may wait'} for {'them' if more else 'it'}"
    return replace(verdict, culprits=tuple(culprit for culprit, _ in named), reason=reason)


@dataclass(frozen=True)
class _Blame:
    """Decides which slow ranks are certainly to blame for a missed requirement.

    On one node all of them are, unless only two are compared and either may be the odd one. Across nodes the network
    may be the cause: there a rank is to blame if it is below the floor for one rank alone, or if the requirement would
    be met without the slow ranks and missed with this one alone. All ranks run at the pace of the slowest, so without
    it they would be faster by its ratio. `found` are the slow ranks of the judged arm, slowest first.
    """

    verdict: Verdict
    case: Case
    compared: RankComparison
    found: tuple[Straggler, ...]

    @cached_property
    def is_explained(self) -> bool:
        """Whether the requirement would be met if none of them were slow."""
        definition = METRICS[self.verdict.metric]
        if self.compared.evidence.plan.nodes == 1 or definition.reads_own_pace:
            return True
        if definition.baseline == "no_sync":
            return False  # slow ranks are as slow in the baseline, so they do not add to the cost of communication
        return self._is_kept(self._slowest)

    def of_gpu(self, straggler: Straggler) -> Culprit:
        """The culprit for one slow rank; of two ranks either may be the odd one, and the floor for one rank decides."""
        evidence, is_below = straggler.culprit.evidence, self._is_below_floor(straggler)
        if straggler.ambiguous and self._floor is None:
            evidence += "; no floor for one rank alone to compare with"
        elif straggler.ambiguous:
            side, unit = "below" if is_below else "above", f"{self.case.workload.family.unit}/s"
            speed = self._samples_per_s(straggler)
            evidence += f"; its {speed:.4g} {unit} are {side} the floor of {self._floor:.4g} {unit} for one alone"
        explains = is_below or self._explains(straggler.mean_ratio)
        if not explains:
            evidence += f"; {_EXPLAINS_NOTHING}"
        is_certain = explains and (is_below or not straggler.ambiguous)
        return replace(straggler.culprit, evidence=evidence, is_certain=is_certain)

    def of_node(self, ranks: Sequence[Straggler]) -> Culprit:
        """The culprit for a slow node."""
        culprit = node_culprit(ranks)
        is_of_two = self.compared.evidence.plan.nodes > 1 and len(self.compared.rounds.ranks.by_host) <= 2
        ambiguous = is_of_two or ranks[0].ambiguous
        own = [s.mean_ratio for s in self.found if s.host == culprit.host]
        explains = self._explains(max(own, default=culprit.slowdown or 1.0))
        evidence, below = culprit.evidence, any(map(self._is_below_floor, ranks))
        if not below and ambiguous:
            evidence += f"; either of the two {'nodes' if is_of_two else 'groups'} may be the odd one"
        if not below and not explains:
            evidence += f"; {_EXPLAINS_NOTHING}"
        return replace(culprit, evidence=evidence, is_certain=below or (explains and not ambiguous))

    @cached_property
    def _floor(self) -> float | None:
        """Floor in samples per second for one rank alone; None unless its workload is that of the case."""
        study, arm = self.compared.where or (None, None)
        is_same = arm is not None and study is not None and arm.kind == "each" and study.workload == self.case.workload
        return self.case.floor_samples_per_s if is_same else None

    def _is_below_floor(self, straggler: Straggler) -> bool:
        return self._floor is not None and self._samples_per_s(straggler) < self._floor

    def _samples_per_s(self, straggler: Straggler) -> float:
        rounds = self.compared.rounds
        return float(np.nanmedian(rounds.samples_per_s[:, rounds.ranks.numbers == straggler.rank]))

    @property
    def _slowest(self) -> float:
        return max(straggler.mean_ratio for straggler in self.found)

    def _explains(self, ratio: float) -> bool:
        """Whether this slowdown alone explains the miss; the largest always does if slow ranks explain it at all."""
        if self.compared.evidence.plan.nodes == 1:
            return True
        return self.is_explained and (ratio == self._slowest or not self._is_kept(self._slowest / ratio))

    def _is_kept(self, gain: float) -> bool:
        """Whether the requirement would be met if all ranks were faster by this factor."""
        value, bound = self.verdict.value, self.verdict.bound_value
        if value is None:
            return False
        return value / gain <= bound if "at_most" in self.verdict.bound else value * gain >= bound


def _note_on_computation(verdict: Verdict, compared: RankComparison) -> str:
    """How slow any rank can be if none and no link is named: a fact, because the loss may have several causes."""
    definition, rounds = METRICS[verdict.metric], compared.rounds
    is_efficiency = definition.scaling == "weak" and definition.baseline == "alone"
    if not is_efficiency or compared.stragglers or len(rounds) < MINIMUM_ROUNDS or compared.where is None:
        return ""
    if compared.watched:
        return _watched_note(compared.watched)
    if unknown := rounds.ranks.numbers[rounds.present.sum(axis=0) < MINIMUM_ROUNDS].tolist():
        return f"too few rounds without communication to tell whether these are slow: {in_ranks(unknown)}"
    logs = np.log(rounds.mean_step_s / medians_of_others(rounds.mean_step_s))
    values, reaches = averages_of(logs)
    most = 100 * math.expm1(max(0.0, float(np.nanmax(values + reaches))))
    where, _ = compared.where
    study = "" if where == compared.study else f" (in {where.id})"
    percent = f"{math.ceil(10 * most - 1e-6) / 10:.1f} %"
    return f"no rank is more than {percent} slower than its peers without communication{study}"


def _watched_note(watched: Sequence[Straggler]) -> str:
    """Ranks that are somewhat slow: worth a look, but no reason to drain."""
    few = [f"rank {one.rank} on {one.host}, {one.measured}" for one in watched]
    what = "slower without communication, not clearly enough to be named by that"
    return f"look at {first_few(few, separator='; ')}: {what}"


def rank_notes(evidence: Evidence, limit: float | None, verdicts: Iterable[Verdict] = ()) -> list[str]:
    """A line on ranks that are somewhat slow without communication, and one on ranks slow in some rounds only.

    Whether or not a requirement is missed because of them; devices that verdicts are certain of are left out of the
    first.
    """
    named = {one.place.identity for verdict in verdicts for one in verdict.culprits if one.is_certain}
    studies = [study for study in evidence.plan.studies if any(arm.compares_ranks for arm in study.arms)]
    compared = [RankComparison(study, evidence, limit) for study in studies or evidence.plan.studies]
    watched = _slowest(
        one
        for by in compared
        for one in by.watched
        if named.isdisjoint({one.culprit.place.identity, Place(one.host).identity})
    )
    changing = _slowest(one for by in compared for one in by.stragglers if not one.is_slow_throughout)
    notes = [_watched_note(watched)] if watched else []
    if changing:
        at_times = [f"rank {one.rank} on {one.host}, {one.culprit.evidence}" for one in changing]
        notes.append(f"slow at times: {first_few(at_times, separator='; ')}")
    return notes


def _slowest(found: Iterable[Straggler]) -> list[Straggler]:
    """The slowest finding of each device."""
    kept: dict[object, Straggler] = {}
    for one in found:
        place = one.culprit.identity
        kept[place] = max(kept.get(place, one), one, key=lambda straggler: straggler.ratio)
    return list(kept.values())
