"""Who is slow: each rank's own pace, the ranks and nodes that are slow by it, and whom a missed requirement names.

A rank's own pace is the time in which it waits for nobody. In the arm ``each`` every rank trains alone, all at once; it
takes minutes and is timed in one study only. Elsewhere it is that of forward passes, which are timed in every training
arm that is not compiled: under DDP the steps of all ranks take as long as the slowest rank's.

A slow rank is slow in any workload, so all requirements name the same ranks: those that are slow by `peers.find_slow`
and train in the arm that failed. A culprit is certain unless

- it is one of few, of two groups or of two nodes, of which either may be the odd one,
- the metric's baseline is ``no_sync``, in which slow ranks are as slow, or
- several nodes take part and the bound would still be missed without its slowness, or be met with it alone: all run at
  the pace of the slowest, so without it they would be faster by its ratio. Then links are looked for, too.

A rank within the limit that stands out is worth a remark: its average is above 0.6 of the limit, and certainly above 1.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from pytest_ddpscale.judge.answer import Answer
from pytest_ddpscale.judge.links import name_slow_node_pairs
from pytest_ddpscale.judge.metrics import merged
from pytest_ddpscale.judge.peers import (
    MINIMUM_ROUNDS,
    WATCHED_SHARE,
    Slow,
    compare,
    find_slow,
    median_over_rounds,
    medians_of_others,
    of_enough_rounds,
)
from pytest_ddpscale.plan.arm import USUAL, Arm
from pytest_ddpscale.plan.planner import Question
from pytest_ddpscale.plan.study import Study
from pytest_ddpscale.plan.words import DeviceType
from pytest_ddpscale.run.block import FORWARD_S
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.place import Culprit, Place
from pytest_ddpscale.run.reason import Reason, because
from pytest_ddpscale.run.table import NO_ROUNDS, ArmRounds, RankColumns
from pytest_ddpscale.run.verdicts import Verdict
from pytest_ddpscale.thresholds.cases import Case
from pytest_ddpscale.util.arrays import BoolArray, FloatArray, IntArray
from pytest_ddpscale.util.digits import percent
from pytest_ddpscale.util.listing import first_few

# For a thresholds file that says nothing of peers, or does not compare them: what fails names somebody all the same.
UNLESS_TOLD: Mapping[DeviceType, float] = {"cuda": 0.05, "cpu": 1.0}
_LEAST_BUSY = 0.01  # utilization that is compared as that; 0 has no ratio
_MOST_SHOWN = 8  # hosts or ranks of a group that are listed


@dataclass(frozen=True, eq=False)
class OwnPace:
    """Own paces of the ranks of an arm.

    Attributes:
        arm: in which they were timed.
        ranks: of each column.
        numbers: of the rounds, ascending, (rounds,).
        times_s: seconds of a step, or of its forward pass; NaN if unknown or absent, (rounds, ranks).
        are_unread: whether that of a rank is unknown in a round in which it trained, (ranks,).
    """

    arm: Arm
    ranks: RankColumns
    numbers: IntArray
    times_s: FloatArray
    are_unread: BoolArray

    def columns(self, places: Iterable[tuple[str, int]]) -> IntArray:
        """Column of each rank, given by host and local rank; -1 without any."""
        columns = {place: number for number, place in enumerate(self.ranks.places)}
        return np.array([columns.get(place, -1) for place in places], np.int64)

    def on_hosts(self, hosts: Iterable[str]) -> OwnPace:
        """Those of the ranks on these hosts."""
        here = np.isin(self.ranks.hosts, list(hosts))
        return OwnPace(self.arm, self.ranks.of(here), self.numbers, self.times_s[:, here], self.are_unread[here])

    @property
    def rounds(self) -> int:
        """Number of rounds in which any is known."""
        return int((~np.isnan(self.times_s)).any(axis=1).sum())

    def of_whole_rounds(self) -> OwnPace:
        """The rounds in which all ranks are known."""
        whole = ~np.isnan(self.times_s).any(axis=1)
        return replace(self, numbers=self.numbers[whole], times_s=self.times_s[whole])

    @property
    def of_nodes_s(self) -> FloatArray:
        """The median of each node's ranks, in the order of `by_host`, NaN where a node was absent, (rounds, nodes)."""
        by_host = self.ranks.by_host.values()
        return np.stack([median_over_rounds(self.times_s[:, at].T) for at in by_host], axis=1)


NO_PACE = OwnPace(Arm("each", 2, 1), NO_ROUNDS.ranks, np.zeros(0, np.int64), np.zeros((0, 0)), np.zeros(0, np.bool_))


def own_pace_s(rounds: ArmRounds) -> FloatArray:
    """Seconds of each rank's forward pass, or of its step if ranks do not wait for each other, (rounds, ranks).

    NaN if it is unknown or the rank was absent; a pass takes time, so 0 means unknown.
    """
    if rounds.arm.startswith(("each@", "infer@")):
        return rounds.mean_step_s
    forward_s = rounds.reading(FORWARD_S)
    known = rounds.present & (forward_s > 0)
    return np.where(known, forward_s, np.nan) / np.where(known, rounds.count, 1)


def pace_in(study: Study, arm: Arm, evidence: Evidence, last: int | None = None) -> OwnPace:
    """The own paces of an arm, up to the last round that counts.

    Ranks that train together count in complete rounds; of those that train alone each counts by itself.
    """
    measured = evidence.columns.arms.get((study.id, arm.name), NO_ROUNDS)
    if arm.compares_ranks:
        are_beside = measured.present.sum(axis=1) > 1
        rounds = measured.of(measured.is_of_work(arm.batch_size) & are_beside)
    else:
        rounds = merged(evidence.columns, study.id, arm, evidence.plan.layout)
    if last is not None and len(rounds):
        rounds = rounds.of(rounds.numbers <= last)
    times_s = own_pace_s(rounds)
    return OwnPace(
        arm, rounds.ranks, rounds.numbers, times_s, np.asarray((np.isnan(times_s) & rounds.present).any(axis=0))
    )


def arms_read(question: Question, study: Study) -> list[Arm]:
    """The arms that answer a question, the measured one last: own paces are read where each rank trains alone.

    On a small CPU workload intervals of forward passes are ten times as wide.
    """
    each = [arm for arm in study.arms if arm.kind == "each"]
    return each[-1:] if question.metric.reads_own_pace and each else question.arms


def pace_arms(study: Study) -> list[Arm]:
    """Arms whose ranks train together and each time their own forward passes, the largest first."""
    arms = [
        arm for arm in study.arms
        if arm.kind == "ddp" and arm.world_size > 1 and arm.placement == "packed" and arm.variant == USUAL
    ]  # fmt: skip
    return sorted(arms, key=lambda arm: -arm.world_size)


def study_before(study: Study, studies: Sequence[Study]) -> Study | None:
    """The study measured before another, whose ranks tell their own pace; None without any."""
    at = next((number for number, one in enumerate(studies) if one.id == study.id), 0)
    return next((one for one in reversed(studies[:at]) if pace_arms(one)), None)


def own_pace_of(study: Study, evidence: Evidence, last: int | None = None) -> OwnPace | None:
    """Forward passes of a study's largest arm with enough rounds; None if they were not read, as of compiled models.

    Args:
        study: in which ranks train.
        evidence: of the run.
        last: number of the last round that counts; None for all. A requirement whose arms get no more rounds stays as
            it was decided, though the arm with the paces may get further ones.
    """

    def find() -> OwnPace | None:
        found = None
        for arm in pace_arms(study):  # larger arms have fewer rounds if a node was lost
            pace = pace_in(study, arm, evidence, last)
            if pace.rounds >= (MINIMUM_ROUNDS if found else 1):
                found = pace
            if pace.rounds >= MINIMUM_ROUNDS:
                break
        return found

    return evidence.once(("own pace", study.id, last), find)


@dataclass(frozen=True)
class SlowRanks:
    """Who is slow, for a study: by the arm ``each`` of any study, else by its own forward passes, else by inference.

    Attributes:
        study: that is judged.
        evidence: of the run.
        limit: by which a rank may be slower than its peers, 0.05 for 5 %; None for `UNLESS_TOLD`.
    """

    study: Study
    evidence: Evidence
    limit: float | None

    @property
    def at_most(self) -> float:
        """The limit, or that for devices of this type."""
        return UNLESS_TOLD[self.evidence.plan.device_type] if self.limit is None else self.limit

    @cached_property
    def _found(self) -> tuple[OwnPace, Slow]:
        return self.evidence.once(("slow", self.study.id, self.at_most), self._find)

    def _find(self) -> tuple[OwnPace, Slow]:
        own, paces = own_pace_of(self.study, self.evidence), list[OwnPace]()
        alone = [(study, arm) for study in self.evidence.plan.studies for arm in study.arms if arm.compares_ranks]
        alone.sort(key=lambda one: (one[1].kind == "each", one[0] == self.study, one[1].world_size))
        # Noise may leave open in one study what the forward passes of another show.
        if own is not None and own.rounds >= MINIMUM_ROUNDS:
            paces = [own]
        if alone and (alone[-1][1].kind == "each" or not paces):
            paces.insert(0, pace_in(*alone[-1], self.evidence))
        found = [(pace, find_slow(pace.times_s, self.at_most)) for pace in (*paces, NO_PACE)]
        return next((one for one in found if len(one[1].at)), found[0])

    @property
    def pace(self) -> OwnPace:
        """Own paces by which ranks are compared."""
        return self._found[0]

    @property
    def slow(self) -> Slow:
        """Slow ranks: columns of `pace`."""
        return self._found[1]


def culprits_of(
    ranks: RankColumns, found: Slow, rows: Sequence[int] | IntArray | None = None, explain: BoolArray | None = None
) -> list[Culprit]:
    """Slow ranks as culprits, certain ones first; a node of several ranks that all are slow in place of these.

    Args:
        ranks: of the columns.
        found: the slow ones.
        rows: which of them are named; all without.
        explain: whether each explains what is missed, (slow,); all do without.
    """
    explain = np.ones(len(found.at), np.bool_) if explain is None else explain
    rows, hosts = range(len(found.at)) if rows is None else rows, ranks.hosts[found.at]
    slow_on, named_on = Counter(hosts.tolist()), {hosts[row] for row in rows}
    wholly = [host for host, at in ranks.by_host.items() if slow_on[host] == len(at)]
    are_all, are_few = len(wholly) == len(ranks.by_host), 2 * len(wholly) < len(ranks.by_host)
    whole, named = [host for host in wholly if host in named_on and slow_on[host] > 1 and not are_all], []
    for host in whole:
        at = hosts == host
        ratio = float(np.median(found.ratio[at]))
        doubt = _doubt(found.are_certain[at].all() and are_few, explain[at].any())
        evidence = f"all {slow_on[host]} ranks slow, {ratio:.2f}× the median of their peers{doubt}"
        named.append(Culprit("node", (Place(host),), because("text", evidence), not doubt, slowdown=ratio))
    named.sort(key=lambda one: -(one.slowdown or 0))
    for row in rows:
        if hosts[row] in whole:
            continue
        times, of, peers = (int(one[row]) for one in (found.slow_rounds, found.rounds, found.peers))
        slowdown, when = float(found.slowdown[row]), f"{times} of {of} rounds"
        if not found.are_throughout[row]:
            when = f"the last {when}" if found.are_last[row] else f"{when} ({percent(times / of)})"
        doubt = _doubt(found.are_certain[row], explain[row])
        evidence = f"{slowdown:.2f}× {_whom(peers)} in {when}{doubt}"
        place = ranks.rank_places[found.at[row]]
        named.append(Culprit("gpu", (place,), because("text", evidence), not doubt, False, slowdown, peers, times, of))
    return sorted(named, key=lambda one: not one.is_certain)


def _doubt(is_odd: bool | np.bool_, explains: bool | np.bool_) -> str:
    """Why a culprit is not certain; empty if it is."""
    odd = "" if is_odd else "; either may be the odd one"
    return odd if explains else f"{odd}; too little to explain the failure"


def _whom(peers: int) -> str:
    return "the time of its only peer" if peers == 1 else f"the median of {peers} peers"


def groups_text(ranks: RankColumns, found: Slow) -> str:
    """``two groups of ranks: n0, n1 and n2, n3, 1.06× apart even without communication``."""
    groups = [found.faster, found.at]
    names = [sorted(set(ranks.hosts[at].tolist())) for at in groups]
    if set(names[0]) & set(names[1]):
        names = [[str(number) for number in sorted(ranks.numbers[at].tolist())] for at in groups]
    fast, slow = (first_few(one, _MOST_SHOWN) for one in names)
    apart = float(np.median(found.ratio))
    return f"two groups of ranks: {fast} and {slow}, {apart:.2f}× apart even without communication"


def name_slow(answer: Answer, case: Case, slow: SlowRanks, find_rounds: Callable[[], ArmRounds]) -> None:
    """Name the culprits that stand out in the measurements, of what did not pass.

    `find_rounds` returns complete rounds of the judged arm; with several nodes, of those that did not pass.
    """
    definition, evidence, bound = case.requirement.definition, slow.evidence, case.requirement.bound
    if answer.outcome not in ("failed", "inconclusive") or answer.culprits:
        return
    if definition.reads_utilization and answer.outcome == "failed":
        answer.culprits = [*_idle(find_rounds(), bound, slow.at_most)]
        return
    if not definition.slowed_by_one_rank:
        return
    ranks, found, trained = slow.pace.ranks, slow.slow, set(find_rounds().ranks.places)
    rows = [row for row, at in enumerate(found.at.tolist()) if ranks.places[at] in trained]
    if rows:
        value, most = answer.value or math.nan, found.mean[rows].max()

        def is_met(faster: FloatArray) -> BoolArray:
            return np.asarray(value / faster <= bound if definition.upper_bound else value * faster >= bound)

        # Without the others the bound must be missed, too; the slowest sets the pace.
        explain = is_met(found.mean) & ((found.mean == most) | ~is_met(most / found.mean))
        explain = (explain | (evidence.plan.nodes == 1)) & (definition.baseline != "no_sync")
        answer.culprits = culprits_of(ranks, found, rows, explain)
        first, more = answer.culprits[0], f" and {len(answer.culprits) - 1} more" if len(answer.culprits) > 1 else ""
        who = f"host {first.host}" if first.kind == "node" else f"{first.place.number} on {first.host}"
        seen = f"{who}{more} {'are' if more else 'is'} slow even without communication ({first.because.args[0]})"
        seen = groups_text(ranks, found) if len(found.faster) else seen
        answer.reasons.append(because("text", seen))
    communicates = definition.measured not in ("infer", "no_sync")
    if communicates and not evidence.plan.layout.judged_by_node(case.question.arms):
        name_slow_node_pairs(answer, evidence)


def _idle(measured: ArmRounds, bound: float, limit: float) -> Iterator[Culprit]:
    """Devices less busy than the bound, and clearly than their peers, who keep it: else the host may hold up all."""
    busy = measured.reading("utilization")
    own, peers = (median_over_rounds(one) for one in (busy, medians_of_others(busy)))
    compared = compare(1 / np.maximum(busy, _LEAST_BUSY), limit)
    for at in np.flatnonzero((compared.low > 1 + limit) & (own < bound) & (peers >= bound)).tolist():
        evidence = f"{percent(own[at])} busy; the median of {compared.peers[at]} peers is {percent(peers[at])}"
        yield Culprit("gpu", (measured.ranks.rank_places[at],), because("text", evidence))


def rank_notes(evidence: Evidence, limit: float | None, verdicts: Iterable[Verdict] = ()) -> list[Reason]:
    """A line on ranks that are somewhat slow without communication, and one on ranks slow in some rounds only.

    Whether or not a requirement is missed because of them; devices that verdicts are certain of are left out of the
    first, which are worth a look, but no reason to drain.
    """
    certain = {one.place.identity for verdict in verdicts for one in verdict.culprits if one.is_certain}
    studies = [study for study in evidence.plan.studies if any(arm.compares_ranks for arm in study.arms)]
    watched, changing = dict[object, str](), dict[object, str]()
    for slow in (SlowRanks(study, evidence, limit) for study in studies or evidence.plan.studies):
        ranks, found = slow.pace.ranks, compare(of_enough_rounds(slow.pace.times_s), slow.at_most)
        stand_out = (found.low > 1) & (found.ratio >= 1 + WATCHED_SHARE * slow.at_most)
        stand_out[slow.slow.at] = False
        for at in sorted(np.flatnonzero(stand_out).tolist(), key=lambda at: -float(found.ratio[at])):
            place, whom = ranks.rank_places[at], _whom(int(found.peers[at]))
            if certain.isdisjoint({place.identity, Place(place.host).identity}):
                by = f"{found.ratio[at]:.2f}× ({found.low[at]:.2f} … {found.high[at]:.2f}×) {whom}"
                watched.setdefault(place.identity, f"{place.number} on {place.host}, {by}")
        for one in culprits_of(ranks, slow.slow, np.flatnonzero(~slow.slow.are_throughout)):
            changing.setdefault(one.identity, f"{one.place.number} on {one.host}, {one.because.args[0]}")
    look_at, at_times = (first_few(list(one.values()), separator="; ") for one in (watched, changing))
    what = "slower without communication, not clearly enough to be named by that"
    notes = [f"look at {look_at}: {what}"] * bool(watched) + [f"slow at times: {at_times}"] * bool(changing)
    return [because("text", note) for note in notes]


def pace_notes(evidence: Evidence) -> list[Reason]:
    """A line for each arm without expected readings of forward passes."""
    return [
        because("no-own-pace", one.blocks, one.arm, one.study, one.rank, one.host, one.reason)
        for one in evidence.unread
        if one.reading == FORWARD_S
    ]
