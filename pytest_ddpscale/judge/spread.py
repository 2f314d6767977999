"""Weak scaling against the slowest GPU: GPUs of one model differ, and all wait for the slowest, which is no fault.

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

from pytest_ddpscale.judge.caveats import HOST_BOUND_UTILIZATION
from pytest_ddpscale.judge.devices import SHARE_OF_ROUNDS, held_down
from pytest_ddpscale.judge.judged import Judged
from pytest_ddpscale.judge.metrics import Arms, last_round
from pytest_ddpscale.judge.peers import (
    compare,
    find_groups,
    find_slow_at_times,
    median_over_rounds,
    of_enough_rounds,
    relative_logs,
    split_at_gap,
)
from pytest_ddpscale.judge.slow import columns_in, of_nodes_s, own_pace_of, own_pace_s, pace_in, study_before
from pytest_ddpscale.judge.stats import ABSENT, FAILED, IMPOSSIBLE, OPEN, PASSED
from pytest_ddpscale.judge.values import Values
from pytest_ddpscale.plan.metric_catalogue import WEAK_SCALING_EFFICIENCY
from pytest_ddpscale.plan.study import Study
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.reason import because
from pytest_ddpscale.run.table import ArmRounds, once
from pytest_ddpscale.run.verdicts import AgainstSlowest
from pytest_ddpscale.util.arrays import BoolArray, FloatArray

MOST_EXCUSED = 0.10  # a limit above it, as on CPUs, is no limit of ordinary spread
_SMALLER_WAIT = 0.01  # by which the wait may be smaller in steps of ranks that compute alone
# Two possible groups are doubted from this distance of their medians on, if the gap between their nearest GPUs is this
# share of it. Without noise 2.8 % of nodes with half of the GPUs 5 % slower and 1 % of spread are excused; of healthy
# nodes with 1.5 % of spread, 91 %.
_GROUPS_APART, _GAP_OF_GROUPS = 0.035, 0.3
FEWEST_RANKS = 4  # each with three peers
_OPEN_RULES = ("pace-unknown", "gpu-open", "perhaps-groups", "node-open")  # that further rounds may exclude


@once
def _against_slowest(evidence: Evidence, judged: Judged, study: Study, pace: ArmRounds) -> Values[Any]:
    """Weak scaling against the slowest GPU by the own paces, at the places of its values."""
    found = judged.groups
    assert found is not None
    arms, (of_baseline, at) = Arms(found.arms, judged.blank.world_size).paired, found.columns
    measured, baseline, ranks = arms.measured, arms.baseline, found.merged[-1].ranks
    before, rows = study_before(study, evidence.plan.studies), np.searchsorted(pace.numbers, measured.numbers)
    known, earlier = _means_before(pace), own_pace_of(evidence, before) if before else None
    if earlier is not None:  # before the first round that of the study before
        known[0, :-1] = _means_before(earlier)[-1, columns_in(earlier.ranks, pace.ranks)]
    means, own_s = known[rows][:, columns_in(pace.ranks, ranks)[at]], own_pace_s(measured)
    told_s = np.where(np.isnan(means), np.nan, own_s)
    slowest = np.where(np.isnan(told_s), -np.inf, means).argmax(axis=-1, keepdims=True)
    turns = np.where(baseline.present, columns_in(ranks, found.merged[0].ranks)[of_baseline], -1)
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


def excuse_spread(judged: Judged, study: Study) -> None:
    """Make places that do not pass weak scaling better, open again, or leave them as they are.

    A place passes if either interval clears the bound. It fails only if both are clear below it, or if the value
    against the slowest GPU does not count and the other is: without spread both are the same, so one below the bound
    and one above is noise.

    Args:
        judged: a requirement of training, by the values that are not against the slowest GPU.
        study: that measured it.
    """
    case, evidence, found, are_bad = judged.case, judged.evidence, judged.found, np.isin(judged.codes, (OPEN, FAILED))
    limit, nodes_limit = case.peers.computing, case.peers.nodes
    if case.requirement.definition is not WEAK_SCALING_EFFICIENCY or limit is None or not are_bad.any():
        return
    pace, whole = (own_pace_of(evidence, study, last) for last in (last_round(judged.groups), None))
    if pace is None or whole is None or max(limit, nodes_limit or 0.0) > MOST_EXCUSED:
        return
    own = _against_slowest(evidence, judged, study, whole)
    second = replace(judged, values=own)
    second.decide(own.estimated(found.confidences, judged.limit))
    for place in np.flatnonzero(are_bad & ~np.isin(second.codes, (ABSENT, IMPOSSIBLE))).tolist():
        before, (value, interval, _), code = float(found.values[place]), second.numbers(place), int(second.codes[place])
        what, slowest, behind = (of_each[place].item() for of_each in _shown(evidence, judged, study, own, pace))
        if not what and code != FAILED and value > before * (1 + limit):
            what = "excuses-too-much"
        why, is_open = because(what, limit, nodes_limit), what in _OPEN_RULES
        if what and not is_open:
            judged.note(place, None if code == FAILED else because("not-excused", why))
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


@once
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

    compared, group, far = (
        compare(times_s, limit),
        find_groups(of_enough_rounds(times_s), limit),
        nodes_limit or math.inf,
    )
    nodes, node = compare(of_nodes_s(ranks, times_s), far), ranks.node[at]
    slowest, order = np.zeros(places, np.int64), np.argsort(np.nan_to_num(compared.ratio[at]), kind="stable")
    slowest[place[order]] = at[order]
    most = most_alone = compared.ratio[slowest]
    for arm in study.arms:
        if arm.kind == "each":
            alone, most_alone = pace_in(study, arm, evidence, last), np.full(places, np.nan)
            ratio = np.append(compare(own_pace_s(alone), limit).ratio, np.nan)
            np.fmax.at(most_alone, place, ratio[columns_in(alone.ranks, measured.ranks)[column]])
    lacking = ~np.isnan(judged.values.samples) & np.isnan(own.samples)
    busy, count = judged.sums(lambda one: one.least(one.reading("utilization")))
    # Of each place alone: spread hides the gap between groups from `find_groups`, which accuses; this only doubts.
    cells = np.full((len(times_s), places, 1 + slot.max(initial=0)), np.nan)
    cells[:, place, slot] = times_s[:, at]
    relative = relative_logs(cells.reshape(-1, cells.shape[2])).reshape(len(cells), -1)
    *_, apart, gap = split_at_gap(median_over_rounds(relative).reshape(cells.shape[1:]))
    may_be_two = (gap >= _GAP_OF_GROUPS * apart) & (apart >= math.log1p(_GROUPS_APART))
    who = [measured.ranks.places[one] for one in column.tolist()]
    arms = [*(one.arm for one in reversed(judged.groups.merged)), pace.arm]
    told = [evidence.telemetry.of_arm(study.id, arm) for arm in arms]
    is_polled = told[0].throttle_reasons.where(lambda reasons: reasons is not None)
    polls = Counter(told[0].places[number].of_rank for number in told[0].place[is_polled].tolist())
    held = {one.places[number].of_rank for one in told for number in np.unique(one.place[held_down(one)])}
    whole = evidence.columns.arms[study.id, measured.arm]  # with incomplete rounds
    polled, rounds = np.array([polls[one] for one in who]), whole.present.sum(axis=0)
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
        "held-down": any_of([one in held for one in who]),
        "gpu-open": any_of(~compared.within[at]),
        "perhaps-groups": may_be_two | (len(group.at) > 0),
        "node-open": are_nodes & any_of(~(nodes.high[node] < 1 + far)),
    }
    names = [f"{gpu.number} on {gpu.host}" for gpu in ranks.rank_places[slowest]]
    first = np.select([*map(np.asarray, rules.values())], [*rules], "")
    return first, np.where(np.isnan(most), "", names), np.nan_to_num(most, nan=1.0) - 1
