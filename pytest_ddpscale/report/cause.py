"""Causes that keep a machine from being accepted, each once, and the headline of every report.

A device explains a failure only if the verdict is certain of that device, or of its node where a slow rank makes the
metric worse or both computed wrong data. Each remaining failure is a cause of its own.
"""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pytest_ddpscale.plan.metric_catalogue import METRICS, PAIR_BANDWIDTH_GBPS, RANK_UNIFORMITY
from pytest_ddpscale.report import digits, text
from pytest_ddpscale.report.cause_ids import category_of, drained, id_of_device, id_of_verdict, subject_of
from pytest_ddpscale.report.cause_kinds import CAUSES
from pytest_ddpscale.report.missing_gpus import missing_gpus
from pytest_ddpscale.report.unmet import explained_text
from pytest_ddpscale.report.words.reasons import said
from pytest_ddpscale.run.verdicts import (
    WRONG_DATA,
    Blocker,
    Category,
    CauseId,
    Culprit,
    Judgement,
    Verdict,
)
from pytest_ddpscale.util.listing import first_few

_LONGEST_HEADLINE = 300
_LONGEST_REASON = 120  # in a sentence that names suspects after it
_Who = tuple[Any, ...]  # kind, host and GPU, those of the other end
_Found = list[tuple[Culprit, Verdict]]


@dataclass(frozen=True)
class Cause:
    """One thing that explains some of the blockers.

    Attributes:
        id: a key of `CAUSES`.
        sentence: who or what, in numbers, without a full stop.
        explains: names of the blockers that it explains.
        culprits: the devices named for it, the most certain first; empty if no device is to blame.
        category: ``ISOLATE``, ``CHECK``, or ``MONITOR`` if it only warns.
    """

    id: CauseId
    sentence: str
    explains: frozenset[str]
    culprits: tuple[Culprit, ...] = ()
    category: Category = "CHECK"

    @property
    def severity(self) -> int:
        """1, the worst, to 6."""
        return CAUSES[self.id].severity


def causes(judgement: Judgement) -> tuple[Cause, ...]:
    """All causes of failures, then of undecided requirements; at least one explains each blocker.

    Within each, the most severe come first; of equally severe ones those with a culprit, then errors, then those that
    explain most.
    """
    if not _LATEST or _LATEST[0][0] is not judgement:
        _LATEST[:] = [(judgement, _causes(judgement))]
    return _LATEST[0][1]


# Each report asks for the causes of the same judgement; those of thousands of culprits take a second.
_LATEST: list[tuple[Judgement, tuple[Cause, ...]]] = []


def _causes(judgement: Judgement) -> tuple[Cause, ...]:
    blocking = [verdict for verdict in judgement.verdicts if judgement.is_blocked_by(verdict)]
    missing = missing_gpus(judgement)
    named = [*_of_devices(blocking, missing), *_of_missing_gpus(missing, blocking)]
    explained = frozenset[str]().union(*(cause.explains for cause in named))
    left = [verdict for verdict in blocking if verdict.id not in explained]
    unnamed = [*_of_other_blockers(judgement), *_of_nobody(left, judgement)]
    failed = {verdict.id for verdict in blocking if verdict.outcome == "failed"}
    errors = {verdict.id for verdict in blocking if verdict.outcome == "error"}  # why others have no data
    in_order = [
        *sorted(named, key=_weight),
        *sorted(unnamed, key=lambda one: (errors.isdisjoint(one.explains), _weight(one))),
    ]
    in_order = sorted(in_order, key=lambda one: (failed.isdisjoint(one.explains), one.severity))
    at_fault = drained(judgement)
    return tuple(replace(one, category=category_of(one.id, one.culprits, at_fault)) for one in in_order)


def warnings(judgement: Judgement) -> tuple[Cause, ...]:
    """Devices that certainly miss bounds that only warn and cause nothing else; those with most misses first."""
    missed = [one for one in judgement.verdicts if one.outcome == "failed" and not one.is_waived]
    found = _of_devices([one for one in missed if not judgement.is_blocked_by(one)], {})
    told = {culprit.identity for cause in causes(judgement) for culprit in cause.culprits if culprit.is_certain}
    left = [one for one in found if told.isdisjoint(culprit.identity for culprit in one.culprits)]
    return tuple(sorted((replace(one, category="MONITOR") for one in left), key=_weight))


def warning_text(cause: Cause) -> str:
    """``warning: GPU 3 (GPU-4f1c…) on node7 is 1.20× slower … (3 requirements that only warn)``."""
    count = text.count_text(len(cause.explains), "requirement that only warns", "requirements that only warn")
    return f"warning: {cause.sentence} ({count})"


def _weight(cause: Cause) -> tuple[int, int, float]:
    """Sort key: severity, then how much a cause explains, then slowdown."""
    slowdown = max((one.slowdown or 0.0 for one in cause.culprits), default=0.0)
    return cause.severity, -len(cause.explains), -slowdown


def headline(judgement: Judgement) -> str:
    """``REJECTED: GPU 3 (GPU-4f1c…) on node7 is 1.20× slower … (21 of 22 failures; 1 more cause below)``.

    It has at most 300 characters unless the site changed very much. If nothing blocks acceptance, it says how much is
    met. If no cause names a device, it adds one that certainly misses a warning bound.
    """
    found = causes(judgement)
    if not found or judgement.accepts or judgement.outcome == "partial":
        # The reason of a partial run has the number already.
        told = text.outcome_text(judgement)
        rest = _left_out(judgement) if judgement.outcome != "partial" else []
        warned = _first_warning(judgement)
    else:
        told, rest = (
            f"{text.outcome_word(judgement.outcome)}: ",
            [*_left_out(judgement), *text.changes_by_site(judgement)],
        )
        is_any_left = len(judgement.blockers) > 1
        counts = [explained_text(found[0].explains, judgement, only_worst=True)] if is_any_left else []
        counts += [f"{text.count_text(len(found) - 1, 'more cause')} below"] if len(found) > 1 else []
        counted = f" ({'; '.join(counts)})" if counts else ""
        room = _LONGEST_HEADLINE - len("; ".join([told + counted, *rest]))
        told += _up_to_a_clause(found[0].sentence, room) + counted
        warned = [] if any(cause.culprits for cause in found) else _first_warning(judgement)
    if f"{judgement.not_selected} not selected" in told:  # some reasons have it, unless they were cut
        rest = [one for one in rest if one not in _left_out(judgement)]
    whole = "; ".join([told, *warned, *rest])
    # A warning has a line of its own as well.
    return whole if len(whole) <= _LONGEST_HEADLINE else "; ".join([told, *rest])


def _up_to_a_clause(sentence: str, room: int) -> str:
    """The sentence, cut at the end of a clause if it is longer than `room`; who is named stands in the first one."""
    if len(sentence) <= room:
        return sentence
    ends = [found.start() for found in re.finditer("[;,:] | [(]", sentence) if 0 < found.start() <= room - 2]
    head = sentence[: ends[-1] if ends else max(room - 2, 0)].rstrip()
    if head.count("(") > head.count(")"):
        head = head[: head.rindex("(")].rstrip()
    return f"{head} …"


def _first_warning(judgement: Judgement) -> list[str]:
    return [warning_text(one) for one in warnings(judgement)[:1]]


def _left_out(judgement: Judgement) -> list[str]:
    """``35 of 90 requirements not selected``, so that nobody takes a selection for the whole; or nothing."""
    left_out = judgement.not_selected
    of = len(judgement.verdicts) + left_out
    return [f"{left_out} of {of} requirements not selected"] if left_out else []


def _of_devices(blocking: Sequence[Verdict], missing: Mapping[str, Sequence[Culprit]]) -> list[Cause]:
    """One cause for each device, node or link that a verdict is certain of.

    A lost GPU also explains what its absence left undecided.
    """
    by_who: dict[_Who, _Found] = defaultdict(list)
    for verdict in blocking:
        for culprit in verdict.culprits:
            if culprit.is_certain:
                by_who[culprit.identity].append((culprit, verdict))
    for who, found in by_who.items():
        if _slowdown(found):
            found += _undecided_for(who, blocking)
    for verdict in blocking:
        for culprit in missing.get(verdict.id, ()):
            if culprit.identity in by_who:
                by_who[culprit.identity].append((culprit, verdict))
    nodes = {who: found for who, found in by_who.items() if who[0] == "node"}
    others = {who: found for who, found in by_who.items() if who[0] != "node"}
    merged = []
    for who, found in nodes.items():
        there = {gpu: own for gpu, own in others.items() if gpu[0] == "gpu" and gpu[1][0] == who[1][0]}
        if slow := _slowdown(found):
            # One slow GPU does not explain a slowdown of its whole node: name both.
            both = [gpu for gpu, own in there.items() if _slowdown(own) > slow and _ids(own) & _ids(found)]
            merged.append(found + [one for gpu in both for one in others.pop(gpu)])
            continue
        explained = {v.id for _, v in found if any(_explains(own, v) for own in there.values())}
        for own in there.values():
            own += [one for one in found if one[1].id in explained and _explains(own, one[1])]
        merged.append([one for one in found if one[1].id not in explained])
    return [_of_device(found) for found in (*merged, *others.values()) if found]


def _undecided_for(who: _Who, blocking: Iterable[Verdict]) -> Iterator[tuple[Culprit, Verdict]]:
    """Undecided verdicts that name a certainly slow device and would pass without its slowdown.

    This happens if a node scales well relative to itself, or if either of two groups of ranks may be the odd one.
    """
    for verdict in blocking:
        for culprit in verdict.culprits:
            is_open = verdict.outcome == "inconclusive" and not culprit.is_certain
            if is_open and culprit.identity == who and culprit.slowdown and _is_kept(verdict, culprit.slowdown):
                yield culprit, verdict


def _is_kept(verdict: Verdict, gain: float) -> bool:
    """Whether a requirement that one slow rank makes worse would be met if all ranks were `gain` times faster."""
    if verdict.value is None or not METRICS[verdict.metric].slowed_by_one_rank:
        return False
    if "at_most" in verdict.bound:
        return verdict.value / gain <= verdict.bound_value
    return verdict.value * gain >= verdict.bound_value


def _of_missing_gpus(missing: Mapping[str, Sequence[Culprit]], blocking: Sequence[Verdict]) -> list[Cause]:
    """One cause for all GPUs that are missing and that no verdict names, with what that left undecided."""
    named = {one.identity for verdict in blocking for one in verdict.culprits if one.is_certain}
    of_each = {v.id: [one for one in missing.get(v.id, ()) if one.identity not in named] for v in blocking}
    suspects = tuple(dict.fromkeys(one for found in of_each.values() for one in found))
    if not suspects:
        return []
    who = first_few([text.culprit_name(one) for one in suspects], 2)
    sentence = f"{who}: {suspects[0].evidence}"
    return [Cause("lost-gpu", sentence, frozenset(name for name, found in of_each.items() if found), suspects)]


def _explains(own: _Found, verdict: Verdict) -> bool:
    """Whether the findings on a GPU explain a failure for which its whole node is named."""
    is_wrong = WRONG_DATA in verdict.flags and any(culprit.computed_wrong for culprit, _ in own)
    return (_slowdown(own) > 0 and METRICS[verdict.metric].slowed_by_one_rank) or is_wrong


def _slowdown(found: _Found) -> float:
    """The largest slowdown of a device; 0 if its computation is not slow, or if it computed wrong data."""
    is_wrong = any(culprit.computed_wrong for culprit, _ in found)
    return 0.0 if is_wrong else max((culprit.slowdown or 0.0 for culprit, _ in found), default=0.0)


def _ids(found: _Found) -> set[str]:
    return {verdict.id for _, verdict in found}


def _of_device(found: _Found) -> Cause:
    """The cause for one device, or for a slow node together with its GPUs that are slower still."""
    of_each: dict[_Who, list[tuple[CauseId, Culprit]]] = defaultdict(list)
    is_any_slow = any(culprit.slowdown is not None for culprit, _ in found)
    for culprit, verdict in found:
        # If a GPU explains its node's failures, name only the GPU.
        if culprit.kind != "node" or found[0][0].kind == "node":
            kind = id_of_device(culprit, verdict, is_any_slow=is_any_slow)
            of_each[culprit.identity].append((kind, culprit))
    worst = [min(own, key=lambda one: (CAUSES[one[0]].severity, -(one[1].slowdown or 0))) for own in of_each.values()]
    told = [culprit for _, culprit in worst]
    first, kind = told[0], min((kind for kind, _ in worst), key=lambda kind: CAUSES[kind].severity)
    is_slow = first.slowdown is not None and not first.computed_wrong
    sentence = _slow_text(first) if is_slow else text.culprit_text(first)
    if shown := next((one.shown for one, _ in found if one.identity == first.identity and one.shown), None):
        sentence += f" ({said(shown)})"
    if first.computed_wrong:
        sentence = f"wrong data: {sentence}"
    if told[1:]:
        even = [f"{text.culprit_name(one)} even {one.slowdown:.2f}×" for one in told[1:]]
        sentence += f", {first_few(even, 2)}"
    return Cause(kind, sentence, frozenset(_ids(found)), tuple(told))


def _slow_text(culprit: Culprit) -> str:
    whom = "its peers" if culprit.peers is None else f"its {text.count_text(culprit.peers, 'peer')}"
    slow, rounds = culprit.slow_rounds or 0, culprit.rounds or 0
    when = f" in {slow} of {rounds} rounds" if 0 < slow < rounds else ""
    return (
        f"{text.culprit_name(culprit)} is {culprit.slowdown:.2f}× slower than {whom} even without communication{when}"
    )


def _of_other_blockers(judgement: Judgement) -> Iterator[Cause]:
    tests: dict[str, list[str]] = defaultdict(list)
    for one in judgement.other_blockers:
        if one.kind == "test":
            tests[one.reason].append(one.name)
        elif between := _of_bounds_between_nodes(one, judgement):
            yield between
        else:
            yield Cause(
                "interrupted" if judgement.unfinished else one.cause or "run-not-accepted",
                text.headline_of(one.reason),
                frozenset({one.name}),
            )
    for reason, names in tests.items():
        shown = first_few([text.one_line(name) for name in names], 2)
        who = f"test {shown}" if len(names) == 1 else f"tests {shown}:"
        yield Cause("test-failed", f"{who} {text.headline_of(reason)}", frozenset(names))


def _of_bounds_between_nodes(blocker: Blocker, judgement: Judgement) -> Cause | None:
    """Whom the bounds between nodes name that the run as a whole has to meet; None if that is not why."""
    if blocker.cause != "run-not-accepted" or judgement.unfinished or judgement.coverage is None:
        return None
    between = [one for one in judgement.verdicts if one.id in judgement.coverage.between_nodes]
    missed = [one for one in between if one.outcome in ("failed", "inconclusive")]
    named = [(culprit, verdict) for verdict in missed for culprit in verdict.culprits]
    if not named:
        return None
    culprit, verdict = min(named, key=lambda one: (one[1].outcome != "failed", not one[0].is_certain))
    kind = id_of_device(culprit, verdict, is_any_slow=False)
    is_missed = "a bound between nodes is missed" if verdict.outcome == "failed" else "undecided"
    sentence = f"{text.culprit_text(culprit)} ({is_missed})"
    return Cause(kind, sentence, frozenset({blocker.name}), (culprit,))


def _of_nobody(verdicts: Sequence[Verdict], judgement: Judgement) -> list[Cause]:
    """Failures without a certain culprit; similar ones are merged into one cause."""
    uniform = [one for one in verdicts if one.is_uniform_loss]
    same = {verdict.id for verdict in verdicts if uniform and _shows_same_loss(verdict)}
    same |= {verdict.id for verdict in uniform}
    others: dict[tuple[CauseId, str, str], list[Verdict]] = defaultdict(list)
    for one in verdicts:
        if one.id in same:
            continue
        kind = id_of_verdict(one, is_unfinished=judgement.unfinished)
        is_measured = one.outcome in ("failed", "inconclusive")
        same_reason = "" if kind in ("interrupted", "environment") else subject_of(one) if is_measured else one.reason
        others[kind, one.outcome if same_reason else "", same_reason].append(one)
    found = [_uniform_loss(uniform, frozenset(same), judgement)] if uniform else []
    return found + [_of_alike(kind, alike, judgement) for (kind, *_), alike in others.items()]


def _shows_same_loss(verdict: Verdict) -> bool:
    """Whether another requirement on computing speed is also worse than its reference and names no slow rank."""
    is_measured = verdict.outcome in ("failed", "inconclusive") and verdict.value is not None
    if not is_measured or subject_of(verdict) != "computing" or any(one.slowdown for one in verdict.culprits):
        return False
    reference = verdict.published or verdict.bound_value
    return (verdict.value or 0.0) > reference if "at_most" in verdict.bound else (verdict.value or 0.0) < reference


def _uniform_loss(verdicts: Sequence[Verdict], explains: frozenset[str], judgement: Judgement) -> Cause:
    losses = [1 - v.value / v.published for v in verdicts if v.value is not None and v.published]
    loss, reference = digits.number_text(statistics.median(losses), "fraction"), "the reference throughput"
    uniformity = [one for one in judgement.verdicts if one.metric == RANK_UNIFORMITY.name]
    compared = [one.outcome for one in uniformity]
    is_any_slow = any(one.slowdown and one.is_certain for v in judgement.verdicts for one in v.culprits)
    if is_any_slow or "failed" in compared:
        return Cause("uniform-loss", f"{loss} below {reference}, which no single device explains", explains)
    if compared and set(compared) == {"passed"}:
        limit = digits.number_text(max(one.bound_value for one in uniformity) - 1, "fraction")
        alike = f"every GPU is within {limit} of its peers, so no device is named"
        return Cause("uniform-loss", f"{loss} below {reference}; {alike}", explains)
    known = "is undecided" if {"passed", "inconclusive"} & set(compared) else "was not measured"
    return Cause("uniform-loss", f"{loss} below {reference}; whether all GPUs are alike {known}", explains)


def _of_alike(kind: CauseId, verdicts: Sequence[Verdict], judgement: Judgement) -> Cause:
    """The cause of verdicts that share an outcome and a subject, or a reason why they were not measured."""
    names, first = first_few([text.one_line(verdict.id) for verdict in verdicts], 2), verdicts[0]
    suspects = _suspects(verdicts, judgement)
    if kind == "slow-communication" and not suspects:
        suspects = _slow_in_pairs(judgement)
    if kind == "interrupted" and len({one.reason for one in verdicts}) > 1:
        undecided = sum(one.outcome == "inconclusive" for one in verdicts)
        counts = [f"{text.count_text(len(verdicts) - undecided, 'requirement')} not measured"]
        counts += [f"{undecided} undecided"] if undecided else []
        sentence = f"measuring was interrupted: {', '.join(counts)}"
    elif kind == "environment":
        sentence = text.reason_text(first)
    elif first.outcome == "failed":
        worst = min(verdicts, key=lambda verdict: verdict.margin or 0.0)
        sentence = f"{text.one_line(worst.id)} is {digits.point_text(worst)}, bound {digits.bound_text(worst)}"
        despite = _up_to_a_clause(text.despite_text(worst), _LONGEST_REASON)
        sentence += f", but {despite}" if despite else ""
        sentence += f" ({len(verdicts) - 1} more like it)" if verdicts[1:] else ""
        # A verdict can name suspects without being certain: a link that is often slow, or two ranks that disagree.
        whom = first_few([text.culprit_name(one) for one in suspects], 2)
        alike = "all are alike, so " * any(why.code == "most-fail-alike" for why in worst.remarks)
        told = f"look at {whom}: not certain to be the cause of it" if whom else f"{alike}no device is named for it"
        sentence += f"; {text.culprit_text(worst.culprits[0]) if kind == 'host-bound' else told}"
        if METRICS[worst.metric].subject == "check":  # names nodes and GPUs, with what was found and expected
            sentence = f"{text.one_line(worst.id)}: {text.reason_text(worst)}"
        if WRONG_DATA in worst.flags:
            sentence = f"wrong data: {text.reason_text(worst)}"
    else:
        spent = "; --ddp-budget ran out" if first.was_left_for_time else ""
        sentence = f"{text.verdict_word(first).lower()}: {names}: {text.reason_text(first)}{spent}"
    return Cause(kind, sentence, frozenset(verdict.id for verdict in verdicts), suspects)


def _suspects(verdicts: Sequence[Verdict], judgement: Judgement) -> tuple[Culprit, ...]:
    """Whom they name, each once; not the only node, which is where anything has to be looked for."""
    named = {culprit.identity: culprit for verdict in verdicts for culprit in verdict.culprits}
    is_single = judgement.coverage is not None and judgement.coverage.node_count == 1
    return tuple(one for one in named.values() if not (is_single and one.kind == "node" and not one.is_certain))


def _slow_in_pairs(judgement: Judgement) -> tuple[Culprit, ...]:
    """Whom bounds on pairs that only warn name: suspects where collectives fail, which name no GPU of a node."""
    pairs = [one for one in judgement.verdicts if one.metric == PAIR_BANDWIDTH_GBPS.name and one.outcome == "failed"]
    named = {culprit.identity: replace(culprit, is_certain=False) for verdict in pairs for culprit in verdict.culprits}
    return tuple(named.values())
