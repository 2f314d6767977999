"""Why a machine is not accepted: each cause once, with what it explains; and every report's headline.

A device explains a failure only if the verdict is certain of that device, or of its node where a slow rank makes the
metric worse or both computed wrong data. Each remaining failure is a cause of its own. A loss that all devices share
accuses nobody.
"""

from __future__ import annotations

import statistics
import textwrap
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
from pytest_ddpscale.report.words.reasons import say
from pytest_ddpscale.report.words.verdicts import (
    culprit_name,
    culprit_text,
    despite_text,
    headline_of,
    only_warns,
    reason_text,
    verdict_word,
)
from pytest_ddpscale.run.reason import because
from pytest_ddpscale.run.run_json import RunRecord
from pytest_ddpscale.run.verdicts import (
    BY_VARIABLE,
    WRONG_DATA,
    Blocker,
    Category,
    CauseId,
    Culprit,
    Judgement,
    Verdict,
    VerdictOutcome,
)
from pytest_ddpscale.util.listing import count_text, first_few
from pytest_ddpscale.util.printable import one_line

_LONGEST_HEADLINE = 300
_LONGEST_REASON = 120  # in a sentence that names suspects after it
_LINK_OF_PROBE: Mapping[str, CauseId] = {
    HOST_BANDWIDTH_GBPS.name: "slow-host-link",
    BUSBW_GBPS.name: "slow-communication",
    PAIR_BANDWIDTH_GBPS.name: "slow-gpu-link",
}  # all other probes use no link
_OF_SUBJECT: Mapping[str, CauseId] = {"computing": "slow-computing", "scaling": "slow-scaling"}
_OF_FLAG: Mapping[str, CauseId] = {
    WRONG_DATA: "wrong-data", "interrupted": "interrupted", BY_VARIABLE: "environment",
}  # fmt: skip
_OF_OPEN: Mapping[str, CauseId] = {"host-bound": "host-bound", "implausible": "implausible-value"}
_Who = tuple[Any, ...]  # kind, host and GPU, those of the other end
_Accusations = list[tuple[Culprit, Verdict]]


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

    Within each, the most severe come first; of equals those with a culprit, then errors, then what explains most.
    """
    if not _LATEST or _LATEST[0][0] is not judgement:
        _LATEST[:] = [(judgement, _causes(judgement))]
    return _LATEST[0][1]


# Each report asks for the causes of the same judgement; those of thousands of culprits take a second.
_LATEST: list[tuple[Judgement, tuple[Cause, ...]]] = []


def _causes(judgement: Judgement) -> tuple[Cause, ...]:
    blocking = [verdict for verdict in judgement.verdicts if judgement.is_blocked_by(verdict)]
    missing = missing_gpus(judgement)
    by_weight = [*_of_devices(blocking, missing, judgement), *_of_missing_gpus(missing, blocking)]
    explained = {name for cause in by_weight for name in cause.explains}
    left = [verdict for verdict in blocking if verdict.id not in explained]
    by_weight += [*_of_other_blockers(judgement), *_of_nobody(left, judgement)]
    failed, errors = ({v.id for v in blocking if v.outcome == outcome} for outcome in ("failed", "error"))
    # Only a run that ended and was rejected drains a node, and only for a GPU or a node that certainly failed.
    drains = judgement.outcome == "rejected" and not judgement.unfinished

    def in_order(cause: Cause) -> tuple[object, ...]:
        is_of_nobody = not any(culprit.is_certain for culprit in cause.culprits)
        severity, *others = _weight(cause)
        # An error is why others have no data.
        return failed.isdisjoint(cause.explains), severity, is_of_nobody, errors.isdisjoint(cause.explains), *others

    def category(cause: Cause) -> Category:
        is_certain = any(culprit.is_certain and culprit.kind != "link" for culprit in cause.culprits)
        is_isolated = drains and is_certain and not failed.isdisjoint(cause.explains)
        return CAUSES[cause.id].category if is_isolated else "CHECK"

    return tuple(replace(cause, category=category(cause)) for cause in sorted(by_weight, key=in_order))


def warnings(judgement: Judgement) -> tuple[Cause, ...]:
    """Devices that certainly miss bounds that only warn and cause nothing else; those with most misses first."""
    missed = [verdict for verdict in judgement.verdicts if only_warns(verdict) and verdict.outcome == "failed"]
    named = {culprit.identity for cause in causes(judgement) for culprit in cause.culprits if culprit.is_certain}
    warned = [
        replace(cause, category="MONITOR") for cause in _of_devices(missed, {}, judgement)
        if named.isdisjoint(culprit.identity for culprit in cause.culprits)
    ]  # fmt: skip
    return tuple(sorted(warned, key=_weight))


def warning_text(cause: Cause) -> str:
    """``warning: GPU 3 (GPU-4f1c…) on node7 is 1.20× slower … (3 requirements that only warn)``."""
    count = count_text(len(cause.explains), "requirement that only warns", "requirements that only warn")
    return f"warning: {cause.sentence} ({count})"


def _weight(cause: Cause) -> tuple[int, int, float]:
    """Sort key: severity, then how much a cause explains, then slowdown."""
    slowdown = max((culprit.slowdown or 0.0 for culprit in cause.culprits), default=0.0)
    return cause.severity, -len(cause.explains), -slowdown


def headline(judgement: Judgement, run: RunRecord | None = None) -> str:
    """``REJECTED: GPU 3 (GPU-4f1c…) on node7 is 1.20× slower … (21 of 22 failures; 1 more cause below)``.

    With a cause it has at most 300 characters unless the site changed very much. If nothing blocks acceptance, it says
    how much is met. If no cause names a device, it adds one that certainly misses a warning bound. With its run.json,
    of a run that was imported it says what was.
    """
    ranked, left_out, imported = causes(judgement), judgement.not_selected, imported_text(judgement, run)
    is_caused = bool(ranked) and not (imported or judgement.accepts or judgement.outcome == "partial")
    text, rest = imported or outcome_text(judgement), changes_by_site(judgement) * bool(imported)
    if is_caused:
        text, rest = f"{outcome_word(judgement.outcome)}: {ranked[0].sentence}", changes_by_site(judgement)
    if left_out and judgement.outcome != "partial" and f"{left_out} not selected" not in text:
        rest.insert(0, f"{left_out} of {len(judgement.verdicts) + left_out} requirements not selected")
    if not is_caused or not any(cause.culprits for cause in ranked):
        rest = [*map(warning_text, warnings(judgement)[:1]), *rest]
    if is_caused:
        counts = [explained_text(ranked[0].explains, judgement, only_worst=True)] if judgement.blockers[1:] else []
        counts += [f"{count_text(len(ranked) - 1, 'more cause')} below"] if ranked[1:] else []
        counted = f" ({'; '.join(counts)})" if counts else ""
        text = _shortened(text, _LONGEST_HEADLINE - len("; ".join([counted, *rest]))) + counted
    return "; ".join([text, *rest])


def _shortened(sentence: str, room: int) -> str:
    """Its first words, among them who is named."""
    return textwrap.shorten(sentence, max(room, _LONGEST_REASON), placeholder=" …", break_on_hyphens=False)


def counts_text(judgement: Judgement) -> str:
    """``6 of 81 requirements not met (5 failed, 1 undecided), 40 passed, 35 only warn``.

    The total is of the selected requirements; others are counted at the end. pytest, JUnit and the exit code count
    every blocker as a failure.
    """
    count = Counter(_standing(verdict, judgement) for verdict in judgement.verdicts)
    unmet = {word: count[word] for word, *_ in UNMET.values() if count[word]}
    counts = ", ".join(f"{number} {word}" for word, number in unmet.items())
    counted = f"not met ({counts})" if len(unmet) > 1 else "".join(unmet) or "passed"
    total = count_text(len(judgement.verdicts), "requirement")
    parts = [f"{sum(unmet.values()) or count['passed']} of {total} {counted}"]
    parts += [f"{count['passed']} passed"] if unmet else []
    is_whole = any(blocker.kind == "run" for blocker in judgement.blockers) and not judgement.rehearsed
    further = (
        (count["waived"], "waived", "waived"),
        (count["allowed"], "not measured, as allowed", "not measured, as allowed"),
        (count["warned"], "only warns", "only warn"),
        (sum(b.kind == "test" for b in judgement.blockers), "test failed or skipped", "tests failed or skipped"),
        (int(is_whole), "failure: the run as a whole", ""),
        (judgement.not_selected, "not selected", "not selected"),
    )
    return ", ".join([*parts, *(count_text(*count) for count in further if count[0])])


def _standing(verdict: Verdict, judgement: Judgement) -> str:
    """Under which word a verdict is counted."""
    if judgement.is_blocked_by(verdict):
        return UNMET[verdict.outcome][0]
    if verdict.outcome == "not_measured" and verdict.blocks():
        return "allowed"  # by --ddp-allow-incomplete
    return "passed" if verdict.passed else "waived" if verdict.is_waived else "warned"


def explained_text(explains: Collection[str], judgement: Judgement, *, only_worst: bool = False) -> str:
    """``5 of 5 failures and 1 of 2 undecided``: how many unmet requirements one cause explains; or only the first."""
    blocking = filter(judgement.is_blocked_by, judgement.verdicts)
    outcomes: dict[str, VerdictOutcome] = {verdict.id: verdict.outcome for verdict in blocking}
    outcomes |= {blocker.name: "failed" for blocker in judgement.other_blockers}  # a test, or the run as a whole
    count = Counter(outcomes.values())
    counts = Counter(outcomes[name] for name in outcomes.keys() & explains)
    parts = [
        f"{counts[outcome]} of {count_text(count[outcome], *nouns)}"
        for outcome, (_, *nouns) in UNMET.items() if counts[outcome]
    ]  # fmt: skip
    return " and ".join(parts[:1] if only_worst else parts)


def missing_gpus(judgement: Judgement) -> dict[str, list[Culprit]]:
    """GPUs that were missing while their peers were measured, the longest first, by undecided requirement.

    A verdict that fails for a lost GPU says so itself; these are what its absence left undecided.
    """
    gpus = judgement.coverage.gpus if judgement.coverage is not None else []
    open_ = {v.id for v in judgement.verdicts if v.outcome in ("inconclusive", "not_measured")}
    by_host: dict[str, list[Culprit]] = defaultdict(list)
    for gpu in sorted(gpus, key=lambda gpu: -gpu.rounds_missing):
        why = because("not-measured-with-peers", gpu.rounds_missing)
        for name in open_.intersection(gpu.missing_in):
            by_host[name].append(Culprit("gpu", (gpu.place,), why, is_certain=False, evidence=say(why)))
    return by_host


def _of_devices(
    blocking: Sequence[Verdict], missing: Mapping[str, Sequence[Culprit]], judgement: Judgement
) -> list[Cause]:
    """One cause for each device, node or link that a verdict is certain of.

    A lost GPU also explains what its absence left undecided, and a slow device what is undecided for its slowness.
    """
    by_who: dict[_Who, _Accusations] = defaultdict(list)
    for verdict in blocking:
        for culprit in verdict.culprits:
            if culprit.is_certain:
                by_who[culprit.identity].append((culprit, verdict))
    slow = {who for who, accusations in by_who.items() if _slowdown(accusations)}
    for verdict in blocking:
        further = [c for c in verdict.culprits if c.identity in slow and _would_pass(verdict, c)]
        for culprit in (*further, *missing.get(verdict.id, ())):
            if culprit.identity in by_who:
                by_who[culprit.identity].append((culprit, verdict))
    merged = []
    for who in [one for one in by_who if one[0] == "node"]:
        accusations = by_who.pop(who)
        on_node = {gpu: own for gpu, own in by_who.items() if gpu[0] == "gpu" and gpu[1][0] == who[1][0]}
        if slowdown := _slowdown(accusations):
            # One slow GPU does not explain a slowdown of its whole node: name both.
            both = [gpu for gpu, own in on_node.items() if _slowdown(own) > slowdown and _ids(own) & _ids(accusations)]
            accusations = accusations + [one for gpu in both for one in by_who.pop(gpu)]
        else:
            explained = {one.id for _, one in accusations if any(_explains(own, one) for own in on_node.values())}
            for own in on_node.values():
                own += [one for one in accusations if one[1].id in explained and _explains(own, one[1])]
            accusations = [one for one in accusations if one[1].id not in explained]
        merged.append(accusations)
    pace = _Pace(judgement)
    return [_of_device(accusations, pace) for accusations in (*merged, *by_who.values()) if accusations]


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
    named = {culprit.identity for verdict in blocking for culprit in verdict.culprits if culprit.is_certain}
    left = [(culprit, v.id) for v in blocking for culprit in missing.get(v.id, ()) if culprit.identity not in named]
    suspects = tuple(dict.fromkeys(culprit for culprit, _ in left))
    who = first_few([culprit_name(culprit) for culprit in suspects], 2)
    explains = frozenset(name for _, name in left)
    return [Cause("lost-gpu", f"{who}: {suspects[0].evidence}", explains, suspects)] if suspects else []


def _explains(own: _Accusations, verdict: Verdict) -> bool:
    """Whether the findings on a GPU explain a failure for which its whole node is named."""
    if WRONG_DATA in verdict.flags and any(culprit.computed_wrong for culprit, _ in own):
        return True
    return METRICS[verdict.metric].slowed_by_one_rank and _slowdown(own) > 0


def _slowdown(accusations: _Accusations) -> float:
    """The largest slowdown of a device; 0 if its computation is not slow, or if it computed wrong data."""
    is_wrong = any(culprit.computed_wrong for culprit, _ in accusations)
    return 0.0 if is_wrong else max((culprit.slowdown or 0.0 for culprit, _ in accusations), default=0.0)


def _ids(accusations: _Accusations) -> frozenset[str]:
    return frozenset(verdict.id for _, verdict in accusations)


def _of_device(accusations: _Accusations, pace: _Pace) -> Cause:
    """The cause for one device, or for a slow node together with its GPUs that are slower still."""
    by_device: dict[_Who, list[tuple[CauseId, Culprit]]] = defaultdict(list)
    for culprit, verdict in accusations:
        # If a GPU explains its node's failures, name only the GPU.
        if culprit.kind != "node" or accusations[0][0].kind == "node":
            by_device[culprit.identity].append((_id_of_device(culprit, verdict, pace), culprit))
    worst = [
        min(own, key=lambda one: (not one[1].is_certain, CAUSES[one[0]].severity, -(one[1].slowdown or 0)))
        for own in by_device.values()
    ]
    kind = min((kind for kind, _ in worst), key=lambda kind: CAUSES[kind].severity)
    first, *others = (culprit for _, culprit in worst)
    sentence = culprit_text(first)
    if first.computed_wrong:
        sentence = f"wrong data: {sentence}"
    elif first.slowdown is not None:
        whom = "its peers" if first.peers is None else f"its {count_text(first.peers, 'peer')}"
        sentence = f"{culprit_name(first)} is {first.slowdown:.2f}× slower than {whom} even without communication"
        if 0 < (first.slow_rounds or 0) < (first.rounds or 0):
            sentence += f" in {first.slow_rounds} of {first.rounds} rounds"
    if shown := next((c.shown for c, _ in accusations if c.identity == first.identity and c.shown), None):
        sentence += f" ({say(shown)})"
    slower = [f"{culprit_name(c)} even {c.slowdown:.2f}×" if c.slowdown else culprit_text(c) for c in others]
    sentence += f", {first_few(slower, 2)}" if slower else ""
    return Cause(kind, sentence, _ids(accusations), (first, *others))


def _of_other_blockers(judgement: Judgement) -> Iterator[Cause]:
    tests: dict[str, list[str]] = defaultdict(list)
    # A rehearsal passes over the simulation.
    for blocker in judgement.other_blockers if not judgement.rehearsed else ():
        if blocker.kind == "test":
            tests[blocker.reason].append(blocker.name)
        elif between := _of_bounds_between_nodes(blocker, judgement):
            yield between
        else:
            kind = "interrupted" if judgement.unfinished else blocker.cause or "run-not-accepted"
            yield Cause(kind, headline_of(blocker.reason), frozenset({blocker.name}))
    for reason, names in tests.items():
        shown = first_few([one_line(name) for name in names], 2)
        who = f"test {shown}" if len(names) == 1 else f"tests {shown}:"
        yield Cause("test-failed", f"{who} {headline_of(reason)}", frozenset(names))


def _of_bounds_between_nodes(blocker: Blocker, judgement: Judgement) -> Cause | None:
    """Whom the bounds between nodes name that the run as a whole has to meet; None if that is not why."""
    between = judgement.coverage.between_nodes if judgement.coverage is not None else ()
    missed = [v for v in judgement.verdicts if v.id in between and v.outcome in ("failed", "inconclusive")]
    named = [(culprit, verdict) for verdict in missed for culprit in verdict.accused]
    if blocker.cause != "run-not-accepted" or judgement.unfinished or not named:
        return None
    culprit, verdict = min(named, key=lambda pair: (pair[1].outcome != "failed", not pair[0].is_certain))
    is_missed = "a bound between nodes is missed" if verdict.outcome == "failed" else "undecided"
    sentence, kind = f"{culprit_text(culprit)} ({is_missed})", _id_of_device(culprit, verdict, _Pace(judgement))
    return Cause(kind, sentence, frozenset({blocker.name}), (culprit,))


def _of_nobody(verdicts: Sequence[Verdict], judgement: Judgement) -> list[Cause]:
    """Failures without a certain culprit; similar ones are merged into one cause."""
    uniform = [verdict for verdict in verdicts if verdict.is_uniform_loss or _is_shared(verdict, judgement)]
    same = {verdict.id for verdict in verdicts if verdict in uniform or (uniform and _shows_same_loss(verdict))}
    others: dict[tuple[CauseId, str, str], list[Verdict]] = defaultdict(list)
    for verdict in verdicts:
        if verdict.id in same:
            continue
        kind = _id_of_verdict(verdict, is_unfinished=judgement.unfinished)
        is_measured = verdict.outcome in ("failed", "inconclusive")
        reason = _subject_of(verdict) if is_measured else verdict.reason
        same_reason = "" if kind in ("interrupted", "environment") else reason
        others[kind, verdict.outcome if same_reason else "", same_reason].append(verdict)
    uniform_causes = [_uniform_loss(uniform, frozenset(same), judgement)] if uniform else []
    return uniform_causes + [_of_alike(kind, alike, judgement) for (kind, *_), alike in others.items()]


def _is_shared(verdict: Verdict, judgement: Judgement) -> bool:
    """Whether throughput fails a bound without a reference, on devices that are alike."""
    is_open = verdict.outcome == "failed" and verdict.metric == THROUGHPUT_PER_GPU.name and not verdict.accused
    is_other = not {WRONG_DATA, BY_VARIABLE}.isdisjoint(verdict.flags)
    return is_open and not is_other and (bool(verdict.culprits) or _limit_of_all(judgement) is not None)


def _limit_of_all(judgement: Judgement) -> float | None:
    """By how much any GPU is slower than its peers at most; None if that was not shown of all."""
    compared = [verdict for verdict in judgement.verdicts if verdict.metric == RANK_UNIFORMITY.name]
    is_any_slow = any(culprit.slowdown and culprit.is_certain for v in judgement.verdicts for culprit in v.culprits)
    is_shown = compared and not is_any_slow and all(verdict.passed for verdict in compared)
    return max(verdict.bound_value for verdict in compared) - 1 if is_shown else None


def _shows_same_loss(verdict: Verdict) -> bool:
    """Whether another requirement on computing speed is also worse than its reference and names no slow rank."""
    is_measured = verdict.outcome in ("failed", "inconclusive") and verdict.value is not None
    if not is_measured or _subject_of(verdict) != "computing" or any(culprit.slowdown for culprit in verdict.culprits):
        return False
    gain = (verdict.value or 0.0) - (verdict.published or verdict.bound_value)
    return gain > 0 if "at_most" in verdict.bound else gain < 0


def _uniform_loss(verdicts: Sequence[Verdict], explains: frozenset[str], judgement: Judgement) -> Cause:
    known = [verdict for verdict in verdicts if verdict.published and verdict.value is not None]
    losses = [1 - (verdict.value or 0.0) / (verdict.published or verdict.bound_value) for verdict in known or verdicts]
    whose = "the reference throughput" if known else "the bound on throughput"
    lost, limit = digits.number_text(statistics.median(losses), "fraction"), _limit_of_all(judgement)
    alike = (
        f"every GPU is within {digits.number_text(limit, 'fraction')} of its peers, so " if limit is not None else ""
    )
    return Cause("uniform-loss", f"{lost} below {whose}; {alike}no device is named", explains)


def _of_alike(kind: CauseId, verdicts: Sequence[Verdict], judgement: Judgement) -> Cause:
    """The cause of verdicts that share an outcome and a subject, or a reason why they were not measured."""
    names, first = first_few([one_line(verdict.id) for verdict in verdicts], 2), verdicts[0]
    suspects = _suspects(kind, verdicts, judgement)
    if kind == "interrupted":
        count = count_text(len(verdicts), "requirement was", "requirements were")
        whys = {reason_text(verdict).removeprefix("interrupted: ") for verdict in verdicts}
        why = f": {min(whys)}" if len(whys) == 1 else ""
        sentence = f"measuring was interrupted before {count} decided{why}"
    elif kind == "environment":
        sentence = reason_text(first)
    elif first.outcome == "failed":
        worst = min(verdicts, key=lambda verdict: verdict.margin or 0.0)
        sentence = _failure_text(kind, worst, len(verdicts) - 1, suspects)
    else:
        spent = "; --ddp-budget ran out" if first.was_left_for_time else ""
        sentence = f"{verdict_word(first).lower()}: {names}: {reason_text(first)}{spent}"
    return Cause(kind, sentence, frozenset(verdict.id for verdict in verdicts), suspects)


def _failure_text(kind: CauseId, worst: Verdict, others: int, suspects: Sequence[Culprit]) -> str:
    """The worst of some failures; a verdict names suspects if a link is often slow, or two ranks disagree."""
    name = one_line(worst.id)
    if WRONG_DATA in worst.flags:
        return f"wrong data: {reason_text(worst)}"
    if METRICS[worst.metric].subject == "check":  # names nodes and GPUs, with what was found and expected
        return f"{name}: {reason_text(worst)}"
    parts = [f"{name} is {digits.point_text(worst)}, bound {digits.bound_text(worst)}"]
    if despite := despite_text(worst):
        parts.append(f", but {_shortened(despite, _LONGEST_REASON)}")
    parts.append(f" ({others} more like it)" if others else "")
    if kind == "host-bound":
        parts.append(f"; {culprit_text(worst.culprits[0])}")
    elif suspects:
        whom = first_few([culprit_name(culprit) for culprit in suspects], 2)
        parts.append(f"; look at {whom}: not certain to be the cause of it")
    else:
        is_alike = any(why.code == "most-fail-alike" for why in worst.remarks)
        parts.append(f"; {'all are alike, so ' * is_alike}no device is named for it")
    return "".join(parts)


def _suspects(kind: CauseId, verdicts: Sequence[Verdict], judgement: Judgement) -> tuple[Culprit, ...]:
    """Whom they name, each once; not the only node, which is where anything has to be looked for.

    Collectives name no GPU of a node: suspects of those that fail are whom bounds on pairs name that only warn.
    """
    is_single = judgement.coverage is not None and judgement.coverage.node_count == 1
    named = [culprit for verdict in verdicts for culprit in verdict.accused]
    named = [culprit for culprit in named if culprit.is_certain or culprit.kind != "node" or not is_single]
    if kind == "slow-communication" and not named:
        pairs = [verdict for verdict in judgement.verdicts if verdict.metric == PAIR_BANDWIDTH_GBPS.name]
        failed = [culprit for verdict in pairs if verdict.outcome == "failed" for culprit in verdict.culprits]
        named = [replace(culprit, is_certain=False) for culprit in failed]
    return tuple({culprit.identity: culprit for culprit in named}.values())


class _Pace:
    """What the verdicts show of how fast devices compute.

    Attributes:
        slow: identities of the devices, and hosts of those, that compute slowly, not certainly.
        is_alike: whether all GPUs and nodes that were compared are alike.
    """

    def __init__(self, judgement: Judgement) -> None:
        self.slow: set[object] = set()
        for verdict in judgement.verdicts:
            for culprit in verdict.culprits:
                if culprit.slowdown is not None or (verdict.outcome == "failed" and _is_of_computing(verdict)):
                    self.slow |= {culprit.identity, culprit.host}
        compared = {verdict.outcome for verdict in judgement.verdicts if METRICS[verdict.metric].reads_own_pace}
        self.is_alike = compared == {"passed"}


def _is_of_computing(verdict: Verdict) -> bool:
    """Whether it is about the speed of GPUs that communicate with none."""
    metric = METRICS[verdict.metric]
    if metric.subject == "probe":
        return metric.maximum_world_size == 1 and _link_of(verdict) is None
    return metric.slowed_by_one_rank and (verdict.world_size == 1 or not metric.communicates)


def _id_of_device(culprit: Culprit, verdict: Verdict, pace: _Pace) -> CauseId:
    """What a finding on a device is; a slow one is not accused of its link for what slowness costs."""
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
    slow: CauseId = "slow-node" if culprit.kind == "node" else "slow-gpu"
    if culprit.slowdown is not None or metric.subject == "probe":
        return slow
    if not (metric.slowed_by_one_rank and metric.communicates):
        return "requirement-not-met"
    if (culprit.host if culprit.kind == "node" else culprit.identity) in pace.slow:
        return slow
    # A value alone does not tell computing from communicating, unless all compute alike or only the latter is in it.
    is_shown = culprit.because.code != "node-alone" or metric.baseline == "no_sync" or pace.is_alike
    return "slow-communication" if is_shown else "slow-training"


def _id_of_verdict(verdict: Verdict, *, is_unfinished: bool) -> CauseId:
    """What a verdict is that no device is certain to be the cause of; `is_unfinished` if its run was."""
    metric, outcome = METRICS[verdict.metric], verdict.outcome
    flags = {**_OF_FLAG, **(_OF_OPEN if outcome == "inconclusive" else {})}
    for flag, kind in flags.items():
        if flag in verdict.flags:
            return kind
    if outcome in ("inconclusive", "not_measured"):
        is_open = outcome == "inconclusive" or verdict.was_left_for_time
        return "interrupted" if is_unfinished else "undecided" if is_open else "not-measured"
    if outcome == "error":
        kinds: Mapping[str, CauseId] = {"gpu": "gpu-error", "link": "slow-node-link", "node": "slow-node-link"}
        return kinds[verdict.culprits[0].kind] if verdict.culprits else "error-in-run"
    if metric.subject == "check":
        return _id_of_check(verdict, verdict.culprits)
    if metric.subject == "node":
        return "regression"
    if link := _link_of(verdict):
        links = {_id_of_link(culprit) for culprit in verdict.culprits if culprit.kind == "link"}
        named = link if verdict.culprits else "slow-communication"  # within a node or between some
        return links.pop() if link == "slow-gpu-link" and len(links) == 1 else named
    if metric.reads_own_pace or metric.compares_places:
        return "slow-node" if metric is NODE_UNIFORMITY else "slow-gpu"
    is_starved = any(culprit.because.code == "starved" for culprit in verdict.culprits)
    return "host-bound" if is_starved else _OF_SUBJECT.get(_subject_of(verdict), "requirement-not-met")


def _subject_of(verdict: Verdict) -> str:
    """Subject under which failures are reported once although several metrics show them."""
    metric = METRICS[verdict.metric]
    is_of_ranks = metric.slowed_by_one_rank or metric is MATMUL_TFLOPS
    if WRONG_DATA in verdict.flags or not is_of_ranks or metric.reads_own_pace:
        return metric.name
    return "computing" if metric.baseline is None else "scaling"


def _id_of_check(verdict: Verdict, culprits: Sequence[Culprit]) -> CauseId:
    if verdict.workload == "gpus" and culprits and all(culprit.kind == "node" for culprit in culprits):
        return "missing-gpus"  # no single GPU is to be reset
    return OF_CHECK.get(verdict.workload.removesuffix("_under_load"), "requirement-not-met")


def _id_of_link(culprit: Culprit) -> CauseId:
    return "slow-gpu-link" if len(culprit.hosts) == 1 else "slow-node-link"


def _link_of(verdict: Verdict) -> CauseId | None:
    """The link that a probe uses; None for other requirements and for probes within a GPU."""
    used = operation_of(verdict.workload) if METRICS[verdict.metric].subject == "probe" else None
    return _LINK_OF_PROBE.get(KINDS[used.kind].metric) if used else None
