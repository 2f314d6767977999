"""The verdict on uniformity: no GPU, node, or place of a probe is slower than its peers by more than their limit.

The rule is that of `peers`. All GPUs of the run that trained the workload are places that should be alike, by their own
pace; a node is the median of its GPUs. Of probes, whose times are the inverse of bandwidths, memory copies are compared
among all GPUs of the run, which are of one model. Host links and pairs of GPUs inside a node differ by position,
because of the host's topology, so their peers are the same local rank, or pair of local ranks, on the other nodes.

One place beyond the limit fails the requirement and is named, as certain unless half of those that should be alike or
more are beyond: then it is unknown which of them are normal. All must be within to pass, and all of the plan must be
measured; otherwise it is open. A GPU that is far slower in some of the rounds fails it, too, and GPUs that fall into
two groups farther apart than the limit leave it open, though most are within: the median is then a slow one's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pytest_ddpscale.judge.answer import Answer
from pytest_ddpscale.judge.links import name_probe_culprits
from pytest_ddpscale.judge.peers import (
    FEWEST_PEERS_OF_FAR,
    Compared,
    compare,
    described,
    find_slow_at_times,
    find_slow_group,
    medians_of_others,
    of_enough_rounds,
)
from pytest_ddpscale.judge.slow import OwnPace, arms_read, culprits_of, groups_text, pace_in
from pytest_ddpscale.judge.stats import FAILED, OPEN, PASSED
from pytest_ddpscale.judge.values import Values, why_incomplete
from pytest_ddpscale.plan.metric_catalogue import NODE_UNIFORMITY
from pytest_ddpscale.plan.operation import KINDS
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.plan.study import Study
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.place import Culprit, JudgedPlace, Place
from pytest_ddpscale.run.reason import Reason, because
from pytest_ddpscale.run.verdicts import PARTLY_KNOWN
from pytest_ddpscale.thresholds.cases import Case, NodeCase
from pytest_ddpscale.util.arrays import IntArray
from pytest_ddpscale.util.digits import percent
from pytest_ddpscale.util.listing import first_few


def answer_uniformity(answer: Answer, case: Case, study: Study, evidence: Evidence, due: int) -> Answer:
    """The answer on the uniformity of GPUs or of nodes.

    Args:
        answer: the blank one.
        case: a requirement of `reads_own_pace`.
        study: that trained its workload.
        evidence: of the run.
        due: number of rounds that were begun and timed the arm.
    """
    arm, layout = arms_read(case.question, study)[-1], evidence.plan.layout
    pace = pace_in(study, arm, evidence)
    if not len(pace.numbers):
        answer.reasons = [because("text", f"no complete round of {arm.name} in {study.id}")]
        return answer
    of_node = layout.ranks_per_node if layout.takes_turns(arm) else arm.world_size
    expected = layout.nodes * of_node if layout.fits_node(arm) else arm.world_size
    read = int((~pace.are_unread).sum())
    missing = None if read == expected else because("pace-unread", read, expected)
    if np.isnan(pace.times_s).all():
        answer.reasons = [missing] if missing else []
        return answer
    is_of_nodes, limit = case.requirement.definition is NODE_UNIFORMITY, case.requirement.bound - 1
    places = [f"{place.number} of {place.host}" for place in pace.ranks.rank_places]
    names, noun = (list(pace.ranks.by_host), "nodes") if is_of_nodes else (places, "GPUs")
    compared = compare(pace.of_nodes_s if is_of_nodes else pace.times_s, limit)
    if is_of_nodes:  # the median of a node whose GPU is missing is another one's
        rounds = (~np.isnan(pace.times_s)).sum(axis=0)
        least_of_nodes = np.array([rounds[at].min() for at in pace.ranks.by_host.values()])
        is_whole = least_of_nodes >= rounds.max() - layout.takes_turns(arm)
        compared = replace(compared, beyond=compared.beyond & is_whole, within=compared.within & is_whole)
    answer = _answer_on_places(answer, compared, names, noun, missing, limit)
    least = int(compared.rounds[compared.rounds > 0].min(initial=due))
    if answer.outcome in ("passed", "failed") and least < due:
        answer.outcome, answer.reasons = "inconclusive", [because("incomplete-rounds", least, due)]
        return answer
    if answer.outcome == "not_measured" or int(compared.rounds.max()) < FEWEST_ROUNDS:
        return answer
    if not is_of_nodes:
        _add_slow_ranks(answer, pace, compared, limit, places)
        return answer
    beyond = np.flatnonzero(compared.beyond) if answer.outcome == "failed" else np.zeros(0, np.int64)
    for at in beyond[np.argsort(-compared.ratio[beyond], kind="stable")].tolist():
        ratio = float(compared.ratio[at])
        why = because("text", f"{ratio:.2f}× the median of {compared.peers[at]} peers by its own pace")
        is_certain = 2 * len(beyond) < len(names)
        answer.culprits.append(Culprit("node", (Place(names[at]),), why, is_certain, slowdown=ratio))
    return answer


def _add_slow_ranks(answer: Answer, pace: OwnPace, compared: Compared, limit: float, places: Sequence[str]) -> None:
    """Name the GPUs beyond the limit, those that are slow at times, and two groups of GPUs."""
    times_s, ratio, peers = pace.times_s, compared.ratio, compared.peers
    logs, group = np.log(times_s / medians_of_others(times_s)), find_slow_group(of_enough_rounds(times_s), limit)
    reasons, at_times = [*answer.reasons], find_slow_at_times(times_s, limit)
    if len(group.at) and (answer.outcome != "passed" or np.median(group.ratio) >= 1 + limit):
        reasons = [*reasons[: answer.outcome != "passed"], because("text", groups_text(pace.ranks, group))]
    if answer.outcome == "failed":
        beyond, line = compared.beyond, np.log1p((ratio - 1) / 2)
        are_certain = np.broadcast_to(2 * max(beyond.sum(), len(group.at)) < len(beyond), beyond.shape)
        found = described(logs, ratio, np.flatnonzero(beyond), are_certain, peers, line)
        found = found._replace(slowdown=found.ratio)
    elif at_times.any() and (peers[at_times] >= FEWEST_PEERS_OF_FAR).all():
        found = described(logs, ratio, np.flatnonzero(at_times), at_times, peers, np.log1p(limit) / 2)
        answer.outcome, answer.value, answer.interval = "failed", float(found.slowdown[0]), None
        answer.place = place = places[found.at[0]]
        more = f" (and {len(found.at) - 1} more)" if len(found.at) > 1 else ""
        said = f"{place} is slow at times{more}: {culprits_of(pace.ranks, found)[0].because.args[0]}"
        reasons = [because("text", said)]
    elif reasons == answer.reasons:
        return
    else:  # the median of others lies in the larger group, or between both, of which either may be the normal one
        found, answer.outcome = group._replace(are_certain=np.zeros_like(group.are_certain)), "inconclusive"
    answer.reasons, answer.culprits = reasons, culprits_of(pace.ranks, found)


def _answer_on_places(
    answer: Answer, compared: Compared, places: Sequence[str], noun: str, missing: Reason | None,
    limit: float, due: int = 0,
) -> Answer:  # fmt: skip
    """The answer of the comparison, without culprits; value and interval are those of the worst place.

    Args:
        answer: the blank one.
        compared: the places.
        places: their names, (places,).
        noun: what they are, in the plural.
        missing: why not all of the plan was measured; None if it was.
        limit: by which a place may be slower, 0.05 for 5 %.
        due: number of rounds without which a place is undecided.
    """
    ratio, rounds, least = compared.ratio, int(compared.rounds.max()), int(compared.rounds.min())
    if np.isnan(ratio).all() or rounds < FEWEST_ROUNDS:
        answer.outcome, answer.rounds = "inconclusive", rounds
        answer.reasons = [because("few", rounds)]
        return answer
    is_enough = compared.rounds >= max(FEWEST_ROUNDS, due)
    beyond, within = compared.beyond & is_enough, compared.within & is_enough
    if missing and not beyond.any():
        answer.reasons = [missing] if missing else []
        return answer
    deciding = beyond if beyond.any() else ~np.isnan(ratio)
    worst = int(np.argmax(np.where(deciding, ratio, -np.inf)))
    answer.value, answer.interval = float(ratio[worst]), (float(compared.low[worst]), float(compared.high[worst]))
    answer.rounds, answer.place = least, places[worst]
    are, its = ("are", "their") if noun == "pairs" else ("is", "its")
    whom = f"{places[worst]} {are} {ratio[worst]:.3f}× the median of {its} {compared.peers[worst]} peers"
    if beyond.any():
        others = [places[at] for at in np.flatnonzero(beyond).tolist() if at != worst]
        more = f" (so are {first_few(others)})" if others else ""
        is_partly_known = missing or (~compared.beyond & ~compared.within).any()
        reason = f"{whom}{more}, certainly more than {percent(limit)} slower"
        answer.outcome, answer.flags = "failed", [PARTLY_KNOWN] if is_partly_known else []
    elif within.all():
        answer.outcome, reason = "passed", f"each of {len(places)} {noun} is within {percent(limit)} of its peers"
    else:
        undecided = first_few([places[at] for at in np.flatnonzero(~within).tolist()])
        few = f"; only {least} of {due} rounds are complete" if least < due else ""
        reason = f"not certain to be within {percent(limit)} of their peers: {undecided}; {whom}{few}"
        answer.outcome = "inconclusive"
    answer.reasons = [because("text", reason)]
    return answer


def answer_probe_uniformity(
    answer: Answer, case: NodeCase, values: Values[JudgedPlace], evidence: Evidence, due: int
) -> Answer:
    """The answer on the places of a probe.

    Culprits are found as for a bound (`links`).

    Args:
        answer: the blank one.
        case: a requirement of `compares_places`.
        values: of its probe, in the unit of the probe's own metric; larger is faster.
        evidence: of the run.
        due: number of rounds that were begun and timed the probe.
    """
    assert case.probe is not None
    missing, there = why_incomplete(case.probe, values, evidence), np.flatnonzero(values.rounds() > 0)
    if not len(there):
        answer.reasons = [missing] if missing else []
        return answer
    places, bandwidths = [values.places[at] for at in there.tolist()], values.samples[there]
    positions, limit = _positions(case, places), case.requirement.bound - 1
    compared = compare(
        np.divide(1, bandwidths, where=bandwidths > 0, out=np.full(bandwidths.shape, np.nan)).T, limit, positions
    )
    names = [place.name for place in places]
    answer = _answer_on_places(answer, compared, names, places[0].noun, missing, limit, due)
    if answer.outcome != "failed":
        return answer
    is_enough = compared.rounds >= due
    codes = np.select([compared.beyond & is_enough, compared.within & is_enough], [FAILED, PASSED], OPEN)
    name_probe_culprits(answer, case.probe, places, codes, np.nanmedian(bandwidths, axis=1), evidence)
    if not (2 * np.bincount(positions, compared.beyond) < np.bincount(positions)).all():
        answer.culprits = [replace(one, is_certain=False) for one in answer.culprits]
    return answer


def _positions(case: NodeCase, places: Sequence[JudgedPlace]) -> IntArray:
    """The same number for places that should be alike, (places,)."""
    assert case.probe is not None
    if KINDS[case.probe.operation.kind].peers == "memory":
        return np.zeros(len(places), np.int64)
    ends = np.array([[end.of_rank[1] for end in one.ends] or [0] for one in places], np.int64)
    return np.unique(ends, axis=0, return_inverse=True)[1].reshape(-1)
