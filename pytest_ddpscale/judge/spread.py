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
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from pytest_ddpscale.judge.caveats import HOST_BOUND_UTILIZATION
from pytest_ddpscale.judge.devices import SHARE_OF_ROUNDS, flags
from pytest_ddpscale.judge.judged import Judged
from pytest_ddpscale.judge.metrics import Arms, Groups, last_round
from pytest_ddpscale.judge.peers import (
    compare,
    find_slow_at_times,
    find_slow_group,
    median_over_rounds,
    of_enough_rounds,
    relative_logs,
)
from pytest_ddpscale.judge.slow import OwnPace, own_pace_of, own_pace_s, pace_in, study_before
from pytest_ddpscale.judge.stats import ABSENT, FAILED, IMPOSSIBLE, OPEN, PASSED
from pytest_ddpscale.judge.values import Values, groups_of
from pytest_ddpscale.plan.metric_catalogue import WEAK_SCALING_EFFICIENCY
from pytest_ddpscale.plan.study import Study
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.reason import because
from pytest_ddpscale.run.verdicts import AgainstSlowest
from pytest_ddpscale.thresholds.cases import Case
from pytest_ddpscale.util.arrays import BoolArray, FloatArray, IntArray

MOST_EXCUSED = 0.10  # a limit above it, as on CPUs, is no limit of ordinary spread
_SMALLER_WAIT = 0.01  # by which the wait may be smaller in steps of ranks that compute alone
# Two possible groups are doubted from this distance of their medians on, if the gap between their nearest GPUs is this
# share of it. Without noise 2.8 % of nodes with half of the GPUs 5 % slower and 1 % of spread are excused; of healthy
# nodes with 1.5 % of spread, 91 %.
_GROUPS_APART, _GAP_OF_GROUPS = 0.035, 0.3
FEWEST_RANKS = 4  # each with three peers


def applies_to(case: Case) -> bool:
    """Whether a requirement is one on weak scaling, with limits that tell spread from faults."""
    limits = case.peers.computing, case.peers.nodes
    is_limited = limits[0] is not None and all(one is None or one <= MOST_EXCUSED for one in limits)
    return case.requirement.definition is WEAK_SCALING_EFFICIENCY and is_limited


def values_against_slowest(case: Case, study: Study, evidence: Evidence, values: Values[str]) -> Values[str] | None:
    """Weak scaling against the slowest GPU, at the places of `values`; None if no own pace was read.

    Args:
        case: to which this `applies_to`.
        study: that measured it.
        evidence: of the run.
        values: of weak scaling, not against the slowest.
    """
    pace, before = own_pace_of(study, evidence), study_before(study, evidence.plan.studies)
    if pace is None:
        return None
    known = evidence.once(("known before", study.id), lambda: _known_before(pace, before, evidence))
    numbers, samples = _read(groups_of(case.question, study, evidence), pace, known, case)
    return Values(values.scale, values.places, numbers, samples, broken=values.broken)


def _known_before(pace: OwnPace, before: Study | None, evidence: Evidence) -> FloatArray:
    """Mean of each rank's relative log before each of the rounds of its pace, and after them, (rounds + 1, ranks).

    Before the first round it is that of the study before; NaN where nothing is known.
    """
    relative = relative_logs(pace.times_s)
    told, none = ~np.isnan(relative), np.zeros((1, len(pace.ranks)))
    count = np.concatenate([none, np.cumsum(told, axis=0)])
    total = np.concatenate([none, np.cumsum(np.where(told, relative, 0.0), axis=0)])
    means = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    earlier = None if before is None else own_pace_of(before, evidence)
    if earlier is not None:
        last = _known_before(earlier, None, evidence)[-1]
        of_place = dict(zip(earlier.ranks.places, last.tolist(), strict=True))
        means[0] = [of_place.get(place, np.nan) for place in pace.ranks.places]
    return means


def _read(groups: Groups, pace: OwnPace, known: FloatArray, case: Case) -> tuple[IntArray, FloatArray]:
    """Numbers of the rounds, and values, (places, rounds)."""
    arms = Arms(groups.arms, case.world_size).paired
    measured, baseline, places = arms.measured, arms.baseline, [one.ranks.places for one in groups.merged]
    if not measured.seconds.size:
        return measured.numbers, np.full((len(groups.places), len(measured)), np.nan)
    own_s, at = own_pace_s(measured), groups.columns[-1]
    known = np.concatenate([known, np.full((len(known), 1), np.nan)], axis=1)  # of ranks without any
    before = known[np.searchsorted(pace.numbers, measured.numbers)][:, pace.columns(places[-1])[at]]
    before = np.where(np.isnan(own_s) | np.isnan(before), -np.inf, before)
    slowest = before.argmax(axis=-1)[..., np.newaxis]
    column = {place: number for number, place in enumerate(places[-1])}
    of_baseline = np.array([column.get(place, -1) for place in places[0]], np.int64)[groups.columns[0]]
    turns = np.where(baseline.present, of_baseline, -1).max(axis=-1, initial=-1)[..., np.newaxis]
    is_turn = at == np.where(turns < 0, -2, turns)
    values = measured.samples_per_s_per_gpu / baseline.samples_per_s_per_gpu
    of_slowest, of_turn = (
        np.take_along_axis(own_s, one, axis=-1)[..., 0] for one in (slowest, is_turn.argmax(axis=-1)[..., np.newaxis])
    )
    is_known = np.isfinite(before.max(axis=-1)) & is_turn.any(axis=-1)
    return measured.numbers, np.ascontiguousarray(np.where(is_known, values * of_slowest / of_turn, np.nan).T)


class _Shown(NamedTuple):
    """What the forward times of all ranks show of each place, (places,).

    Attributes:
        why_not: what is there beside spread, or cannot be excluded; else empty.
        why_open: what further rounds may exclude; else empty.
        slowest: its slowest GPU.
        behind: its forward time over the median of its peers', less 1.
    """

    why_not: Sequence[str]
    why_open: Sequence[str]
    slowest: Sequence[str]
    behind: FloatArray


def excuse_spread(judged: Judged, study: Study, own: Values[str]) -> None:
    """Make places that do not pass better, open again, or leave them as they are.

    A place passes if either interval clears the bound. It fails only if both are clear below it, or if the value
    against the slowest GPU does not count and the other is: without spread both are the same, so one below the bound
    and one above is noise.

    Args:
        judged: a requirement to which this `applies_to`, by the values that are not against the slowest GPU.
        study: that measured it.
        own: values against the slowest GPU, at the same places.
    """
    assert isinstance(judged.case, Case)
    if not np.isin(judged.codes, (OPEN, FAILED)).any():
        return
    limit, confidences = judged.case.peers.computing or 0.0, judged.found.confidences
    second = Judged(judged.blank, judged.case, judged.evidence, own, judged.limit)
    second.decide(own.estimated(confidences, judged.limit))
    are_looked_at = np.isin(judged.codes, (OPEN, FAILED)) & ~np.isin(second.codes, (ABSENT, IMPOSSIBLE))
    key = "spread", study.id, judged.case.id, judged.case.peers
    for place in np.flatnonzero(are_looked_at).tolist():
        before, (own_value, interval, _) = float(judged.found.values[place]), second.numbers(place)
        shown = judged.evidence.once(key, lambda: _find(judged, study, own))
        why_not, why_open, behind = shown.why_not[place], shown.why_open[place], float(shown.behind[place])
        against = AgainstSlowest(own_value, interval, shown.slowest[place], behind)
        value, code = f"{100 * own_value:.1f} % against the slowest GPU", int(second.codes[place])
        if code == FAILED:
            if judged.codes[place] == FAILED and not why_not:
                judged.reasons[place] = because("missed-by-the-slowest", judged.why(place), value)
                judged.against[place] = against
            continue
        if not why_open and own_value > before * (1 + limit):
            why_not = why_not or "it would excuse more than the limit of a GPU"
        if why_not:
            judged.note(place, because("text", f"not excused as spread: {why_not}"))
            continue
        judged.codes[place], judged.against[place] = OPEN if why_open else code, against
        judged.reasons[place] = because("text", f"{value}, not shown to be spread alone: {why_open}")
        if not why_open:
            judged.reasons[place] = because("of-places", value, second.why(place))
            for note in (note for note, at in second.notes.items() if place in at):
                judged.note(place, because("against-the-slowest", note))
        if judged.codes[place] == PASSED:
            judged.reasons[place] = because(
                "text",
                f"{value} keeps the bound; {100 * (own_value - before):.1f} points of the loss are the spread of "
                f"its GPUs: {shown.slowest[place]} is {100 * behind:.1f} % behind the median, limit "
                f"{100 * limit:.3g} %",
            )


def _find(judged: Judged, study: Study, own: Values[str]) -> _Shown:
    """What forward times, utilization and telemetry show; the first rule that holds for a place says it."""
    evidence, places, last = judged.evidence, len(own.places), last_round(judged.groups)
    assert isinstance(judged.case, Case)
    pace = own_pace_of(study, evidence, last)
    if pace is None or judged.groups is None:
        return _Shown(["no own pace was read"] * places, [""] * places, [""] * places, np.zeros(places))
    place, column = np.nonzero(judged.groups.arms[-1].present.any(axis=0))
    columns = judged.groups.columns[-1][place, column].tolist()
    who = [judged.groups.merged[-1].ranks.places[one] for one in columns]
    at, times_s = pace.columns(who), pace.times_s
    host = {name: number for number, name in enumerate(pace.ranks.by_host)}
    limit, nodes_limit = judged.case.peers.computing or 0.0, judged.case.peers.nodes or math.inf
    compared, group = compare(times_s, limit), find_slow_group(of_enough_rounds(times_s), limit)
    nodes, node = compare(pace.of_nodes_s, nodes_limit), [host.get(name, 0) for name, _ in who]
    is_group, are_nodes = median_over_rounds(group.ratio[:, np.newaxis])[0] >= 1 + limit, len(host) > 1

    def any_of(of_ranks: BoolArray) -> BoolArray:
        return np.bincount(place, of_ranks, places) > 0

    def most_of(ratio: FloatArray, pace: OwnPace) -> FloatArray:
        """That of the slowest GPU of each place, (places,)."""
        most = np.full(places, np.nan)
        np.fmax.at(most, place, np.append(ratio, np.nan)[pace.columns(who)])
        return most

    most = most_alone = most_of(compared.ratio, pace)
    for arm in (arm for arm in study.arms if arm.kind == "each"):
        alone = pace_in(study, arm, evidence, last)
        most_alone = most_of(compare(alone.times_s, limit).ratio, alone)
    lacking = ~np.isnan(judged.values.samples) & np.isnan(own.samples)
    (total, count), is_told = judged.sums(lambda one: one.least(one.reading("utilization"))), ~np.isnan(most)
    is_busy_known = (count >= SHARE_OF_ROUNDS * judged.values.rounds()) & (count > 0)
    rules = [
        (is_told & (len(pace.ranks) < FEWEST_RANKS), "its GPUs have too few peers"),
        (any_of(compared.low[at] > 1 + limit), f"a GPU is more than {100 * limit:.3g} % slower than its peers"),
        (any_of(find_slow_at_times(times_s, limit)[at]), "a GPU is far slower than its peers at times"),
        (is_told & is_group, "GPUs fall into two groups"),
        (is_told & are_nodes & math.isinf(nodes_limit), "nodes are not compared with each other"),
        (any_of(nodes.low[node] > 1 + nodes_limit), f"its node is more than {100 * nodes_limit:.3g} % slower"),
        (most > most_alone + _SMALLER_WAIT, "GPUs that compute alone differ less"),
        # Before the first round of all it is unknown which GPU is slowest.
        (lacking[:, 1:].any(axis=1), "forward times lack in some rounds"),
        (~is_busy_known, "it is unknown how busy its GPUs were, so forward times may contain waiting for the host"),
        (total < HOST_BOUND_UTILIZATION * count, "GPUs were idle at times: forward times may contain waiting"),
    ]
    if not evidence.goes_on:  # else telemetry is read after the measurement
        names = [*(arm.name for arm in reversed(judged.case.question.arms)), pace.arm.name]
        told = [evidence.once(("held down", study.id, one), partial(_held_down, study, one, evidence)) for one in names]
        measured = evidence.columns.arms[study.id, names[0]]
        rounds = dict(zip(measured.ranks.places, measured.present.sum(axis=0).tolist(), strict=True))
        unknown = [told[0][0].get(one, 0) < SHARE_OF_ROUNDS * rounds[one] for one in who]
        is_held = [any(one in held for _, held in told) for one in who]
        rules.append((any_of(np.array(unknown)), "heat and power of its GPUs are not known"))
        rules.append((any_of(np.array(is_held)), "a GPU was held down by heat, power supply or board"))
    is_unread = ~any_of(at >= 0) | any_of(at < 0)
    why_not = [(is_unread, "the own pace of some of its GPUs was not read")]
    why_not += [(where & is_told, said) for where, said in rules]
    apart = [bool(len(group.at)) or _groups_apart(times_s[:, at[place == one]]) for one in range(places)]
    why_open = [
        (~is_told, "the pace of its GPUs is not known yet"),
        (any_of(~compared.within[at]), f"not every GPU is certain to be within {100 * limit:.3g} % of its peers"),
        (np.array(apart), "its GPUs may be two groups"),
        (are_nodes & any_of(~(nodes.high[node] < 1 + nodes_limit)), "its node is not certain to be within theirs"),
    ]
    slowest = [""] * places
    for number in np.flatnonzero(np.append(compared.ratio, np.nan)[at] == most[place]).tolist():
        gpu = pace.ranks.rank_places[at[number]]
        slowest[place[number]] = f"{gpu.number} on {gpu.host}"
    return _Shown(_first(why_not, places), _first(why_open, places), slowest, np.nan_to_num(most, nan=1.0) - 1)


def _held_down(
    study: Study, name: str, evidence: Evidence
) -> tuple[Mapping[tuple[str, int], int], Collection[tuple[str, int]]]:
    """In how many rounds of an arm each GPU was polled, and which GPUs were held down in any."""
    told = evidence.telemetry.of_arm(study.id, name)
    is_polled = told.throttle_reasons.where(lambda reasons: reasons is not None)
    polled = Counter(told.places[number].of_rank for number in told.place[is_polled].tolist())
    return polled, {told.places[number].of_rank for number in np.unique(told.place[flags(told)["throttled"]])}


def _first(rules: Iterable[tuple[BoolArray, str]], places: int) -> list[str]:
    """What the first rule says that holds for each place; empty if none does."""
    found = [""] * places
    for where, said in rules:
        for place in np.flatnonzero(where).tolist():
            found[place] = found[place] or said
    return found


def _groups_apart(times_s: FloatArray) -> bool:
    """Whether GPUs may be two groups, (rounds, GPUs).

    Spread within the groups hides the gap between them from `peers.find_slow_group`, which accuses; this only doubts.
    So do its groups that are closer than the limit, of which ordinary spread makes some by chance.
    """
    usual = median_over_rounds(relative_logs(times_s))
    usual = np.sort(usual[~np.isnan(usual)])
    least = max(2, -(-len(usual) // 4))
    if len(usual) < 2 * least:
        return False
    gaps = np.diff(usual)[least - 1 : len(usual) - least]
    split = least + int(np.argmax(gaps))
    apart = float(np.median(usual[split:]) - np.median(usual[:split]))
    return bool(gaps.max() >= _GAP_OF_GROUPS * apart and apart >= np.log1p(_GROUPS_APART))
