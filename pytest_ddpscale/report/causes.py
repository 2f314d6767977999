"""Why a machine is not accepted: each cause once, what it explains, what to do about it; and every report's headline.

A device explains a failure only if the verdict is certain of that device, or of its node where a slow rank makes the
metric worse or both computed wrong data. Each remaining failure is a cause of its own. A loss that all devices share
accuses nobody.
"""

from __future__ import annotations

import re
import shlex
import statistics
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pytest_ddpscale.plan.metric_catalogue import (
    BUSBW_GBPS,
    HOST_BANDWIDTH_GBPS,
    MATMUL_TFLOPS,
    METRICS,
    NODE_UNIFORMITY,
    PAIR_BANDWIDTH_GBPS,
    RANK_UNIFORMITY,
    THROUGHPUT_PER_GPU,
)
from pytest_ddpscale.plan.operation import KINDS, operation_of
from pytest_ddpscale.report import digits
from pytest_ddpscale.report.words.cause_kinds import CAUSES, OF_CHECK, UNMET
from pytest_ddpscale.report.words.outcome import changes_by_site, imported_text, outcome_text, outcome_word
from pytest_ddpscale.report.words.reasons import said
from pytest_ddpscale.report.words.verdicts import (
    culprit_name,
    culprit_text,
    despite_text,
    headline_of,
    reason_text,
    verdict_word,
)
from pytest_ddpscale.run.reason import because
from pytest_ddpscale.run.run_json import WATERMARK, RunRecord
from pytest_ddpscale.run.verdicts import (
    BY_VARIABLE,
    WRONG_DATA,
    Blocker,
    Category,
    CauseId,
    CauseRecord,
    Culprit,
    Judgement,
    NextStep,
    Verdict,
    VerdictOutcome,
)
from pytest_ddpscale.util.listing import count_text, first_few
from pytest_ddpscale.util.printable import one_line

_LONGEST_HEADLINE = 300
_LONGEST_REASON = 120  # in a sentence that names suspects after it
_MOST_NAMED = 3  # requirements, metrics or workloads in one -k
_SELECTING = ("-k", "-m", "--ddp-world-sizes")  # options of one run that `RunRecord.again` leaves out
_LINK_OF_PROBE: Mapping[str, CauseId] = {
    HOST_BANDWIDTH_GBPS.name: "slow-host-link",
    BUSBW_GBPS.name: "slow-communication",
    PAIR_BANDWIDTH_GBPS.name: "slow-gpu-link",
}  # all other probes use no link
_OF_SUBJECT: Mapping[str, CauseId] = {"computing": "slow-computing", "scaling": "slow-scaling"}
_UNMEASURED: Mapping[VerdictOutcome, CauseId] = {"error": "error-in-run", "not_measured": "not-measured"}
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
    named = sorted([*_of_devices(blocking, missing), *_of_missing_gpus(missing, blocking)], key=_weight)
    explained = {name for cause in named for name in cause.explains}
    left = [verdict for verdict in blocking if verdict.id not in explained]
    unnamed = sorted([*_of_other_blockers(judgement), *_of_nobody(left, judgement)], key=_weight)
    failed, errors = ({one.id for one in blocking if one.outcome == what} for what in ("failed", "error"))
    unnamed.sort(key=lambda one: errors.isdisjoint(one.explains))  # an error is why others have no data
    in_order = sorted([*named, *unnamed], key=lambda one: (failed.isdisjoint(one.explains), one.severity))
    # Only a run that ended and was rejected drains a node, and only for a GPU or a node that certainly failed.
    at_fault = {
        culprit.identity
        for verdict in blocking
        if verdict.outcome == "failed" and judgement.outcome == "rejected" and not judgement.unfinished
        for culprit in verdict.culprits
        if culprit.is_certain and culprit.kind != "link"
    }
    return tuple(
        replace(cause, category="ISOLATE")
        if CAUSES[cause.id].category == "ISOLATE"
        and any(one.is_certain and one.identity in at_fault for one in cause.culprits)
        else cause
        for cause in in_order
    )


def warnings(judgement: Judgement) -> tuple[Cause, ...]:
    """Devices that certainly miss bounds that only warn and cause nothing else; those with most misses first."""
    missed = [one for one in judgement.verdicts if one.outcome == "failed" and not one.is_waived]
    found = _of_devices([one for one in missed if not judgement.is_blocked_by(one)], {})
    told = {culprit.identity for cause in causes(judgement) for culprit in cause.culprits if culprit.is_certain}
    left = [one for one in found if told.isdisjoint(culprit.identity for culprit in one.culprits)]
    return tuple(sorted((replace(one, category="MONITOR") for one in left), key=_weight))


def warning_text(cause: Cause) -> str:
    """``warning: GPU 3 (GPU-4f1c…) on node7 is 1.20× slower … (3 requirements that only warn)``."""
    count = count_text(len(cause.explains), "requirement that only warns", "requirements that only warn")
    return f"warning: {cause.sentence} ({count})"


def cause_records(judgement: Judgement, run: RunRecord) -> tuple[CauseRecord, ...]:
    """All causes and warnings with what to do about them, for verdicts.json."""
    found = (*(() if judgement.accepts else causes(judgement)), *warnings(judgement))
    return tuple(
        CauseRecord(
            one.id, one.severity, one.category, one.sentence, next_steps(one, judgement, run), one.culprits,
            tuple(sorted(one.explains)),
        )
        for one in found
    )  # fmt: skip


def _weight(cause: Cause) -> tuple[int, int, float]:
    """Sort key: severity, then how much a cause explains, then slowdown."""
    slowdown = max((one.slowdown or 0.0 for one in cause.culprits), default=0.0)
    return cause.severity, -len(cause.explains), -slowdown


def headline(judgement: Judgement, run: RunRecord | None = None) -> str:
    """``REJECTED: GPU 3 (GPU-4f1c…) on node7 is 1.20× slower … (21 of 22 failures; 1 more cause below)``.

    It has at most 300 characters unless the site changed very much. If nothing blocks acceptance, it says how much is
    met. If no cause names a device, it adds one that certainly misses a warning bound. With its run.json, of a run that
    was imported it says what was.
    """
    if imported := imported_text(judgement, run):
        return imported
    found, left_out = causes(judgement), judgement.not_selected
    of_all = len(judgement.verdicts) + left_out
    rest = [f"{left_out} of {of_all} requirements not selected"] if left_out else []
    warned = [warning_text(one) for one in warnings(judgement)[:1]]
    if not found or judgement.accepts or judgement.outcome == "partial":
        told = outcome_text(judgement)
    else:
        told, changed = f"{outcome_word(judgement.outcome)}: ", changes_by_site(judgement)
        counts = [explained_text(found[0].explains, judgement, only_worst=True)] if judgement.blockers[1:] else []
        counts += [f"{count_text(len(found) - 1, 'more cause')} below"] if found[1:] else []
        counted = f" ({'; '.join(counts)})" if counts else ""
        room = _LONGEST_HEADLINE - len("; ".join([told + counted, *rest, *changed]))
        told += _up_to_a_clause(found[0].sentence, room) + counted
        warned, rest = [] if any(cause.culprits for cause in found) else warned, [*rest, *changed]
    if f"{left_out} not selected" in told or judgement.outcome == "partial":  # some reasons have it, unless cut
        rest = rest[bool(left_out) :]
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


def counts_text(judgement: Judgement) -> str:
    """``6 of 81 requirements not met (5 failed, 1 undecided), 40 passed, 35 only warn``.

    The total is of the selected requirements; others are counted at the end. pytest, JUnit and the exit code count
    every blocker as a failure.
    """
    unmet = Counter(one.outcome for one in judgement.verdicts if judgement.is_blocked_by(one))
    rest = [one for one in judgement.verdicts if not judgement.is_blocked_by(one)]
    kinds = [(unmet[outcome], word) for outcome, (word, *_) in UNMET.items() if unmet[outcome]]
    passed, waived = sum(one.passed for one in rest), sum(one.is_waived for one in rest)
    # Those that --ddp-allow-incomplete lets stay so.
    unmeasured = sum(one.outcome == "not_measured" and one.blocks() for one in rest)
    warned = len(rest) - passed - waived - unmeasured
    tests = sum(blocker.kind == "test" for blocker in judgement.blockers)
    total = count_text(len(judgement.verdicts), "requirement")
    told = [f"{count} {word}" for count, word in kinds]
    what = f"not met ({', '.join(told)})" if kinds[1:] else "".join(word for _, word in kinds) or "passed"
    parts = [f"{unmet.total() or passed} of {total} {what}", *[f"{passed} passed"] * bool(kinds)]
    further = {
        "waived": waived,
        "not measured, as allowed": unmeasured,
        "only warns" if warned == 1 else "only warn": warned,
        "test failed or skipped" if tests == 1 else "tests failed or skipped": tests,
        "failure: the run as a whole": any(one.kind == "run" for one in judgement.blockers) and not judgement.rehearsed,
        "not selected": judgement.not_selected,
    }
    return ", ".join([*parts, *(f"{count:d} {word}" for word, count in further.items() if count)])


def explained_text(explains: Collection[str], judgement: Judgement, *, only_worst: bool = False) -> str:
    """``5 of 5 failures and 1 of 2 undecided``: how many unmet requirements one cause explains; or only the first."""
    unmet = [(one.id, one.outcome) for one in judgement.verdicts if judgement.is_blocked_by(one)]
    others = [blocker.name for blocker in judgement.other_blockers]  # a test, or the run as a whole
    parts = []
    for outcome, (_, *nouns) in UNMET.items():
        found = [name in explains for name, what in unmet if what == outcome]
        found += [name in explains for name in others if outcome == "failed"]
        parts += [f"{sum(found)} of {count_text(len(found), *nouns)}"] * any(found)
    return " and ".join(parts[:1] if only_worst else parts)


def missing_gpus(judgement: Judgement) -> dict[str, list[Culprit]]:
    """GPUs that were missing while their peers were measured, the longest first, by undecided requirement.

    A verdict that fails for a lost GPU says so itself; these are what its absence left undecided.
    """
    gpus = judgement.coverage.gpus if judgement.coverage is not None else []
    open_ = {v.id for v in judgement.verdicts if v.outcome in ("inconclusive", "not_measured")}
    found: dict[str, list[Culprit]] = defaultdict(list)
    for gpu in sorted(gpus, key=lambda one: -one.rounds_missing):
        why = because("not-measured-with-peers", gpu.rounds_missing)
        for name in open_.intersection(gpu.missing_in):
            found[name].append(Culprit("gpu", (gpu.place,), why, is_certain=False, evidence=said(why)))
    return found


def _of_devices(blocking: Sequence[Verdict], missing: Mapping[str, Sequence[Culprit]]) -> list[Cause]:
    """One cause for each device, node or link that a verdict is certain of.

    A lost GPU also explains what its absence left undecided, and a slow device what is undecided for its slowness.
    """
    by_who: dict[_Who, _Found] = defaultdict(list)
    for verdict in blocking:
        for culprit in verdict.culprits:
            if culprit.is_certain:
                by_who[culprit.identity].append((culprit, verdict))
    slow = {who for who, found in by_who.items() if _slowdown(found)}
    for verdict in blocking:
        further = [one for one in verdict.culprits if one.identity in slow and _would_pass(verdict, one)]
        for culprit in (*further, *missing.get(verdict.id, ())):
            if culprit.identity in by_who:
                by_who[culprit.identity].append((culprit, verdict))
    merged = []
    for who in [one for one in by_who if one[0] == "node"]:
        found = by_who.pop(who)
        there = {gpu: own for gpu, own in by_who.items() if gpu[0] == "gpu" and gpu[1][0] == who[1][0]}
        if slowdown := _slowdown(found):
            # One slow GPU does not explain a slowdown of its whole node: name both.
            both = [gpu for gpu, own in there.items() if _slowdown(own) > slowdown and _ids(own) & _ids(found)]
            found = found + [one for gpu in both for one in by_who.pop(gpu)]
        else:
            explained = {one.id for _, one in found if any(_explains(own, one) for own in there.values())}
            for own in there.values():
                own += [one for one in found if one[1].id in explained and _explains(own, one[1])]
            found = [one for one in found if one[1].id not in explained]
        merged.append(found)
    return [_of_device(found) for found in (*merged, *by_who.values()) if found]


def _would_pass(verdict: Verdict, culprit: Culprit) -> bool:
    """Whether an undecided requirement that one slow rank makes worse would be met without this slowdown.

    This happens if a node scales well relative to itself, or if either of two groups of ranks may be the odd one.
    """
    is_open = verdict.outcome == "inconclusive" and not culprit.is_certain
    if not is_open or verdict.value is None or not culprit.slowdown:
        return False
    if not METRICS[verdict.metric].slowed_by_one_rank:
        return False
    if "at_most" in verdict.bound:
        return verdict.value / culprit.slowdown <= verdict.bound_value
    return verdict.value * culprit.slowdown >= verdict.bound_value


def _of_missing_gpus(missing: Mapping[str, Sequence[Culprit]], blocking: Sequence[Verdict]) -> list[Cause]:
    """One cause for all GPUs that are missing and that no verdict names, with what that left undecided."""
    named = {one.identity for verdict in blocking for one in verdict.culprits if one.is_certain}
    of_each = {v.id: [one for one in missing.get(v.id, ()) if one.identity not in named] for v in blocking}
    suspects = tuple(dict.fromkeys(one for found in of_each.values() for one in found))
    if not suspects:
        return []
    who = first_few([culprit_name(one) for one in suspects], 2)
    explains = frozenset(name for name, found in of_each.items() if found)
    return [Cause("lost-gpu", f"{who}: {suspects[0].evidence}", explains, suspects)]


def _explains(own: _Found, verdict: Verdict) -> bool:
    """Whether the findings on a GPU explain a failure for which its whole node is named."""
    is_wrong = WRONG_DATA in verdict.flags and any(culprit.computed_wrong for culprit, _ in own)
    return (_slowdown(own) > 0 and METRICS[verdict.metric].slowed_by_one_rank) or is_wrong


def _slowdown(found: _Found) -> float:
    """The largest slowdown of a device; 0 if its computation is not slow, or if it computed wrong data."""
    is_wrong = any(culprit.computed_wrong for culprit, _ in found)
    return 0.0 if is_wrong else max((culprit.slowdown or 0.0 for culprit, _ in found), default=0.0)


def _ids(found: _Found) -> frozenset[str]:
    return frozenset(verdict.id for _, verdict in found)


def _of_device(found: _Found) -> Cause:
    """The cause for one device, or for a slow node together with its GPUs that are slower still."""
    of_each: dict[_Who, list[tuple[CauseId, Culprit]]] = defaultdict(list)
    is_any_slow = any(culprit.slowdown is not None for culprit, _ in found)
    for culprit, verdict in found:
        # If a GPU explains its node's failures, name only the GPU.
        if culprit.kind != "node" or found[0][0].kind == "node":
            kind = _id_of_device(culprit, verdict, is_any_slow=is_any_slow)
            of_each[culprit.identity].append((kind, culprit))
    worst = [
        min(own, key=lambda one: (not one[1].is_certain, CAUSES[one[0]].severity, -(one[1].slowdown or 0)))
        for own in of_each.values()
    ]
    told = [culprit for _, culprit in worst]
    first, kind = told[0], min((kind for kind, _ in worst), key=lambda kind: CAUSES[kind].severity)
    is_slow = first.slowdown is not None and not first.computed_wrong
    sentence = _slow_text(first) if is_slow else culprit_text(first)
    if shown := next((one.shown for one, _ in found if one.identity == first.identity and one.shown), None):
        sentence += f" ({said(shown)})"
    if first.computed_wrong:
        sentence = f"wrong data: {sentence}"
    if told[1:]:
        even = [f"{culprit_name(one)} even {one.slowdown:.2f}×" for one in told[1:]]
        sentence += f", {first_few(even, 2)}"
    return Cause(kind, sentence, _ids(found), tuple(told))


def _slow_text(culprit: Culprit) -> str:
    whom = "its peers" if culprit.peers is None else f"its {count_text(culprit.peers, 'peer')}"
    slow, rounds = culprit.slow_rounds or 0, culprit.rounds or 0
    when = f" in {slow} of {rounds} rounds" if 0 < slow < rounds else ""
    return f"{culprit_name(culprit)} is {culprit.slowdown:.2f}× slower than {whom} even without communication{when}"


def _of_other_blockers(judgement: Judgement) -> Iterator[Cause]:
    tests: dict[str, list[str]] = defaultdict(list)
    # A rehearsal passes over the simulation.
    for one in judgement.other_blockers if not judgement.rehearsed else ():
        if one.kind == "test":
            tests[one.reason].append(one.name)
        elif between := _of_bounds_between_nodes(one, judgement):
            yield between
        else:
            kind = "interrupted" if judgement.unfinished else one.cause or "run-not-accepted"
            yield Cause(kind, headline_of(one.reason), frozenset({one.name}))
    for reason, names in tests.items():
        shown = first_few([one_line(name) for name in names], 2)
        who = f"test {shown}" if len(names) == 1 else f"tests {shown}:"
        yield Cause("test-failed", f"{who} {headline_of(reason)}", frozenset(names))


def _of_bounds_between_nodes(blocker: Blocker, judgement: Judgement) -> Cause | None:
    """Whom the bounds between nodes name that the run as a whole has to meet; None if that is not why."""
    if blocker.cause != "run-not-accepted" or judgement.unfinished or judgement.coverage is None:
        return None
    between = [one for one in judgement.verdicts if one.id in judgement.coverage.between_nodes]
    missed = [one for one in between if one.outcome in ("failed", "inconclusive")]
    named = [(culprit, verdict) for verdict in missed for culprit in verdict.accused]
    if not named:
        return None
    culprit, verdict = min(named, key=lambda one: (one[1].outcome != "failed", not one[0].is_certain))
    kind = _id_of_device(culprit, verdict, is_any_slow=False)
    is_missed = "a bound between nodes is missed" if verdict.outcome == "failed" else "undecided"
    return Cause(kind, f"{culprit_text(culprit)} ({is_missed})", frozenset({blocker.name}), (culprit,))


def _of_nobody(verdicts: Sequence[Verdict], judgement: Judgement) -> list[Cause]:
    """Failures without a certain culprit; similar ones are merged into one cause."""
    uniform = [one for one in verdicts if one.is_uniform_loss or _is_shared(one, judgement)]
    same = {one.id for one in verdicts if one in uniform or (uniform and _shows_same_loss(one))}
    others: dict[tuple[CauseId, str, str], list[Verdict]] = defaultdict(list)
    for one in verdicts:
        if one.id in same:
            continue
        kind = _id_of_verdict(one, is_unfinished=judgement.unfinished)
        is_measured = one.outcome in ("failed", "inconclusive")
        same_reason = "" if kind in ("interrupted", "environment") else _subject_of(one) if is_measured else one.reason
        others[kind, one.outcome if same_reason else "", same_reason].append(one)
    found = [_uniform_loss(uniform, frozenset(same), judgement)] if uniform else []
    return found + [_of_alike(kind, alike, judgement) for (kind, *_), alike in others.items()]


def _is_shared(verdict: Verdict, judgement: Judgement) -> bool:
    """Whether throughput fails a bound without a reference, on devices that are alike."""
    if verdict.outcome != "failed" or verdict.metric != THROUGHPUT_PER_GPU.name or verdict.accused:
        return False
    compared = {one.outcome for one in judgement.verdicts if one.metric == RANK_UNIFORMITY.name}
    return {WRONG_DATA, BY_VARIABLE}.isdisjoint(verdict.flags) and (bool(verdict.culprits) or compared == {"passed"})


def _shows_same_loss(verdict: Verdict) -> bool:
    """Whether another requirement on computing speed is also worse than its reference and names no slow rank."""
    is_measured = verdict.outcome in ("failed", "inconclusive") and verdict.value is not None
    if not is_measured or _subject_of(verdict) != "computing" or any(one.slowdown for one in verdict.culprits):
        return False
    reference = verdict.published or verdict.bound_value
    return (verdict.value or 0.0) > reference if "at_most" in verdict.bound else (verdict.value or 0.0) < reference


def _uniform_loss(verdicts: Sequence[Verdict], explains: frozenset[str], judgement: Judgement) -> Cause:
    known = [(one.value, one.published) for one in verdicts if one.value is not None and one.published]
    whose = "the reference throughput" if known else "the bound on throughput"
    losses = [1 - v / of for v, of in known or [(one.value or 0.0, one.bound_value) for one in verdicts]]
    lost = f"{digits.number_text(statistics.median(losses), 'fraction')} below {whose}"
    uniformity = [one for one in judgement.verdicts if one.metric == RANK_UNIFORMITY.name]
    compared = {one.outcome for one in uniformity}
    is_any_slow = any(one.slowdown and one.is_certain for v in judgement.verdicts for one in v.culprits)
    if is_any_slow or "failed" in compared:
        lost += ", which no single device explains"
    elif compared == {"passed"}:
        limit = digits.number_text(max(one.bound_value for one in uniformity) - 1, "fraction")
        lost += f"; every GPU is within {limit} of its peers, so no device is named"
    elif any(one.culprits and not one.accused for one in verdicts):
        lost += "; no node is far from the others, so none is named"
    else:
        is_known = "is undecided" if {"passed", "inconclusive"} & compared else "was not measured"
        lost += f"; whether all GPUs are alike {is_known}"
    return Cause("uniform-loss", lost, explains)


def _of_alike(kind: CauseId, verdicts: Sequence[Verdict], judgement: Judgement) -> Cause:
    """The cause of verdicts that share an outcome and a subject, or a reason why they were not measured."""
    names, first = first_few([one_line(verdict.id) for verdict in verdicts], 2), verdicts[0]
    suspects = _suspects(kind, verdicts, judgement)
    if kind == "interrupted" and len({one.reason for one in verdicts}) > 1:
        undecided = sum(one.outcome == "inconclusive" for one in verdicts)
        counts = [f"{count_text(len(verdicts) - undecided, 'requirement')} not measured"]
        counts += [f"{undecided} undecided"] if undecided else []
        sentence = f"measuring was interrupted: {', '.join(counts)}"
    elif kind == "environment":
        sentence = reason_text(first)
    elif first.outcome == "failed":
        worst = min(verdicts, key=lambda verdict: verdict.margin or 0.0)
        sentence = f"{one_line(worst.id)} is {digits.point_text(worst)}, bound {digits.bound_text(worst)}"
        despite = _up_to_a_clause(despite_text(worst), _LONGEST_REASON)
        sentence += f", but {despite}" if despite else ""
        sentence += f" ({len(verdicts) - 1} more like it)" if verdicts[1:] else ""
        # A verdict can name suspects without being certain: a link that is often slow, or two ranks that disagree.
        whom = first_few([culprit_name(one) for one in suspects], 2)
        alike = "all are alike, so " * any(why.code == "most-fail-alike" for why in worst.remarks)
        told = f"look at {whom}: not certain to be the cause of it" if whom else f"{alike}no device is named for it"
        sentence += f"; {culprit_text(worst.culprits[0]) if kind == 'host-bound' else told}"
        if METRICS[worst.metric].subject == "check":  # names nodes and GPUs, with what was found and expected
            sentence = f"{one_line(worst.id)}: {reason_text(worst)}"
        if WRONG_DATA in worst.flags:
            sentence = f"wrong data: {reason_text(worst)}"
    else:
        spent = "; --ddp-budget ran out" if first.was_left_for_time else ""
        sentence = f"{verdict_word(first).lower()}: {names}: {reason_text(first)}{spent}"
    return Cause(kind, sentence, frozenset(verdict.id for verdict in verdicts), suspects)


def _suspects(kind: CauseId, verdicts: Sequence[Verdict], judgement: Judgement) -> tuple[Culprit, ...]:
    """Whom they name, each once; not the only node, which is where anything has to be looked for.

    Collectives name no GPU of a node: suspects of those that fail are whom bounds on pairs name that only warn.
    """
    is_single = judgement.coverage is not None and judgement.coverage.node_count == 1
    named = [one for verdict in verdicts for one in verdict.accused]
    named = [one for one in named if one.is_certain or one.kind != "node" or not is_single]
    if kind == "slow-communication" and not named:
        pairs = [one for one in judgement.verdicts if one.metric == PAIR_BANDWIDTH_GBPS.name]
        failed = [one for verdict in pairs if verdict.outcome == "failed" for one in verdict.culprits]
        named = [replace(one, is_certain=False) for one in failed]
    return tuple({one.identity: one for one in named}.values())


def _id_of_device(culprit: Culprit, verdict: Verdict, *, is_any_slow: bool) -> CauseId:
    """What a finding on a device is; a slow one (`is_any_slow`) is not accused of its link for what slowness costs."""
    metric = METRICS[verdict.metric]
    if culprit.computed_wrong:
        return "wrong-data"
    if metric.subject == "check":
        return _id_of_check(verdict, [culprit])
    if verdict.outcome == "error":  # a GPU whose own error ended its ranks
        return "gpu-error"
    if culprit.because.code == "starved":
        return "host-bound"
    if culprit.kind == "link":
        return _id_of_link(culprit)
    if link := _link_of(verdict):
        return "slow-communication" if link == "slow-gpu-link" else link  # it is slow with all its partners
    if metric.subject == "node":
        return "regression"
    if culprit.slowdown is not None or metric.subject == "probe":
        return "slow-node" if culprit.kind == "node" else "slow-gpu"
    communicates = metric.slowed_by_one_rank and metric.communicates and not is_any_slow
    return "slow-communication" if communicates else "requirement-not-met"


def _id_of_verdict(verdict: Verdict, *, is_unfinished: bool) -> CauseId:
    """What a verdict is that no device is certain to be the cause of; `is_unfinished` if its run was."""
    metric, flags, outcome = METRICS[verdict.metric], verdict.flags, verdict.outcome
    if WRONG_DATA in flags:
        return "wrong-data"
    if "interrupted" in flags:
        return "interrupted"
    if BY_VARIABLE in flags:
        return "environment"
    if outcome == "inconclusive" and "host-bound" in flags:
        return "host-bound"
    if outcome == "inconclusive" and "implausible" in flags:
        return "implausible-value"
    if is_unfinished and outcome in ("inconclusive", "not_measured"):
        return "interrupted"
    if outcome == "inconclusive" or (outcome == "not_measured" and verdict.was_left_for_time):
        return "undecided"
    if outcome == "error" and verdict.culprits:
        return "gpu-error" if verdict.culprits[0].kind == "gpu" else "slow-node-link"
    if outcome != "failed":
        return _UNMEASURED[outcome]
    if metric.subject == "check":
        return _id_of_check(verdict, verdict.culprits)
    if metric.subject == "node":
        return "regression"
    if link := _link_of(verdict):
        links = {_id_of_link(one) for one in verdict.culprits if one.kind == "link"}
        named = link if verdict.culprits else "slow-communication"  # within a node or between some
        return links.pop() if link == "slow-gpu-link" and len(links) == 1 else named
    if metric.reads_own_pace or metric.compares_places:
        return "slow-node" if metric is NODE_UNIFORMITY else "slow-gpu"
    is_starved = any(one.because.code == "starved" for one in verdict.culprits)
    return "host-bound" if is_starved else _OF_SUBJECT.get(_subject_of(verdict), "requirement-not-met")


def _subject_of(verdict: Verdict) -> str:
    """Subject under which failures are reported once although several metrics show them."""
    metric = METRICS[verdict.metric]
    is_of_ranks = metric.slowed_by_one_rank or metric is MATMUL_TFLOPS
    if WRONG_DATA in verdict.flags or not is_of_ranks or metric.reads_own_pace:
        return metric.name
    return "computing" if metric.baseline is None else "scaling"


def _id_of_check(verdict: Verdict, culprits: Sequence[Culprit]) -> CauseId:
    if verdict.workload == "gpus" and culprits and all(one.kind == "node" for one in culprits):
        return "missing-gpus"  # no single GPU is to be reset
    return OF_CHECK.get(verdict.workload, "requirement-not-met")


def _id_of_link(culprit: Culprit) -> CauseId:
    return "slow-gpu-link" if len(culprit.hosts) == 1 else "slow-node-link"


def _link_of(verdict: Verdict) -> CauseId | None:
    """The link that a probe uses; None for other requirements and for probes within a GPU."""
    used = operation_of(verdict.workload) if METRICS[verdict.metric].subject == "probe" else None
    return _LINK_OF_PROBE.get(KINDS[used.kind].metric) if used else None


def next_steps(cause: Cause, judgement: Judgement, run: RunRecord | None) -> tuple[NextStep, ...]:
    """One or two steps; the commands are words of a shell, quoted.

    Args:
        cause: one of `causes` or `warnings` of the judgement.
        judgement: of the run.
        run: the run's run.json; None if it is not known, and nothing can be measured again.
    """
    if run is None or run.is_imported or judgement.simulated or run.is_simulated():
        return (_look_or_drain(cause, judgement, run),)
    if judgement.unfinished or cause.id == "interrupted":
        return (NextStep("measure the rest", _resume(judgement, run)),)
    first = _look_or_drain(cause, judgement, run)
    found = [one for one in judgement.verdicts if one.id in cause.explains]
    if found and all(one.code == "few-peers" for one in found):
        return (NextStep("measure with more nodes, or set a bound of the site's own"),)
    if cause.id != "undecided":
        return (first, NextStep("then measure again", _measure_again(run.command_again, cause, judgement)))
    if run.load and run.load[0] > run.load[1]:
        busy = "load average {:g} on {} cores: wait until the machine is idle, then measure again".format(*run.load)
        return (NextStep(busy, _measure_again(run.command_again, cause, judgement)),)
    # Twice the rounds without a time limit.
    longer = f"--ddp-rounds={2 * max(16, *(one.rounds for one in found))}"
    kept = [word for word in run.command_again if not word.startswith(("--ddp-budget=", "--ddp-rounds"))]
    return (NextStep(first.action, _measure_again([*kept, longer], cause, judgement)),)


def _look_or_drain(cause: Cause, judgement: Judgement, run: RunRecord | None) -> NextStep:
    """Drain the nodes of certain culprits, look at those of suspects, or else what to check."""
    if cause.id == "run-not-accepted" and cause.sentence.startswith(WATERMARK.lower()):
        return NextStep("a simulation accepts no machine; --ddp-rehearse shows what a measured one would get")
    action = CAUSES[cause.id].action
    named = [one for one in cause.culprits if one.is_certain or cause.category != "ISOLATE"]
    hosts = dict.fromkeys(one_line(host) for one in named for host in one.hosts)
    where = first_few([*hosts], 2)
    if not hosts:
        return NextStep(action)
    if cause.category == "MONITOR":
        return NextStep(f"watch {where}: {action}")
    told = f"drain {where}; {action}" if cause.category == "ISOLATE" else f"look at {where}: {action}"
    # From an imported run nothing follows for a node.
    path = judgement.basis.get("verdicts_path") or judgement.basis.get("measurements_path")
    if path is None or run is None or run.is_imported:
        return NextStep(told)
    rehearses = ["--rehearse"] if judgement.simulated or run.is_simulated() else []
    return NextStep(told, _shell(["ddpscale", "culprits", *rehearses, str(Path(path).parent)]))


def _resume(judgement: Judgement, run: RunRecord) -> str:
    """The run's command with its selection, for the rest of it."""
    where = judgement.basis.get("measurements_path")
    return _shell([*run.command_again, *_selection(run.argv), f"--ddp-resume={Path(where).parent}"]) if where else ""


def _selection(argv: Sequence[str]) -> Iterator[str]:
    """The words of a command line that select what to measure."""
    words = iter(argv[1:])
    for word in words:
        if word.startswith(_SELECTING):
            yield word
            if word in _SELECTING:
                yield next(words, "")


def _measure_again(command: Sequence[str], cause: Cause, judgement: Judgement) -> str:
    """The command that measures all again that the cause explains, and perhaps more."""
    requirements = {one.id: one for one in judgement.verdicts if one.id in cause.explains}
    tests = [one.name for one in judgement.other_blockers if one.kind == "test" and one.name in cause.explains]
    named = [*requirements, *tests]
    for part in ("metric", "workload"):
        if len(named) > _MOST_NAMED and not tests:
            named = list(dict.fromkeys(getattr(one, part) for one in requirements.values()))
    selected = ["-k", " or ".join(named)] if 0 < len(named) <= _MOST_NAMED else []
    return _shell([*command, *selected])


def _shell(words: Sequence[str]) -> str:
    return shlex.join([one_line(word) for word in words])
