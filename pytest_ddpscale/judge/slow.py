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
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from pytest_ddpscale.judge.answer import Answer
from pytest_ddpscale.judge.links import name_slow_node_pairs
from pytest_ddpscale.judge.metrics import merged
from pytest_ddpscale.judge.peers import (
    MINIMUM_ROUNDS,
    WATCHED_SHARE,
    Slow,
    compare,
    find_groups,
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
from pytest_ddpscale.run.table import NO_ROUNDS, ArmRounds, RankColumns, as_slice, memoized
from pytest_ddpscale.run.verdicts import Verdict
from pytest_ddpscale.thresholds.cases import Case
from pytest_ddpscale.util.arrays import BoolArray, FloatArray, Index, IntArray

# For a thresholds file that says nothing of peers, or does not compare them: what fails names somebody all the same.
USUAL_LIMIT: Mapping[DeviceType, float] = {"cuda": 0.05, "cpu": 1.0}
_LEAST_BUSY = 0.01  # utilization that is compared as that; 0 has no ratio


@memoized
def columns_in(ranks: RankColumns, others: RankColumns) -> IntArray:
    """Column of the same device, by host and local rank, for each of the others; -1 without any, (others,)."""
    columns = {place: number for number, place in enumerate(ranks.places)}
    return np.array([columns.get(place, -1) for place in others.places], np.int64)


def own_pace_s(rounds: ArmRounds) -> FloatArray:
    """Seconds of each rank's forward pass, or of its step if ranks do not wait for each other, (rounds, ranks).

    NaN if it is unknown or the rank was absent; a pass takes time, so 0 means unknown.
    """
    if rounds.arm.startswith(("each@", "infer@")):
        return rounds.mean_step_s
    forward_s = rounds.reading(FORWARD_S)
    return np.where(forward_s > 0, forward_s, np.nan) / np.maximum(rounds.count, 1)


def of_nodes_s(ranks: RankColumns, times_s: FloatArray) -> FloatArray:
    """The median of each node's ranks, in the order of `by_host`, NaN where a node was absent, (rounds, nodes)."""
    by_host = ranks.by_host.values()
    cells = np.full((max(map(len, by_host), default=0), len(times_s), len(by_host)), np.nan)
    for node, at in enumerate(by_host):
        cells[: len(at), :, node] = times_s[:, at].T
    return median_over_rounds(cells.reshape(len(cells), -1)).reshape(cells.shape[1:])


def pace_in(study: Study, arm: Arm, evidence: Evidence, last: int | None = None) -> ArmRounds:
    """The rounds of an arm that tell own paces, up to the last one that counts.

    Ranks that train together count in complete rounds; of those that train alone each counts by itself.
    """
    if arm.compares_ranks:
        measured = evidence.columns.arms.get((study.id, arm.name), NO_ROUNDS)
        are_beside = measured.is_of_work(arm.batch_size) & (measured.present.sum(axis=1) > 1)
        rounds = measured.of(as_slice(np.flatnonzero(are_beside)))
    else:
        rounds = merged(evidence.columns, study.id, arm, evidence.plan.layout)
    return rounds if last is None else rounds.of(slice(int(np.searchsorted(rounds.numbers, last, "right"))))


def arms_read(question: Question, study: Study) -> list[Arm]:
    """The arms that answer a question, the measured one last: own paces are read where each rank trains alone.

    On a small CPU workload intervals of forward passes are ten times as wide.
    """
    together = [arm for arm in study.arms if arm.kind == "each" and arm.world_size >= question.world_size]
    return together[-1:] if question.metric.reads_own_pace and together else question.arms


def pace_arms(study: Study) -> list[Arm]:
    """Arms whose ranks train together and each time their own forward passes, the largest first."""
    arms = [
        arm for arm in study.arms
        if arm.kind == "ddp" and arm.world_size > 1 and arm.placement == "packed" and arm.variant == USUAL
    ]  # fmt: skip
    return sorted(arms, key=lambda arm: -arm.world_size)


def study_before(study: Study, studies: Sequence[Study]) -> Study | None:
    """The study measured before another, whose ranks tell their own pace; None without any."""
    before = None
    for one in studies:
        if one.id == study.id:
            return before
        before = one if pace_arms(one) else before
    return None


def _rounds_shown(pace: ArmRounds) -> int:
    return int((~np.isnan(own_pace_s(pace))).any(axis=1).sum())


@memoized
def own_pace_of(evidence: Evidence, study: Study, last: int | None = None) -> ArmRounds | None:
    """The largest arm of a study with enough forward passes, or any; None if they were not read, as of compiled models.

    Args:
        evidence: of the run.
        study: in which ranks train.
        last: number of the last round that counts; None for all. A requirement whose arms get no more rounds stays as
            it was decided, though the arm with the paces may get further ones.
    """
    # Larger arms have fewer rounds if a node was lost.
    arms = [(least, arm) for least in (MINIMUM_ROUNDS, 1) for arm in pace_arms(study)]
    paces = ((least, pace_in(study, arm, evidence, last)) for least, arm in arms)
    return next((pace for least, pace in paces if _rounds_shown(pace) >= least), None)


def limit_of(evidence: Evidence, limit: float | None) -> float:
    """The limit of peers, or without any that for devices of this type."""
    return USUAL_LIMIT[evidence.plan.device_type] if limit is None else limit


@memoized
def slow_ranks(evidence: Evidence, study: Study, limit: float | None) -> tuple[ArmRounds, Slow]:
    """The rounds by whose own paces ranks are compared, and the slow ones of these.

    By the arm ``each`` of any study, else by forward passes of the judged one, else by inference. The slower of two
    groups if these are more, or open.

    Args:
        evidence: of the run.
        study: that is judged.
        limit: by which a rank may be slower than its peers, 0.05 for 5 %; None for `USUAL_LIMIT`.
    """
    own, most = own_pace_of(evidence, study), limit_of(evidence, limit)
    alone = [(one, arm) for one in evidence.plan.studies for arm in one.arms if arm.compares_ranks]
    alone.sort(key=lambda pair: (pair[1].kind == "each", pair[0] == study, pair[1].world_size))
    # Noise may leave open in one study what the forward passes of another show.
    paces = [own] if own is not None and _rounds_shown(own) >= MINIMUM_ROUNDS else []
    if alone and (alone[-1][1].kind == "each" or not paces):
        paces.insert(0, pace_in(*alone[-1], evidence))
    by_pace = []
    for pace in (*paces, NO_ROUNDS):
        times_s = of_enough_rounds(own_pace_s(pace))
        slow, group = find_slow(times_s, compare(times_s, most), most), find_groups(times_s, most)
        is_group = len(group.at) > len(slow.at) or not group.are_certain.all()
        by_pace.append((pace, group if is_group else slow))
    return next((pair for pair in by_pace if len(pair[1].at)), by_pace[0])


def culprits_of(
    ranks: RankColumns, stragglers: Slow, which: Index = slice(None), explain: BoolArray | bool = True
) -> list[Culprit]:
    """Slow ranks as culprits, certain ones first; a node of several ranks that all are slow in place of these.

    Args:
        ranks: of the columns.
        stragglers: the slow ones.
        which: of them are named.
        explain: whether each explains what is missed, (slow,).
    """
    explain, hosts, node = np.broadcast_to(explain, len(stragglers.at)), [*ranks.by_host], ranks.node[stragglers.at]
    sizes, rows, named = np.bincount(ranks.node), np.arange(len(node))[which], list[Culprit]()
    wholly = np.bincount(node, minlength=len(hosts)) == sizes
    are_whole = wholly & (sizes > 1)
    for of_node in np.unique(node[rows[are_whole[node[rows]]]]).tolist():
        at = node == of_node
        sure = bool(stragglers.are_certain[at].all() and 2 * wholly.sum() < len(hosts)), bool(explain[at].any())
        ratio = float(np.median(stragglers.ratio[at]))
        why = because("slow-ranks", int(sizes[of_node]), ratio, *sure)
        named.append(Culprit("node", (Place(hosts[of_node]),), why, all(sure), slowdown=ratio))
    named.sort(key=lambda culprit: -(culprit.slowdown or 0))
    for row in rows[~are_whole[node[rows]]].tolist():
        at, is_odd, _, _, *slow, is_always, is_last = (column[row].item() for column in stragglers[:-1])
        sure = is_odd, bool(explain[row])
        why = because("slow-rank", *slow, is_always, is_last, *sure)
        named.append(Culprit("gpu", (ranks.rank_places[at],), why, all(sure), False, *slow))
    return sorted(named, key=lambda culprit: not culprit.is_certain)


def two_groups(ranks: RankColumns, stragglers: Slow) -> Reason:
    """Hosts of both groups, or numbers of their ranks if a host has some of both, and their distance."""
    for names in (ranks.hosts, ranks.numbers):
        fast, slow = (tuple(sorted({*names[at].tolist()})) for at in (stragglers.faster, stragglers.at))
        if {*fast}.isdisjoint(slow):
            break
    return because("two-groups", fast, slow, float(np.median(stragglers.ratio)))


def name_slow(
    answer: Answer, case: Case, study: Study, evidence: Evidence, find_rounds: Callable[[], ArmRounds]
) -> None:
    """Name the culprits that stand out in the measurements, of what did not pass.

    `find_rounds` returns complete rounds of the judged arm; with several nodes, of those that did not pass.
    """
    definition, bound, limit = case.requirement.definition, case.requirement.bound, case.peers.computing
    if answer.outcome not in ("failed", "inconclusive") or answer.culprits:
        return
    if definition.reads_utilization and answer.outcome == "failed":
        measured, most = find_rounds(), limit_of(evidence, limit)
        busy = measured.reading("utilization")
        own, peers = median_over_rounds(busy), median_over_rounds(medians_of_others(busy))
        compared = compare(1 / np.maximum(busy, _LEAST_BUSY), most)
        # Its peers keep the bound: else the host may hold up all.
        are_slow, ranks = (compared.low > 1 + most) & (own < bound) & (peers >= bound), measured.ranks
        # Most GPUs of one of several nodes: they wait for their host.
        idle, sizes = np.bincount(ranks.node, are_slow), np.bincount(ranks.node)
        starves = (2 * idle > sizes) & (sizes > 1) & (len(sizes) > 1)
        for of in np.flatnonzero(starves).tolist():
            why = because("starved", float(np.median(own[ranks.node == of])))
            answer.culprits.append(Culprit("node", (Place([*ranks.by_host][of]),), why))
        for at in np.flatnonzero(are_slow & ~starves[ranks.node]).tolist():
            why = because("less-busy", float(own[at]), int(compared.peers[at]), float(peers[at]))
            answer.culprits.append(Culprit("gpu", (measured.ranks.rank_places[at],), why))
    if not definition.slowed_by_one_rank:
        return
    (pace, stragglers), trained = slow_ranks(evidence, study, limit), set(find_rounds().ranks.places)
    rows = np.flatnonzero([pace.ranks.places[at] in trained for at in stragglers.at.tolist()])
    if len(rows):
        value, slowest = answer.value or math.nan, stragglers.mean[rows].max()
        needed = value / (bound or math.nan) if definition.upper_bound else bound / value  # how much faster it must be
        # Without the others the bound must be missed, too; the slowest sets the pace.
        explain = (stragglers.mean >= needed) & ((stragglers.mean == slowest) | ~(slowest / stragglers.mean >= needed))
        explain = (explain | (evidence.plan.nodes == 1)) & (definition.baseline != "no_sync")
        answer.culprits = culprits_of(pace.ranks, stragglers, rows, explain)
        first, *others = answer.culprits
        who = first.place.number if first.kind == "gpu" else "all ranks"
        seen = because("slow-alone", first.kind, who, first.host, len(others), first.because)
        answer.reasons.append(two_groups(pace.ranks, stragglers) if len(stragglers.faster) else seen)
    if definition.communicates and not evidence.plan.layout.judged_by_node(case.question.arms):
        name_slow_node_pairs(answer, evidence)


def rank_notes(evidence: Evidence, limit: float | None, verdicts: Iterable[Verdict] = ()) -> list[Reason]:
    """A remark on ranks that are somewhat slow without communication, and one on ranks slow in some rounds only.

    Whether or not a requirement is missed because of them; devices that verdicts are certain of are left out of the
    first, which are worth a look, but no reason to drain.
    """
    certain = {culprit.place.identity for verdict in verdicts for culprit in verdict.culprits if culprit.is_certain}
    studies = evidence.plan.studies
    notes, most = {code: dict[object, Reason]() for code in ("look-at", "slow-at-times")}, limit_of(evidence, limit)
    for study in [study for study in studies if any(arm.compares_ranks for arm in study.arms)] or studies:
        pace, slow = slow_ranks(evidence, study, limit)
        compared, places = compare(of_enough_rounds(own_pace_s(pace)), most), pace.ranks.rank_places
        stand_out = (compared.low > 1) & (compared.ratio >= 1 + WATCHED_SHARE * most)
        stand_out[slow.at] = False
        numbers = compared.ratio, compared.low, compared.high, compared.peers
        order = np.argsort(-compared.ratio, kind="stable")
        remarks = [
            ("look-at", places[at], because("stands-out", *(number[at].item() for number in numbers)))
            for at in order[stand_out[order]].tolist()
            if certain.isdisjoint({places[at].identity, Place(places[at].host).identity})
        ]
        changing = culprits_of(pace.ranks, slow, ~slow.are_throughout)
        remarks += [("slow-at-times", culprit.place, culprit.because) for culprit in changing]
        for code, place, why in remarks:
            notes[code].setdefault(place.identity, because("on-host", place.number, place.host, why))
    return [because(code, tuple(whys.values())) for code, whys in notes.items() if whys]


def pace_notes(evidence: Evidence) -> list[Reason]:
    """A remark on each arm without expected readings of forward passes."""
    return [
        because("no-own-pace", reading.blocks, reading.arm, reading.study, reading.rank, reading.host, reading.reason)
        for reading in evidence.unread
        if reading.reading == FORWARD_S
    ]
