"""Sentences of all reasons: an entry for each code, with its arguments in order.

An entry is a template, or a function where words depend on the arguments. An argument that is a reason is said, too;
of a tuple of texts the first few are listed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from pytest_ddpscale.judge.stats import FAR
from pytest_ddpscale.plan.metric_catalogue import METRICS
from pytest_ddpscale.plan.operation import KINDS
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.run.reason import Reason
from pytest_ddpscale.run.verdicts import Verdict
from pytest_ddpscale.util.digits import percent
from pytest_ddpscale.util.listing import first_few

Entry: TypeAlias = str | Callable[..., str]


def said(reason: Reason) -> str:
    """The sentence, without a full stop."""
    entry, args = SENTENCES[reason.code], map(_said, reason.args)
    return entry.format(*args) if isinstance(entry, str) else entry(*args)


def _said(arg: Any) -> Any:
    if isinstance(arg, Reason):
        return said(arg)
    if isinstance(arg, tuple | list):
        return Listed(map(_said, arg))
    return arg


class Listed(list[Any]):
    """Arguments of which a sentence lists the first few."""

    def __format__(self, _spec: str) -> str:
        return first_few(self)


def worded(verdict: Verdict) -> Verdict:
    """The verdict with the sentences of its reasons, where they are not written yet."""
    notes = dict.fromkeys((*verdict.notes, *map(said, verdict.remarks)))
    culprits = (replace(one, evidence=one.evidence or said(one.because)) for one in verdict.culprits)
    reason = verdict.reason or (said(verdict.because) if verdict.because else "")
    return replace(verdict, reason=reason, notes=tuple(notes), culprits=tuple(culprits))


def _drift(change: float, is_share: bool, rounds: int) -> str:
    text = percent(change, 1, signed=True) if is_share else f"{change:+.3g}"
    return f"not steady: {text} from the first to the last third of {rounds} rounds; judged as if this continued"


def _written(value: float, unit: str) -> str:
    return percent(value, 1) if unit == "fraction" else f"{value:.4g} {unit}"


def _node_alone(metric: str, value: float, unit: str, others: int, median: float) -> str:
    whom = "the other node" if others == 1 else f"the median of {others} other nodes"
    beside = f"; {whom} is {_written(median, unit)}" if others else ""
    return f"{metric} {_written(value, unit)} on this node alone{beside}"


def _one_of(name: str, planned: int, noun: str, why: str, outcome: str, others: Listed) -> str:
    more = f" ({outcome} too: {others})" if others else ""
    return f"{name}, one of {planned} {noun}: {why}{more}"


def _nodes_missing(there: Listed, planned: int, absent: Listed, whys: Listed) -> str:
    names = f" ({there})" if there else ""
    lost = f"; {absent} {'is' if len(absent) == 1 else 'are'} missing" if absent else ""
    why = f": {'; '.join(sorted(set(whys)))}" if whys else ""
    return f"measured on {len(there)} of {planned} nodes{names}{lost}{why}"


def _and(them: Listed) -> str:
    return " and ".join(map(str, them))


def _misses(requirement: str, failed: int, of: int, noun: str, value: float, kind: str, others: float | None) -> str:
    name, unit = requirement.partition("[")[2].removesuffix("]"), METRICS[KINDS[kind].metric].unit
    what = name if of == 1 else f"{failed} of its {of} {noun} fail {name}, the worst"
    beside = f"the median of all others is {others:.4g} {unit}" if others is not None else "no other to compare with"
    return f"{what} at {value:.4g} {unit}; {beside}"


def _unlike(blocks: int, is_seeded: bool, is_certain: bool) -> str:
    whom = "from most of the ranks" if is_certain else "between the ranks"
    said = [f"parameters differ {whom} in {blocks} block{'s' * (blocks > 1)}"] * (blocks > 0)
    said += [f"gradients of one seeded step, each computed alone, differ {whom}"] * is_seeded
    return "; ".join([*said, *["it is unknown which is right"] * (not is_certain)])


def _of(some: int, all_: int) -> str:
    return f"{some} of {all_} requirement{'' if all_ == 1 else 's'}"


def _met(passed: int, required: int, waived: int, warned: int) -> str:
    count = f"{_of(passed, required)} {'met' if waived else 'passed'}"
    return count + (f", {waived} waived" if waived else "") + (f", {warned} warned" if warned else "")


def _pairs_missing(met: str, missing: int, planned: int, why: str) -> str:
    what = f"{missing} of {planned} pairs of nodes not measured with each other"
    return (
        f"{met}, but {what if missing else 'the search for a slow node or link did not end'}{f': {why}' if why else ''}"
    )


def _unseen_loss(smallest_fault: float | None, is_speed_asked: bool) -> str:
    unseen = "has to be of an unknown size to be seen in training"
    if smallest_fault is not None:
        unseen = f"up to {percent(smallest_fault)} is not seen in training"
    elif not is_speed_asked:
        unseen = "is not rejected in training, whatever its size"
    return (
        f"no bound close to a published training speed of this GPU: a loss of all devices alike {unseen}; calibrate "
        "(`ddpscale calibrate`)"
    )


def _not_read(metric: str, *first: str) -> str:
    where = ": {} on {}: {}".format(*first) if first else ""
    return f"{metric} could not be read on every rank{where}"


def _places_missing(there: int, expected: int, noun: str, absent: Listed, unseen: Listed) -> str:
    ranks = Listed(f"rank {' to '.join(map(str, dict.fromkeys(ends)))}" for ends in absent)
    no_results = f" (no results from {unseen})" if unseen else ""
    return f"measured on {there} of {expected} {noun}; {ranks} missing{no_results}"


_MOST_SHOWN = 8  # hosts or ranks of a group that are listed
_UNREPEATED = "{} of {} ranks got another result when they repeated the seeded step of {}"
_ANY: Mapping[str, Entry] = {
    "text": "{}",  # said elsewhere
    "also": "also: {}",
    "all": lambda reasons: "; ".join(reasons),
    "budget-spent": "--ddp-budget ran out before this was decided",
    "host-bound": "host-bound",
    "implausible": "implausible",
    "judged-from": "judged from {} without a new measurement",
    "of-places": "{}: {}",
}
_STATS: Mapping[str, Entry] = {
    "kept": "the whole interval keeps the bound",
    "missed": "the whole interval misses the bound",
    "inside": "the bound lies inside the interval",
    "far": f"no round comes within a factor of {FAR:g} of the bound",
    "early": "not final after {} of {} rounds: a trend within the noise or one odd round may still cross the bound",
    "varied": "{} rounds vary too much for an interval",
    "few": f"{{}} rounds; expected at least {FEWEST_ROUNDS}",
    "unsure": "{} rounds are too few for a confidence of {:g}",
    "impossible": "an impossible value was measured: {1}",
    "single-value": "one imported value: it has no interval of its own",
    "single-sample": "one imported sample: the interval comes from the standard deviation of its steps, taken as "
    "independent",
    "drift": _drift,
}
_VALUES: Mapping[str, Entry] = {
    "not-planned": "{} scaling of {} was not measured in this run",
    "not-probed": "{} was not probed in this run",
    "planned-differently": lambda *differences: (
        "measured differently: " + "; ".join(f"{field} {one}, required {other}" for field, one, other in differences)
    ),
    "broke": "{}",
    "interrupted": "{}",
    "one-node": "needs at least 2 nodes to spread ranks over; this run had one",
    "no-round": "no complete round of {} ranks in {}",
    "no-round-of": "no complete round of {}",
    "no-baseline": "{} has no complete round of the arm {} to compare with",
    "not-read": _not_read,
    "unsupported": "{} could not be done: {}",
    "places-missing": _places_missing,
}
_JUDGED: Mapping[str, Entry] = {
    "perhaps-chance": "{}, but on one of {} {} this may be chance",
    "more-may-fail": "more rounds may fail further {}: undecided on {}",
    "one-of": _one_of,
    "lowest-of": "{}, the lowest of {} {}: {}",
    "kept-on-each": "{} on each of {} {}; {} is nearest to it",
    "nodes-missing": _nodes_missing,
    "node-alone": _node_alone,
    "most-fail-alike": lambda failed, planned, noun: (
        f"{failed} of {planned} {noun} fail alike: is the bound right? This names no {noun[:-1]} for certain"
    ),
}
_CAVEATS: Mapping[str, Entry] = {
    "incomplete-rounds": "only {} of {} rounds are complete; the others could change the result",
    "incredible": lambda value, limit: (
        f"implausible: {value:.3g} is {'more' if value > limit else 'less'} than {limit:g}; the measurement or its "
        "baseline was disturbed"
    ),
    "beyond-peak": "implausible: {:.4g} {} is more than {}",
    "impossible-pace": "implausible: {:.4g} {}/s of a rank in {} are more than {}",
    "of-data-sheet": "the {:.4g} of the data sheet",
    "of-cores": "{} CPU cores can compute",
    "of-any-hardware": "any hardware reaches ({:g})",
    "of-peak": "a peak of {:.4g} TFLOPS allows",
    "waits-for-host": lambda busy, least, batch, gpus: (
        f"host-bound: GPUs were {percent(busy)} busy (below {percent(least)}); a global batch of {batch} is too small "
        f"for {gpus} GPUs, so this result means nothing"
    ),
    "skipped-steps": "loss scaling skipped {:.0f} of {:.0f} optimizer steps",
    "other-training": "{}: the rest is not the training that was to be measured",
    "scaled-from-slow": "{} of its ranks are slow without communication ({}); good scaling relative to slow ranks is "
    "no pass",
    "power-unknown": "power unknown: utilization could not be cross-checked",
}


def _whom(peers: int) -> str:
    return "the time of its only peer" if peers == 1 else f"the median of {peers} peers"


def _doubt(is_odd: bool, explains: bool) -> str:
    odd = "" if is_odd else "; either may be the odd one"
    return odd if explains else f"{odd}; too little to explain the failure"


def _slow_rank(
    slowdown: float, peers: int, times: int, rounds: int, is_always: bool, is_last: bool, is_odd: bool, explains: bool
) -> str:  # fmt: skip
    when = f"{times} of {rounds} rounds"
    if not is_always:
        when = f"the last {when}" if is_last else f"{when} ({percent(times / rounds)})"
    return f"{slowdown:.2f}× {_whom(peers)} in {when}{_doubt(is_odd, explains)}"


_SLOW: Mapping[str, Entry] = {
    "slow-alone": lambda kind, number, host, more, why: (
        f"{f'{number} on {host}' if kind == 'gpu' else f'host {host}'}{f' and {more} more' if more else ''} "
        f"{'are' if more else 'is'} slow even without communication ({why})"
    ),
    "slow-ranks": lambda count, ratio, is_odd, explains: (
        f"all {count} ranks slow, {ratio:.2f}× the median of their peers{_doubt(is_odd, explains)}"
    ),
    "slow-rank": _slow_rank,
    "two-groups": lambda *groups_apart: (
        "two groups of ranks: {} and {}, {:.2f}× apart even without communication".format(
            *(first_few([*map(str, one)], _MOST_SHOWN) for one in groups_apart[:-1]), groups_apart[-1]
        )
    ),
    "less-busy": lambda own, peers, median: f"{percent(own)} busy; the median of {peers} peers is {percent(median)}",
    "on-host": "{} on {}, {}",
    "stands-out": lambda ratio, low, high, peers: f"{ratio:.2f}× ({low:.2f} … {high:.2f}×) {_whom(peers)}",
    "look-at": lambda ranks: (
        f"look at {first_few(ranks, separator='; ')}: slower without communication, not clearly enough to be named by "
        "that"
    ),
    "slow-at-times": lambda ranks: f"slow at times: {first_few(ranks, separator='; ')}",
    "no-own-pace": "no own pace in {} rank blocks of {} of {}, the first of rank {} on {}: {}",
}
_UNIFORMITY: Mapping[str, Entry] = {
    "no-own-round": "no complete round of {} in {}",
    "pace-unread": "own pace timed in every round on {} of {} GPUs",
    "node-by-own-pace": "{:.2f}× the median of {} peers by its own pace",
    "gpu-slow-at-times": lambda place, others, why: (
        f"{place} is slow at times{f' (and {others} more)' if others else ''}: {why}"
    ),
    "of-peers": lambda place, noun, ratio, peers: (
        f"{place} {'are' if noun == 'pairs' else 'is'} {ratio:.3f}× the median of "
        f"{'their' if noun == 'pairs' else 'its'} {peers} peers"
    ),
    "beyond-peers": lambda worst, others, limit: (
        f"{worst}{f' (so are {others})' if others else ''}, certainly more than {percent(limit)} slower"
    ),
    "within-peers": lambda count, noun, limit: f"each of {count} {noun} is within {percent(limit)} of its peers",
    "perhaps-beyond": lambda limit, places, worst: (
        f"not certain to be within {percent(limit)} of their peers: {places}; {worst}"
    ),
}
_SPREAD: Mapping[str, Entry] = {
    "missed-by-the-slowest": lambda why, value: f"{why}; {100 * value:.1f} % against the slowest GPU does, too",
    "against-the-slowest": "against the slowest GPU {}",
    "by-the-slowest": lambda value, why: f"{100 * value:.1f} % against the slowest GPU: {why}",
    "not-excused": "not excused as spread: {}",
    "perhaps-spread": lambda value, why: (
        f"{100 * value:.1f} % against the slowest GPU, not shown to be spread alone: {why}"
    ),
    "spread-excused": lambda value, before, slowest, behind, limit: (
        f"{100 * value:.1f} % against the slowest GPU keeps the bound; {100 * (value - before):.1f} points of the loss "
        f"are the spread of its GPUs: {slowest} is {100 * behind:.1f} % behind the median, limit {100 * limit:.3g} %"
    ),
    "pace-not-read": "the own pace of some of its GPUs was not read",
    "few-peers": "its GPUs have too few peers",
    "gpu-beyond": lambda limit, _: f"a GPU is more than {100 * limit:.3g} % slower than its peers",
    "gpu-at-times": "a GPU is far slower than its peers at times",
    "gpus-in-groups": "GPUs fall into two groups",
    "nodes-not-compared": "nodes are not compared with each other",
    "node-beyond": lambda _, limit: f"its node is more than {100 * limit:.3g} % slower",
    "alike-alone": "GPUs that compute alone differ less",
    "forward-lacking": "forward times lack in some rounds",
    "busy-unknown": "it is unknown how busy its GPUs were, so forward times may contain waiting for the host",
    "idle-at-times": "GPUs were idle at times: forward times may contain waiting",
    "heat-unknown": "heat and power of its GPUs are not known",
    "held-down": "a GPU was held down by heat, power supply or board",
    "excuses-too-much": "it would excuse more than the limit of a GPU",
    "pace-unknown": "the pace of its GPUs is not known yet",
    "gpu-open": lambda limit, _: f"not every GPU is certain to be within {100 * limit:.3g} % of its peers",
    "perhaps-groups": "its GPUs may be two groups",
    "node-open": "its node is not certain to be within theirs",
}
_LINKS: Mapping[str, Entry] = {
    "slow-at": lambda faults: f"communication is slow at {_and(faults)}",
    "slow-node-of-pairs": "node {} ({})",
    "slow-link-of-pairs": "the link between {} and {} ({})",
    "slow-pairs": lambda gbps, usual, count, ranks: (
        f"{f'only local rank {_and(ranks)}: ' if ranks else ''}{gbps:.3g} GB/s, others reach {usual:.3g} GB/s "
        f"({count} measurements)"
    ),
    "stalls": "messages stall, as after a lost packet, in {} of {} pairs with it and {} of {} pairs without it",
    "misses": _misses,
    "gpu-or-its-links": "{}: the GPU or its own links are at fault",
    "gpu-or-these-links": "{}: the GPU or these links are at fault",
    "all-may-be-slow": lambda misses, limit: f"{misses}; within {100 * limit:.3g} % of it, so all may be slow",
    "wrong-results": "{} wrong data in {} of {} rounds",
    "gpu-not-links": "moved wrong data with {} others: the GPU is at fault, not its links",
    "wrong-data": "{} wrong data, as seen by {} ({} of {} rounds)",
    "unasked-wrong-data": "wrong data in the probe {}, as seen by {} ({} of {} rounds)",
}
_AGREEMENT: Mapping[str, Entry] = {
    "results-differ": "{}: results differ from those of other ranks",
    "unlike-others": _unlike,
    "speed-does-not-count": "{} (see {}); speed does not count",
    "unrepeated": f"{_UNREPEATED}, and no other study compared what each rank computes by itself",
    "repeated-elsewhere": f"{_UNREPEATED}: the model has no deterministic kernels; what each rank computes was "
    "compared in other studies",
}
_COVERAGE: Mapping[str, Entry] = {}
_DEVICES: Mapping[str, Entry] = {"low-utilization": "low utilization: {}"}
_CHECKS: Mapping[str, Entry] = {
    "without-gpu": "{}: does not apply without a GPU",
}
_OUTCOME: Mapping[str, Entry] = {
    "unmet": lambda judged, what, found: f"{_of(len(found), judged)} {what}: {found}",
    "interrupted-after": lambda judged, required: f"interrupted after {_of(judged, required)}",
    "nothing-judged": "no requirement was judged",
    "met": _met,
    "not-selected": "{}; {} not selected",
    "nothing-to-accept": "{}: there is nothing to accept",
    "unpublished": "not decidable without site bounds: {} (no published bound covers all devices; calibration takes "
    "runs of 3 trusted nodes or more, better 10)",
    "missed-between": "{}, but between nodes a bound is missed: {}. Find the fault, or calibrate the bound: put the "
    "value of a healthy cluster into the thresholds file",
    "undecided-between": lambda met, found: f"{met}, but {len(found)} undecided between nodes: {found}",
    "none-between": "{}, but none between nodes: no requirement on speed was met by all {} nodes together",
    "provisional-between": "{}; between nodes: provisional bounds",
    "wrong-probe": "{}, but {}, on which no requirement is judged",
    "silent-gpu": "{1} ({0})",
    "lost-host": "{1} was lost while measuring: {2} ({0})",
    "spoiled": "tests skipped, or failed otherwise: {}",
    "nodes-absent": lambda met, absent, nodes: f"{met}, but {len(absent)} of {nodes} nodes not tested: {absent}",
    "slow-link": "{}, but communication is slow at {}",
    "simulated": "simulated: no machine was measured ({})",
    "idle-gpus": lambda met, idle, gpus: f"{met}, but none of them tested {len(idle)} of {gpus} GPUs: {idle}",
    "pairs-missing": _pairs_missing,
    "waiver-not-needed": "{}: not needed",
    "waives-failures-only": "{}: not applied, only a failure can be waived",
    "waiver-ended": "waiver by {} ended {}",
    "never-waives-wrong-data": "{}: not applied, wrong data cannot be waived",
    "never-waives-unknown": "{}: not applied, other places are open or not measured",
    "never-waives-between-nodes": "{}: not applied, a result between nodes cannot be waived",
    "unseen-loss": _unseen_loss,
}
_REPORT: Mapping[str, Entry] = {
    "not-measured-with-peers": lambda rounds: f"not measured in {rounds} round{'s' * (rounds != 1)} of its peers",
}
SENTENCES: Mapping[str, Entry] = {
    **_ANY, **_STATS, **_VALUES, **_JUDGED, **_CAVEATS, **_SLOW, **_UNIFORMITY, **_SPREAD, **_LINKS, **_AGREEMENT,
    **_COVERAGE, **_DEVICES, **_CHECKS, **_OUTCOME, **_REPORT,
}  # fmt: skip
