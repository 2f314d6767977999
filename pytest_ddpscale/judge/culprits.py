"""Culprits of failed requirements."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from pytest_ddpscale.judge.held_down import with_held_down
from pytest_ddpscale.judge.rank_averages import usual_logs
from pytest_ddpscale.judge.rounds import NO_ROUNDS, ArmRounds, all_groups, one_after_another
from pytest_ddpscale.judge.slow_links import with_slow_links
from pytest_ddpscale.judge.stragglers import (
    MINIMUM_RELATIVE_GAP,
    MINIMUM_ROUNDS,
    SlowNode,
    Straggler,
    find_stragglers,
    find_watched,
    slow_nodes,
    slower_than_their_node,
)
from pytest_ddpscale.judge.two_groups import find_slow_group, in_ranks
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.metric_catalogue import METRICS
from pytest_ddpscale.plan.study import Study
from pytest_ddpscale.plan.words import DeviceType
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.verdicts import Culprit, Verdict
from pytest_ddpscale.thresholds.cases import Case
from pytest_ddpscale.util.listing import first_few

# Ranks on one CPU share caches, power and neighbours, so they differ more; GPUs share little.
_MINIMUM_GAPS: dict[DeviceType, float] = {"cuda": MINIMUM_RELATIVE_GAP, "cpu": 0.10}
_LOST_ELSEWHERE = "the loss is in communication, or common to all ranks"
_EXPLAINS_NOTHING = "too little to explain the failure"


@dataclass(frozen=True)
class RankComparison:
    """Slow ranks of a run, computed on first access.

    Attributes:
        study: the judged study; ranks are compared in it if it has the arms for that.
        evidence: everything measured.
    """

    study: Study
    evidence: Evidence

    @cached_property
    def peers(self) -> ComparedRanks:
        """Rounds in which ranks computed alone at the same time."""
        return peers_of(self.study, self.evidence)

    @cached_property
    def stragglers(self) -> list[Straggler]:
        """Slow ranks, slowest first; if no single launch shows any, those that the rounds of all launches show."""
        found: list[Straggler] = self.evidence.once(("stragglers", self.study.id), self._find_stragglers)
        return found

    def _find_stragglers(self) -> list[Straggler]:
        rounds, device_type = self.peers.rounds, self.evidence.plan.device_type
        found = with_held_down(stragglers_of(rounds, device_type), rounds, self.evidence.telemetry)
        if found or self.evidence.plan.launches == 1:
            return found
        launches = self.peers.of_launches(self.evidence)
        if any(stragglers_of(launch, device_type) for launch in launches):
            return []
        return stragglers_of(one_after_another(launches), device_type)

    @property
    def watched(self) -> list[Straggler]:
        """Ranks that are slow by too little to be named, slowest first."""
        rounds, gap = self.peers.rounds, self.minimum_relative_gap
        key = ("watched", self.study.id)
        found: list[Straggler] = self.evidence.once(key, lambda: find_watched(rounds, self.stragglers, gap))
        return found

    @property
    def spread(self) -> float:
        """Average step time of the slowest rank over that of the fastest; 1 without rounds."""
        times_s = self.peers.rounds.mean_step_s
        usual = usual_logs(times_s) if times_s.size else np.zeros(1)
        return math.exp(float(np.nanmax(usual) - np.nanmin(usual)))

    @property
    def unknown(self) -> list[int]:
        """Numbers of ranks with too few rounds to tell whether they are slow."""
        rounds = self.peers.rounds
        numbers: list[int] = rounds.ranks.numbers[rounds.present.sum(axis=0) < MINIMUM_ROUNDS].tolist()
        return numbers

    @property
    def minimum_relative_gap(self) -> float:
        """Smallest relative gap to its peers at which a rank is named."""
        return _MINIMUM_GAPS[self.evidence.plan.device_type]

    def slow_nodes_of(self, stragglers: Sequence[Straggler]) -> list[SlowNode]:
        """Nodes of these stragglers on which all ranks are slow, slowest first."""
        if self.evidence.plan.nodes == 1:
            return slow_nodes(stragglers, self.peers.rounds)
        # All ranks of the node count, also those outside the judged arm.
        hosts = {straggler.host for straggler in stragglers}
        return [node for node in slow_nodes(self.stragglers, self.peers.rounds) if node.host in hosts]

    def slower_than(self, node: SlowNode) -> list[Straggler]:
        """Ranks of a slow node that are slower than it is, slowest first."""
        rounds, gap = self.peers.rounds, self.minimum_relative_gap
        key = ("slower than their node", self.study.id, node.host)
        found: list[Straggler] = self.evidence.once(key, lambda: slower_than_their_node(node, rounds, gap))
        return found

    def among(self, found: Sequence[Straggler], measured: ArmRounds) -> list[Straggler]:
        """Those of `found` that are ranks of the judged arm."""
        # Ranks are renumbered after a node was lost; their places stay.
        places = set(measured.ranks.places)
        return [s for s in found if (s.host, s.local_rank) in places]


def with_culprits(
    verdict: Verdict, case: Case, compared: RankComparison, find_rounds: Callable[[], ArmRounds]
) -> Verdict:
    """Add the culprits that stand out in the measurements to a verdict that did not pass.

    Args:
        verdict: on `case`.
        case: the requirement.
        compared: the slow ranks.
        find_rounds: returns complete rounds of the judged arm; with several nodes, of those that did not pass.
    """
    if verdict.outcome not in ("failed", "inconclusive") or verdict.culprits:
        return verdict
    definition, measured = METRICS[verdict.metric], find_rounds()
    if definition.reads_utilization:
        return _with_least_busy(verdict, measured) if verdict.outcome == "failed" else verdict
    if definition.slowed_by_one_rank:
        named = _with_stragglers(verdict, case, compared, measured)
        if definition.measured in ("infer", "no_sync"):  # nothing is communicated
            return named
        named = with_slow_links(named, compared.evidence, measured)
        return named if named.culprits else _with_note_on_computation(named, compared)
    return verdict


@dataclass(frozen=True)
class ComparedRanks:
    """Rounds in which ranks computed alone at the same time.

    Attributes:
        study: study of the rounds; None without rounds.
        rounds: the complete rounds.
        arm: arm of the rounds; None without rounds.
    """

    study: Study | None
    rounds: ArmRounds
    arm: Arm | None = None

    def of_launches(self, evidence: Evidence) -> list[ArmRounds]:
        """The rounds of each launch of the plan; empty without rounds."""
        if self.study is None or self.arm is None:
            return []
        studies = [replace(self.study, launch=number).id for number in range(1, evidence.plan.launches + 1)]
        return [all_groups(evidence.columns, study, self.arm, evidence.plan.layout) for study in studies]

    @property
    def workload(self) -> Workload | None:
        """The workload; None without rounds."""
        return self.study.workload if self.study else None

    def samples_per_s(self, straggler: Straggler) -> float:
        """Median throughput of a rank, in samples per second."""
        column = self.rounds.ranks.numbers == straggler.rank
        return float(np.nanmedian(self.rounds.samples_per_s[:, column]))

    def floor_samples_per_s(self, case: Case) -> float | None:
        """Floor for one rank alone, in samples per second; None unless the rounds train the workload of the case."""
        is_training = self.arm is not None and self.arm.kind == "each"
        return case.floor_samples_per_s if is_training and self.workload == case.workload else None

    def misses_floor(self, straggler: Straggler, case: Case) -> bool:
        """Whether a rank is known to be below the floor for one rank alone."""
        floor = self.floor_samples_per_s(case)
        return floor is not None and self.samples_per_s(straggler) < floor

    @property
    def hosts(self) -> int:
        """Number of hosts."""
        return len(self.rounds.ranks.by_host)


def peers_of(study: Study, evidence: Evidence) -> ComparedRanks:
    """Complete rounds in which every rank computed alone: training arms first, then this study, then most ranks.

    A slow rank is slow in any workload, so another study of the run, or forward passes if nothing is trained, will do.
    """
    arms = [(candidate, arm) for candidate in evidence.plan.studies for arm in candidate.arms if arm.compares_ranks]
    if not arms:
        return ComparedRanks(None, NO_ROUNDS)
    best, largest = max(arms, key=lambda pair: (pair[1].kind == "each", pair[0] == study, pair[1].world_size))
    return ComparedRanks(best, all_groups(evidence.columns, best.id, largest, evidence.plan.layout), largest)


def stragglers_of(rounds: ArmRounds, device_type: DeviceType) -> list[Straggler]:
    """Ranks that compute slowly, slowest first: those that stand out, or the slower of two groups."""
    gap = _MINIMUM_GAPS[device_type]
    found, group = find_stragglers(rounds, minimum_relative_gap=gap), find_slow_group(rounds, gap)
    return group if len(group) > len(found) or any(straggler.ambiguous for straggler in group) else found


def _with_stragglers(verdict: Verdict, case: Case, compared: RankComparison, measured: ArmRounds) -> Verdict:
    definition, found = METRICS[verdict.metric], compared.among(compared.stragglers, measured)
    if not found:
        is_open = definition.compares_ranks and len(compared.peers.rounds) >= MINIMUM_ROUNDS
        none = "; no rank stands out clearly enough to be named" if is_open else ""
        watched = compared.among(compared.watched, measured) if is_open else []
        notes = (*verdict.notes, watched_note(watched)) if watched else verdict.notes
        return replace(verdict, reason=f"{verdict.reason}{none}", notes=notes)
    nodes = compared.slow_nodes_of(found)
    blame = Blame(verdict, case, compared, tuple(found))
    whole = {node.host: {s.rank for s in compared.slower_than(node)} for node in nodes}
    named = [(blame.of_node(node, whole[node.host]), f"host {node.host}") for node in nodes]
    own = [s for s in found if s.host not in whole or s.rank in whole[s.host]]
    named += [(blame.of_gpu(s), f"rank {s.rank} on {s.host}") for s in own]
    named.sort(key=lambda one: not one[0].is_certain)
    culprits = tuple(culprit for culprit, _ in named)
    first, who = named[0]
    more = f" and {len(named) - 1} more" if len(named) > 1 else ""
    seen = f"{who}{more} {'are' if more else 'is'} slow even without communication ({first.evidence})"
    if others := found[0].others:
        all_in_nodes = whole.keys() == {straggler.host for straggler in found}
        slower = first_few(sorted(whole)) if all_in_nodes else in_ranks([straggler.rank for straggler in found])
        ratio = statistics.median(straggler.ratio for straggler in found)
        seen = f"two groups of ranks: {others} and {slower}, {ratio:.2f}× apart even without communication"
    if not definition.communicates and not others:
        reason = f"{verdict.reason}; slow: {who}{more}"
    elif verdict.world_size == 1 or not blame.is_explained:
        reason = f"{verdict.reason}; {seen}"
    else:
        is_sure = verdict.outcome == "failed" and first.is_certain and not found[0].ambiguous
        reason = f"{verdict.reason}; {seen}; DDP {'waits' if is_sure else 'may wait'} for {'them' if more else 'it'}"
    return replace(verdict, culprits=culprits, reason=reason)


@dataclass(frozen=True)
class Blame:
    """Decides which slow ranks are certainly to blame for a missed requirement.

    On one node all of them are, unless only two are compared and either may be the odd one. Across nodes the network
    may be the cause: there a rank is to blame if it is below the floor for one rank alone, or if the requirement would
    be met without the slow ranks and missed with this one alone. All ranks run at the pace of the slowest, so without
    it they would be faster by its ratio.

    Attributes:
        verdict: on `case`, not passed.
        case: the requirement.
        compared: the slow ranks.
        found: slow ranks of the judged arm, slowest first; at least one.
    """

    verdict: Verdict
    case: Case
    compared: RankComparison
    found: tuple[Straggler, ...]

    @cached_property
    def is_explained(self) -> bool:
        """Whether the requirement would be met if none of them were slow."""
        definition = METRICS[self.verdict.metric]
        if self.compared.evidence.plan.nodes == 1 or definition.compares_ranks:
            return True
        if definition.baseline == "no_sync":
            return False  # slow ranks are as slow in the baseline, so they do not add to the cost of communication
        return self._is_kept(self._slowest)

    def of_gpu(self, straggler: Straggler) -> Culprit:
        """The culprit for one slow rank."""
        peers = self.compared.peers
        certain = _is_certain(straggler, self.case, peers)
        evidence = _evidence_on(straggler, self.case, peers)
        if not (peers.misses_floor(straggler, self.case) or self._explains(straggler.ratio)):
            certain, evidence = False, f"{evidence}; {_EXPLAINS_NOTHING}"
        return Culprit(
            "gpu", straggler.host, straggler.local_rank, straggler.device, evidence, is_certain=certain,
            slowdown=straggler.ratio_when_slow, peers=straggler.peers,
            slow_rounds=len(straggler.slow_rounds), rounds=straggler.rounds,
        )  # fmt: skip

    def of_node(self, node: SlowNode, slower: Collection[int]) -> Culprit:
        """The culprit for a slow node; ranks in `slower`, which are slow even within it, do not count for it."""
        is_of_two = self.compared.evidence.plan.nodes > 1 and self.compared.peers.hosts <= 2
        ambiguous = is_of_two or node.ambiguous
        own = [s.ratio for s in self.found if s.host == node.host and s.rank not in slower]
        explains = self._explains(max(own, default=node.ratio))
        evidence = node.evidence
        below = any(self.compared.peers.misses_floor(straggler, self.case) for straggler in node.stragglers)
        if not below and ambiguous:
            evidence += f"; either of the two {'nodes' if is_of_two else 'groups'} may be the odd one"
        if not below and not explains:
            evidence += f"; {_EXPLAINS_NOTHING}"
        certain = below or (explains and not ambiguous)
        return Culprit("node", node.host, None, None, evidence, is_certain=certain, slowdown=node.ratio)

    @property
    def _slowest(self) -> float:
        return max(straggler.ratio for straggler in self.found)

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


def _is_certain(straggler: Straggler, case: Case, each: ComparedRanks) -> bool:
    """Whether it is certain that this rank is the slow one; of two ranks, the floor for one rank decides."""
    return not straggler.ambiguous or each.misses_floor(straggler, case)


def _evidence_on(straggler: Straggler, case: Case, each: ComparedRanks) -> str:
    """Evidence on a rank; of two ranks either may be the odd one, so it is compared with the floor for one rank."""
    if not straggler.ambiguous:
        return straggler.evidence
    speed, floor = each.samples_per_s(straggler), each.floor_samples_per_s(case)
    if floor is None:
        return f"{straggler.evidence}; no floor for one rank alone to compare with"
    side, unit = "below" if speed < floor else "above", f"{case.workload.family.unit}/s"
    return f"{straggler.evidence}; its {speed:.4g} {unit} are {side} the floor of {floor:.4g} {unit} for one alone"


def _with_note_on_computation(verdict: Verdict, compared: RankComparison) -> Verdict:
    """Add where the loss is if no rank and no link is slow: in communication, or common to all ranks."""
    definition = METRICS[verdict.metric]
    is_efficiency = definition.scaling == "weak" and definition.baseline == "alone"
    if not is_efficiency or compared.stragglers or len(compared.peers.rounds) < MINIMUM_ROUNDS:
        return verdict
    if compared.watched:
        note = watched_note(compared.watched)
    elif (spread := compared.spread) > 1 + compared.minimum_relative_gap:
        note = (
            f"without communication ranks differ by up to {spread:.2f}×, and none stands out clearly enough to be "
            "named: the loss is with the slower ranks, or in communication"
        )
    elif compared.unknown:
        note = f"too few rounds without communication to tell whether these are slow: {in_ranks(compared.unknown)}"
    elif (where := compared.peers.study) and where != compared.study:
        in_any_launch = replace(where, launch=1).id
        note = f"no rank was slow without communication in {in_any_launch}; unless that has changed, {_LOST_ELSEWHERE}"
    else:
        note = f"no rank is slow without communication: {_LOST_ELSEWHERE}"
    return replace(verdict, notes=(*verdict.notes, note))


def watched_note(watched: Sequence[Straggler]) -> str:
    """The note on ranks that are somewhat slow: worth a look, but no reason to drain."""
    few = [f"rank {one.rank} on {one.host}, {one.measured}" for one in watched]
    what = f"{'it is' if len(watched) == 1 else 'they are'} slower without communication, by too little to be named"
    return f"look at {first_few(few, separator='; ')}: {what}"


def _with_least_busy(verdict: Verdict, measured: ArmRounds) -> Verdict:
    idle = [column for column in measured.least_busy.tolist() if column >= 0]
    most_often = statistics.mode(idle)
    evidence = f"least busy of {verdict.world_size} in {idle.count(most_often)} of {len(idle)} rounds"
    _, host, local_rank, device = measured.ranks.who(most_often)
    culprit = Culprit("gpu", host, local_rank, device, evidence)
    return replace(verdict, culprits=(culprit,))
