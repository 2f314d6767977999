"""The verdict on uniformity: no GPU, node, or place of a probe is slower than its peers by more than their limit.

The rule is that of `peers`. All GPUs of the run that trained the workload are places that should be alike, by their own
pace; a node is the median of its GPUs. Of probes, whose times are the inverse of bandwidths, memory copies are compared
among all GPUs of the run, which are of one model. Host links and pairs of GPUs inside a node differ by position,
because of the host's topology, so their peers are the same local rank, or pair of local ranks, on the other nodes.

One place beyond the limit fails the requirement and is named, as certain unless half of those that should be alike or
more are beyond: then it is unknown which of them are normal. All must be within to pass, and all of the plan must be
measured; otherwise it is open. A GPU that is far slower in some of the rounds fails it, too, and GPUs that fall into
two groups farther apart than the limit leave it open, though most are within: the median is then a slow one's.

**Weak scaling against the slowest GPU:** GPUs of one model differ, and all wait for the slowest, which is no fault.
The value of weak scaling compares GPUs together with a typical one alone. Against the slowest GPU it is, in each round,

    t(ddp@k) ÷ t(one GPU) × f(slowest) ÷ f(the one GPU),

t being throughput per GPU and f a rank's own forward time in ddp@k of that round, which waits for nobody. The slowest
is the rank with the longest forward time in the rounds *before*, for the first round in the study before. Chosen within
the round itself, its noise would make the value too good; so a wrong choice can only lower it.

This value counts only if nothing but spread is shown to be there: every GPU of the arm within the limit of
its peers, and so its node; no two groups of GPUs, of which those closer than the limit only leave it open; none held
down by heat or power, by telemetry of each; no gaps between kernels, which are part of f; where ranks also computed
alone in this study, no smaller wait by that; and a value in every round. What is unknown is not shown. Limits above
`MOST_EXCUSED` excuse nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pytest_ddpscale.judge.answer import Answer
from pytest_ddpscale.judge.checks import SHARE_OF_ROUNDS, is_throttled
from pytest_ddpscale.judge.judged import HOST_BOUND_UTILIZATION, Judged
from pytest_ddpscale.judge.links import name_probe_culprits
from pytest_ddpscale.judge.metrics import Arms, last_round
from pytest_ddpscale.judge.peers import (
    FEWEST_PEERS,
    FEWEST_PEERS_OF_FAR,
    Compared,
    compare,
    find_groups,
    find_slow,
    find_slow_at_times,
    median_over_rounds,
    of_enough_rounds,
    relative_logs,
    split_at_gap,
)
from pytest_ddpscale.judge.slow import (
    arms_read,
    columns_in,
    culprits_of,
    of_nodes_s,
    own_pace_of,
    own_pace_s,
    pace_in,
    study_before,
    two_groups,
)
from pytest_ddpscale.judge.stats import ABSENT, FAILED, IMPOSSIBLE, OPEN, PASSED
from pytest_ddpscale.judge.values import Values, why_incomplete
from pytest_ddpscale.plan.metric_catalogue import NODE_UNIFORMITY, WEAK_SCALING_EFFICIENCY
from pytest_ddpscale.plan.operation import KINDS
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.plan.study import Study
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.place import Culprit, JudgedPlace, Place
from pytest_ddpscale.run.reason import Reason, because
from pytest_ddpscale.run.table import NO_ROUNDS, ArmRounds, memoized
from pytest_ddpscale.run.verdicts import PARTLY_KNOWN, AgainstSlowest
from pytest_ddpscale.thresholds.cases import Case, NodeCase
from pytest_ddpscale.util.arrays import BoolArray, FloatArray, IntArray


def answer_uniformity(answer: Answer, case: Case, study: Study, evidence: Evidence, rounds_due: int) -> None:
    """The answer on the uniformity of GPUs or of nodes.

    Args:
        answer: the blank one.
        case: a requirement of `reads_own_pace`.
        study: that trained its workload.
        evidence: of the run.
        rounds_due: number of rounds that were begun and timed the arm.
    """
    arm, layout, limit = arms_read(case.question, study)[-1], evidence.plan.layout, case.requirement.bound - 1
    pace = pace_in(study, arm, evidence)
    ranks, times_s = pace.ranks, own_pace_s(pace)
    of_node = layout.ranks_per_node if layout.takes_turns(arm) else arm.world_size
    expected = layout.nodes * of_node if layout.fits_node(arm) else arm.world_size  # perhaps more than there are
    read = int((~(np.isnan(times_s) & pace.present).any(axis=0)).sum())
    missing = because("pace-unread", read, expected)
    if np.isnan(times_s).all():
        answer.reasons = [missing if len(pace) else because("no-own-round", arm.name, study.id)]
        return
    names, noun = [f"{place.number} of {place.host}" for place in ranks.rank_places], ranks.rank_places[0].noun
    counts, is_of_nodes = np.ones(1, np.bool_), case.requirement.definition is NODE_UNIFORMITY
    if is_of_nodes:  # the median of a node whose GPU is missing is another one's
        rounds = (~np.isnan(times_s)).sum(axis=0)
        least = [rounds[at].min() for at in ranks.by_host.values()]
        counts = np.array(least) >= rounds.max() - layout.takes_turns(arm)
        times_s, names, noun = of_nodes_s(ranks, times_s), [*ranks.by_host], "nodes"
    compared = compare(times_s, limit)
    codes = _answer_on_places(answer, compared, names, noun, None if read == expected else missing, limit, counts)
    fewest, beyond = int(compared.rounds[compared.rounds > 0].min(initial=rounds_due)), codes == FAILED
    if answer.outcome in ("passed", "failed") and fewest < rounds_due:
        answer.say("inconclusive", because("incomplete-rounds", fewest, rounds_due))
    elif is_of_nodes:
        order, is_minority = np.argsort(-compared.ratio, kind="stable"), bool(2 * beyond.sum() < len(names))
        for at in order[beyond[order]].tolist():
            ratio = float(compared.ratio[at])
            why = because("node-by-own-pace", ratio, int(compared.peers[at]))
            answer.culprits.append(Culprit("node", (Place(names[at]),), why, is_minority, slowdown=ratio))
    elif answer.outcome != "not_measured" and compared.rounds.max() >= FEWEST_ROUNDS:
        is_failed = answer.outcome == "failed"
        # Arms that train together go on after this one is decided, and show who is slow from then on, or at times.
        later = (own_pace_of(evidence, study) if arm.kind == "each" else None) or NO_ROUNDS
        later = later.of(later.numbers > pace.numbers[-1])
        for pace_of_arm in () if is_failed else (pace, later):
            own_s = of_enough_rounds(own_pace_s(pace_of_arm))
            beside = compare(own_s, limit)
            stragglers = find_slow(own_s, beside, limit)
            counts = find_slow_at_times(beside, limit)[stragglers.at] | (
                stragglers.are_certain & (pace_of_arm is later)
            )
            if counts.any() and (beside.peers[stragglers.at[counts]] >= FEWEST_PEERS_OF_FAR).all():
                stragglers = stragglers.of(counts)
                slowest = pace_of_arm.ranks.rank_places[stragglers.at[0]]
                answer.culprits = culprits_of(pace_of_arm.ranks, stragglers)
                answer.place, answer.rounds = f"{slowest.number} of {slowest.host}", int(beside.rounds.min())
                answer.value, answer.interval = float(stragglers.slowdown[0]), None
                why = because("gpu-slow-at-times", answer.place, len(stragglers.at) - 1, answer.culprits[0].because)
                answer.say("failed", why)
                return
        group = find_groups(of_enough_rounds(times_s), limit)
        are_groups = len(group.at) > 0 and bool(answer.outcome != "passed" or np.median(group.ratio) >= 1 + limit)
        if are_groups:
            answer.reasons = [*answer.reasons * (answer.outcome != "passed"), two_groups(ranks, group)]
        stragglers = find_slow(times_s, compared, limit)
        if is_failed:
            stragglers = stragglers.of(beyond[stragglers.at])._replace(slowdown=stragglers.ratio[beyond[stragglers.at]])
        elif are_groups:  # the median of others lies in the larger group, or between both: either may be the normal one
            answer.outcome, stragglers = "inconclusive", group
        else:  # with too few peers to be certain of it
            stragglers = stragglers.of((compared.low[stragglers.at] > 1 + limit) & (answer.outcome == "inconclusive"))
        is_minority = is_failed and 2 * max(beyond.sum(), len(group.at)) < len(names)
        answer.culprits = culprits_of(ranks, stragglers._replace(are_certain=np.full(len(stragglers.at), is_minority)))


def _answer_on_places(
    answer: Answer, compared: Compared, names: Sequence[str], noun: str, missing: Reason | None, limit: float,
    counts: BoolArray,
) -> IntArray:  # fmt: skip
    """The answer of the comparison, without culprits; value and interval are those of the worst place. Returns codes.

    Args:
        answer: the blank one.
        compared: the places.
        names: of them, (places,).
        noun: what they are, in the plural.
        missing: why not all of the plan was measured; None if it was.
        limit: by which a place may be slower, 0.05 for 5 %.
        counts: whether a place was measured wholly, (places,); else it is undecided.
    """
    ratio, rounds = compared.ratio, int(compared.rounds.max())
    counts = counts & (compared.rounds >= FEWEST_ROUNDS)
    codes = np.select([compared.beyond & counts, compared.within & counts], [FAILED, PASSED], OPEN)
    beyond, undecided = np.flatnonzero(codes == FAILED).tolist(), np.flatnonzero(codes != PASSED).tolist()
    if np.isnan(ratio).all() or rounds < FEWEST_ROUNDS:
        answer.rounds = rounds
        answer.say("inconclusive", because("few", rounds))
        return codes
    if missing and not beyond:
        answer.reasons = [missing]
        return codes
    worst = max(beyond or range(len(names)), key=np.nan_to_num(ratio).tolist().__getitem__)
    value, low, high, peers = (one[worst].item() for one in (ratio, compared.low, compared.high, compared.peers))
    answer.value, answer.interval, answer.place = value, (low, high), names[worst]
    answer.rounds, whom = int(compared.rounds.min()), because("of-peers", names[worst], noun, value, peers)
    if beyond:
        answer.say("failed", because("beyond-peers", whom, tuple(names[at] for at in beyond if at != worst), limit))
        answer.flags = [PARTLY_KNOWN] if missing or OPEN in codes else []
    elif not undecided:
        answer.say("passed", because("within-peers", len(names), noun, limit))
    elif low > 1 + limit and peers < FEWEST_PEERS:
        answer.say("inconclusive", because("few-peers", whom, limit, FEWEST_PEERS))
    else:
        answer.say("inconclusive", because("perhaps-beyond", limit, tuple(names[at] for at in undecided), whom))
    return codes


def answer_probe_uniformity(
    answer: Answer, case: NodeCase, values: Values[JudgedPlace], evidence: Evidence, rounds_due: int,
    alike: IntArray | None = None,
) -> bool:  # fmt: skip
    """The answer on the places of a probe. Returns whether those beyond are a minority of those alike.

    Culprits are found as for a bound (`links`).

    Args:
        answer: the blank one.
        case: a requirement of `compares_places`.
        values: of its probe, in the unit of the probe's own metric; larger is faster.
        evidence: of the run.
        rounds_due: number of rounds that were begun and timed the probe.
        alike: equal numbers for places that should be alike, (places,); by their position on their nodes without it.
    """
    assert case.probe is not None
    missing, measured_at = why_incomplete(case.probe, values, evidence), np.flatnonzero(values.rounds() > 0)
    if missing and not len(measured_at):
        answer.reasons = [missing]
        return False
    places, bandwidths = [values.places[at] for at in measured_at.tolist()], values.samples[measured_at]
    limit, is_memory = case.requirement.bound - 1, KINDS[case.probe.operation.kind].peers == "memory"
    if alike is not None:
        alike = alike[measured_at]
    elif is_memory:
        alike = np.zeros(len(places), np.int64)
    else:
        ends = [[end.of_rank[1] for end in place.ends] or [0] for place in places]
        alike = np.unique(ends, axis=0, return_inverse=True)[1].reshape(-1)
    compared = compare(1 / np.where(bandwidths > 0, bandwidths, np.nan).T, limit, alike)
    counts, names = compared.rounds >= rounds_due, [place.name for place in places]
    codes = _answer_on_places(answer, compared, names, places[0].noun, missing, limit, counts)
    if answer.outcome == "inconclusive" and 0 < answer.rounds < rounds_due:
        answer.reasons.append(because("incomplete-rounds", answer.rounds, rounds_due))
    if answer.outcome == "failed":
        name_probe_culprits(answer, case.probe, places, codes, np.nanmedian(bandwidths, axis=1), evidence)
    is_minority = bool((2 * np.bincount(alike, compared.beyond) < np.bincount(alike)).all())
    if not is_minority:
        answer.culprits = [replace(culprit, is_certain=False) for culprit in answer.culprits]
    return is_minority


def fail_by_own_node(
    answer: Answer, case: NodeCase, values: Values[JudgedPlace], evidence: Evidence, rounds_due: int
) -> None:
    """Let the answer on host links or pairs fail, whatever its bound, where some are far slower than those alike.

    That is for fewer nodes than uniformity needs. It takes twice the limit and `FEWEST_PEERS` on the node, and nobody
    is certain, because a survey does not show all that places share. Alike are host links with the same lanes and
    connections to all else, and pairs that are connected alike, as are those that take turns with them. Without a
    matrix of connections no place has peers.
    """
    assert case.probe is not None
    probe, layout, keys = case.probe, evidence.plan.layout, list[object]()
    limit = {"host": case.peers.host, "pairs": case.peers.pairs}.get(KINDS[probe.operation.kind].peers)
    if limit is None or layout.nodes >= FEWEST_PEERS or not layout.fits_node(probe):
        return
    turns = [layout.groups(probe, turn) for turn in range(layout.turns(probe))]
    by_place = dict[JudgedPlace, list[str]]()  # the cells of the matrix that a place has
    for place in values.places:
        cells, ends = evidence.surveys[place.host].connections if place.host in evidence.surveys else {}, {*place.ends}
        names = {f"GPU{end.index}" for end in ends}
        by_place[place] = sorted(cell for pair, cell in cells.items() if names <= {*pair})
    for place in values.places:
        turn, index = next(turn for turn in turns if place.ranks in turn), [end.index for end in place.ends]
        beside = sorted(by_place[one] for one in by_place if one.host == place.host and one.ranks in turn)
        gpus = evidence.surveys[place.host].gpus if by_place[place] else ()
        lanes = [(gpu.pcie_generation_max, gpu.pcie_width) for gpu in gpus if gpu.index in index]
        keys.append(str((place.host, by_place[place], beside, lanes)) if by_place[place] else place)
    firsts = [keys.index(key) if keys.count(key) > FEWEST_PEERS else at for at, key in enumerate(keys)]
    alike = np.unique(firsts, return_inverse=True)[1]
    own, twice = Answer(answer.blank), replace(case, requirement=replace(case.requirement, bound=1 + 2 * limit))
    is_minority = answer_probe_uniformity(own, twice, values, evidence, rounds_due, alike)
    if own.outcome == "failed" and is_minority and (answer.outcome, answer.blank.severity) != ("failed", "fail"):
        answer.outcome, answer.reasons, answer.blank = "failed", own.reasons, replace(answer.blank, severity="fail")
        answer.culprits = [replace(culprit, is_certain=False) for culprit in own.culprits]


MOST_EXCUSED = 0.10  # a limit above it, as on CPUs, is no limit of ordinary spread
_SMALLER_WAIT = 0.01  # by which the wait may be smaller in steps of ranks that compute alone
# Two possible groups are doubted from this distance of their medians on, if the gap between their nearest GPUs is this
# share of it. Without noise 2.8 % of nodes with half of the GPUs 5 % slower and 1 % of spread are excused; of healthy
# nodes with 1.5 % of spread, 91 %.
_GROUPS_APART, _GAP_OF_GROUPS = 0.035, 0.3
FEWEST_RANKS = 4  # each with three peers
_OPEN_RULES = ("pace-unknown", "gpu-open", "perhaps-groups", "node-open")  # that further rounds may exclude


@memoized
def _against_slowest(evidence: Evidence, judged: Judged, study: Study, pace: ArmRounds) -> Values[Any]:
    """Weak scaling against the slowest GPU by the own paces, at the places of its values."""
    grouped = judged.groups
    assert grouped is not None
    arms, (of_baseline, at) = Arms(grouped.arms, judged.blank.world_size).paired, grouped.columns
    measured, baseline, ranks = arms.measured, arms.baseline, grouped.merged[-1].ranks
    before, rows = study_before(study, evidence.plan.studies), np.searchsorted(pace.numbers, measured.numbers)
    known, earlier = _means_before(pace), own_pace_of(evidence, before) if before else None
    if earlier is not None:  # before the first round that of the study before
        known[0, :-1] = _means_before(earlier)[-1, columns_in(earlier.ranks, pace.ranks)]
    means, own_s = known[rows][:, columns_in(pace.ranks, ranks)[at]], own_pace_s(measured)
    told_s = np.where(np.isnan(means), np.nan, own_s)
    slowest = np.where(np.isnan(told_s), -np.inf, means).argmax(axis=-1, keepdims=True)
    turns = np.where(baseline.present, columns_in(ranks, grouped.merged[0].ranks)[of_baseline], -1)
    is_turn = at == turns.max(axis=-1, initial=-1, keepdims=True)
    of_turn = np.fmax.reduce(own_s, axis=-1, where=is_turn, initial=np.nan)
    factors = np.take_along_axis(told_s, slowest, axis=-1)[..., 0] / of_turn
    samples = measured.samples_per_s_per_gpu / baseline.samples_per_s_per_gpu * factors
    errors = np.full(len(judged.places), np.nan)
    return replace(judged.values, samples=np.ascontiguousarray(samples.T), errors=errors)


def _means_before(pace: ArmRounds) -> FloatArray:
    """Mean of each rank's relative log before each of the rounds of its pace, and after them.

    NaN where nothing is known, as in the last column, which is no rank's: (rounds + 1, ranks + 1).
    """
    logs = relative_logs(own_pace_s(pace))
    count, total = np.cumsum(np.pad([~np.isnan(logs), np.nan_to_num(logs)], ((0, 0), (1, 0), (0, 1))), axis=1)
    return np.asarray(total / np.where(count > 0, count, np.nan))


def allow_for_spread(judged: Judged, study: Study) -> None:
    """Make places that do not pass weak scaling better, open again, or leave them as they are.

    A place passes if either interval clears the bound. It fails only if both are clear below it, or if the value
    against the slowest GPU does not count and the other is: without spread both are the same, so one below the bound
    and one above is noise.

    Args:
        judged: a requirement of training, by the values that are not against the slowest GPU.
        study: that measured it.
    """
    case, evidence, estimated = judged.case, judged.evidence, judged.estimated
    are_bad = np.isin(judged.codes, (OPEN, FAILED))
    limit, nodes_limit = case.peers.computing, case.peers.nodes
    if case.requirement.definition is not WEAK_SCALING_EFFICIENCY or limit is None or not are_bad.any():
        return
    pace, whole = (own_pace_of(evidence, study, last) for last in (last_round(judged.groups), None))
    if not pace or not whole or max(limit, nodes_limit or 0.0) > MOST_EXCUSED:
        return
    own = _against_slowest(evidence, judged, study, whole)
    second = replace(judged, values=own)
    second.decide(own.estimated(estimated.confidences, judged.limit))
    for place in np.flatnonzero(are_bad & ~np.isin(second.codes, (ABSENT, IMPOSSIBLE))).tolist():
        before, (value, interval, _), code = (
            float(estimated.values[place]),
            second.numbers(place),
            int(second.codes[place]),
        )
        reason_code, slowest, behind = (column[place].item() for column in _shown(evidence, judged, study, own, pace))
        if not reason_code and code != FAILED and value > before * (1 + limit):
            reason_code = "excuses-too-much"
        why, is_open = because(reason_code, limit, nodes_limit), reason_code in _OPEN_RULES
        if reason_code and not is_open:
            if code != FAILED:
                judged.note(place, because("not-excused", why))
            continue
        if code == FAILED and judged.codes[place] != FAILED:
            continue
        judged.against[place] = AgainstSlowest(value, interval, slowest, behind)
        if code == FAILED:
            judged.reasons[place] = because("missed-by-the-slowest", judged.why(place), value)
        elif is_open:
            judged.codes[place], judged.reasons[place] = OPEN, because("perhaps-spread", value, why)
        else:
            judged.codes[place], judged.reasons[place] = code, because("by-the-slowest", value, second.why(place))
            for note in (note for note, at in second.notes.items() if place in at):
                judged.note(place, because("against-the-slowest", note))
        if judged.codes[place] == PASSED:
            judged.reasons[place] = because("spread-excused", value, before, slowest, behind, limit)


@memoized
def _shown(evidence: Evidence, judged: Judged, study: Study, own: Values[Any], pace: ArmRounds) -> tuple[Any, ...]:
    """What the forward times, utilization and telemetry of all ranks show of each place, (places,) each.

    The first rule that holds: what is there beside spread or cannot be excluded, then what further rounds may exclude;
    empty if none does. Its slowest GPU, and how far that is behind the median of its peers.
    """
    assert judged.groups is not None
    measured, last, places = judged.groups.merged[-1], last_round(judged.groups), len(own.places)
    limit, nodes_limit = judged.case.peers.computing or 0.0, judged.case.peers.nodes
    ranks, times_s = pace.ranks, own_pace_s(pace)
    place, slot = np.nonzero(judged.groups.arms[-1].present.any(axis=0))
    column = judged.groups.columns[-1][place, slot]  # of each rank among the measured ones, and among the paces
    at, are_nodes = columns_in(ranks, measured.ranks)[column], len(ranks.by_host) > 1

    def any_of(of_ranks: BoolArray | Sequence[bool]) -> BoolArray:
        return np.bincount(place, of_ranks, places) > 0

    compared, group = compare(times_s, limit), find_groups(of_enough_rounds(times_s), limit)
    far, node = nodes_limit or math.inf, ranks.node[at]
    nodes = compare(of_nodes_s(ranks, times_s), far)
    slowest, order = np.zeros(places, np.int64), np.argsort(np.nan_to_num(compared.ratio[at]), kind="stable")
    slowest[place[order]] = at[order]
    most = most_alone = compared.ratio[slowest]
    for arm in study.arms:
        if arm.kind == "each":
            alone, most_alone = pace_in(study, arm, evidence, last), np.full(places, np.nan)
            ratio = np.append(compare(own_pace_s(alone), limit).ratio, np.nan)
            np.fmax.at(most_alone, place, ratio[columns_in(alone.ranks, measured.ranks)[column]])
    lacking = ~np.isnan(judged.values.samples) & np.isnan(own.samples)
    busy, count = judged.sums(lambda of_arm: of_arm.least(of_arm.reading("utilization")))
    # Of each place alone: spread hides the gap between groups from `find_groups`, which accuses; this only doubts.
    cells = np.full((len(times_s), places, 1 + slot.max(initial=0)), np.nan)
    cells[:, place, slot] = times_s[:, at]
    relative = relative_logs(cells.reshape(-1, cells.shape[2])).reshape(len(cells), -1)
    *_, apart, gap = split_at_gap(median_over_rounds(relative).reshape(cells.shape[1:]))
    may_be_two = (gap >= _GAP_OF_GROUPS * apart) & (apart >= math.log1p(_GROUPS_APART))
    who = [measured.ranks.places[of_arm] for of_arm in column.tolist()]
    arms = [*(merged.arm for merged in reversed(judged.groups.merged)), pace.arm]
    telemetry = [evidence.telemetry.of_arm(study.id, arm) for arm in arms]
    is_polled = telemetry[0].throttle_reasons.where(lambda reasons: reasons is not None)
    polls = Counter(telemetry[0].places[number].of_rank for number in telemetry[0].place[is_polled].tolist())
    held = {
        of_arm.places[number].of_rank
        for of_arm in telemetry
        for number in np.unique(of_arm.place[is_throttled(of_arm)])
    }
    whole = evidence.columns.arms[study.id, measured.arm]  # with incomplete rounds
    polled, rounds = np.array([polls[of_arm] for of_arm in who]), whole.present.sum(axis=0)
    rounds = rounds[columns_in(whole.ranks, measured.ranks)[column]]
    rules: dict[str, Any] = {
        "pace-not-read": any_of(at < 0),
        "pace-unknown": np.isnan(most),
        "few-ranks": len(ranks) < FEWEST_RANKS,
        "gpu-beyond": any_of(compared.low[at] > 1 + limit),
        "gpu-at-times": any_of(find_slow_at_times(compare(of_enough_rounds(times_s), limit), limit)[at]),
        "gpus-in-groups": median_over_rounds(group.ratio[:, np.newaxis])[0] >= 1 + limit,
        "nodes-not-compared": are_nodes and nodes_limit is None,
        "node-beyond": any_of(nodes.low[node] > 1 + far),
        "alike-alone": most > most_alone + _SMALLER_WAIT,
        # Before the first round of all it is unknown which GPU is slowest.
        "forward-lacking": lacking[:, 1:].any(axis=1),
        "busy-unknown": (count == 0) | (count < SHARE_OF_ROUNDS * judged.values.rounds()),
        "idle-at-times": busy < HOST_BOUND_UTILIZATION * count,
        # While measuring, telemetry is not read.
        "heat-unknown": any_of(polled < SHARE_OF_ROUNDS * rounds) & (not evidence.goes_on),
        "held-down": any_of([of_arm in held for of_arm in who]),
        "gpu-open": any_of(~compared.within[at]),
        "perhaps-groups": may_be_two | (len(group.at) > 0),
        "node-open": are_nodes & any_of(~(nodes.high[node] < 1 + far)),
    }
    names = [f"{gpu.number} on {gpu.host}" for gpu in ranks.rank_places[slowest]]
    first = np.select([*map(np.asarray, rules.values())], [*rules], "")
    return first, np.where(np.isnan(most), "", names), np.nan_to_num(most, nan=1.0) - 1
