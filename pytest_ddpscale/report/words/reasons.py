"""Sentences of all reasons: an entry for each code, with its arguments in order.

An entry is a template, or a function where words depend on the arguments. An argument that is a reason is said, too;
of a tuple of texts the first few are listed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from pytest_ddpscale.judge.stats import FAR
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
_SLOW: Mapping[str, Entry] = {
    "no-own-pace": "no own pace in {} rank blocks of {} of {}, the first of rank {} on {}: {}",
}
_UNIFORMITY: Mapping[str, Entry] = {
    "pace-unread": "own pace timed in every round on {} of {} GPUs",
}
_SPREAD: Mapping[str, Entry] = {
    "missed-by-the-slowest": "{}; {} does, too",
    "against-the-slowest": "against the slowest GPU {}",
}
_LINKS: Mapping[str, Entry] = {}
_AGREEMENT: Mapping[str, Entry] = {
    "results-differ": "{}: results differ from those of other ranks",
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
_RUN: Mapping[str, Entry] = {
    "other-hosts": "studies were measured on different hosts: {} on {}, {} on {}",
    "other-devices": "studies were measured on different devices: {} and {} differ in {}",
    "other-software": "{0} were measured with different software: {1} with {2} {3}, {4} with {2} {5}",
    "not-surveyed": "measured on {}, but the surveyed nodes are {}",
    "sessions": "measured in {} sessions: resumed {}",
    "measured-again": "measured again when resumed (earlier attempts: superseded.jsonl): {}",
    "other-thresholds": "judged by another thresholds file than at the start, whose bounds decided when studies ended",
}
SENTENCES: Mapping[str, Entry] = {
    **_ANY, **_STATS, **_VALUES, **_JUDGED, **_CAVEATS, **_SLOW, **_UNIFORMITY, **_SPREAD, **_LINKS, **_AGREEMENT,
    **_COVERAGE, **_DEVICES, **_CHECKS, **_OUTCOME, **_REPORT, **_RUN,
}  # fmt: skip
