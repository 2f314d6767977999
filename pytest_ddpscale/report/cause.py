"""What keeps a machine from being accepted, each cause once, and the sentence that every report leads with.

A failure is explained by a device only where its verdict is certain of that device; or of the node that the device is
on, if a slow rank makes the metric worse, or both computed wrong data. Whatever is left is a cause of its own.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pytest_ddpscale.plan.metric_catalogue import METRICS, RANK_UNIFORMITY
from pytest_ddpscale.report import text
from pytest_ddpscale.results.verdicts import WRONG_DATA, Blocker, Culprit, Judgement, Verdict
from pytest_ddpscale.util.listing import first_few

_OF_RANKS = ("workload", "probe")  # metrics that every rank is measured for
_Who = tuple[str, str, int | None, str | None, int | None]  # kind, host, GPU, other end


@dataclass(frozen=True)
class Cause:
    """One thing that explains some of what keeps a machine from being accepted.

    Attributes:
        sentence: who or what, in numbers, without a full stop.
        explains: names of the blockers that it explains.
        culprits: who is named for it, the most certain first; none where no device is to blame.
    """

    sentence: str
    explains: frozenset[str]
    culprits: tuple[Culprit, ...] = ()


def causes(judgement: Judgement) -> tuple[Cause, ...]:
    """All causes of failures, then of what is not decided; of each those with somebody to blame first, the most first.

    Every blocker is explained by one of them at least.
    """
    blocking = [verdict for verdict in judgement.verdicts if judgement.is_blocked_by(verdict)]
    named = _of_devices(blocking)
    named += _of_missing_gpus(judgement, blocking)
    explained = frozenset[str]().union(*(cause.explains for cause in named))
    left = [verdict for verdict in blocking if verdict.id not in explained]
    unnamed = [*_of_other_blockers(judgement.other_blockers), *_of_nobody(left, _are_alike(judgement))]
    failed = {verdict.id for verdict in blocking if verdict.outcome == "failed"}
    for found in (named, unnamed):
        found.sort(key=_weight)
    return tuple(sorted((*named, *unnamed), key=lambda cause: failed.isdisjoint(cause.explains)))


def _weight(cause: Cause) -> tuple[bool, int, float]:
    """Wrong data before speed, whatever explains more; then the most, and of as many the slowest."""
    is_wrong = any(culprit.computed_wrong for culprit in cause.culprits)
    return not is_wrong, -len(cause.explains), -max((one.slowdown or 0.0 for one in cause.culprits), default=0.0)


def headline(judgement: Judgement) -> str:
    """``REJECTED: GPU 3 (GPU-4f1c…) on node7 is 1.20× slower …; that explains 21 of 21 failures``."""
    found = causes(judgement)
    if not found or judgement.accepts or judgement.outcome == "partial":
        return text.outcome_text(judgement)
    first, parts = found[0], [found[0].sentence]
    unmeasured = {one.id for one in judgement.verdicts if one.outcome in ("inconclusive", "not_measured")}
    failures = [blocker.name for blocker in judgement.blockers if blocker.name not in unmeasured]
    if len(judgement.blockers) > 1:
        counted = failures if any(name in first.explains for name in failures) else [b.name for b in judgement.blockers]
        noun = "failures" if counted is failures else "requirements that are not decided"
        parts.append(f"that explains {sum(name in first.explains for name in counted)} of {len(counted)} {noun}")
        shared = frozenset[str]().union(*(one.explains for one in found[1:])) & first.explains & set(counted)
        parts[-1] += f", {len(shared)} of them not alone" if shared else ""
    if len(found) > 1:
        parts.append(f"{len(found) - 1} more cause{'s' if len(found) > 2 else ''}")
    parts += text.changes_by_site(judgement)
    return f"{text.outcome_word(judgement.outcome)}: {'; '.join(parts)}"


def _of_devices(blocking: Sequence[Verdict]) -> list[Cause]:
    """One cause for each device, node or link that a verdict is certain of."""
    by_who: dict[_Who, list[tuple[Culprit, Verdict]]] = defaultdict(list)
    for verdict in blocking:
        for culprit in verdict.culprits:
            if culprit.is_certain:
                by_who[_who(culprit)].append((culprit, verdict))
    gpus = [found for who, found in by_who.items() if who[0] == "gpu"]
    merged = []
    for who, found in by_who.items():
        if who[0] == "node":
            there = [own for own in gpus if own[0][0].host == who[1]]
            # A node with a slowdown of its own is not explained by that of one of its GPUs.
            explained = {v.id for c, v in found if c.slowdown is None and any(_explains(own, v) for own in there)}
            for own in there:
                own += [one for one in found if one[1].id in explained and _explains(own, one[1])]
            found = [one for one in found if one[1].id not in explained]
        if found:
            merged.append(found)
    return [_of_device(found) for found in merged]


def _of_missing_gpus(judgement: Judgement, blocking: Sequence[Verdict]) -> list[Cause]:
    """GPUs that left while their peers were measured: what is not decided of training and probes may be theirs."""
    gpus = judgement.coverage.gpus if judgement.coverage is not None else []
    # One round may have been cut short by the end of the run.
    missing = [(node, gpu) for node, gpu in gpus if gpu.rounds_missing > 1]
    open_ = {v.id for v in blocking if v.outcome == "inconclusive" and METRICS[v.metric].subject in _OF_RANKS}
    if not missing or not open_:
        return []
    suspects = [
        Culprit("gpu", node.host, gpu.index, gpu.uuid, f"not measured in {gpu.rounds_missing} rounds of its peers")
        for node, gpu in sorted(missing, key=lambda one: -one[1].rounds_missing)
    ]
    who = first_few([text.culprit_name(one) for one in suspects], 2)
    rounds = text.count_text(max(gpu.rounds_missing for _, gpu in missing), "round")
    verb, most = ("is", "") if len(missing) == 1 else ("are", "up to ")
    sentence = f"{who} {verb} missing in {most}{rounds} in which other GPUs were measured"
    return [Cause(sentence, frozenset(open_), tuple(suspects))]


def _explains(own: Sequence[tuple[Culprit, Verdict]], verdict: Verdict) -> bool:
    """Whether what is known of a GPU explains a failure that its whole node is named for."""
    is_slow = any(culprit.slowdown is not None for culprit, _ in own) and METRICS[verdict.metric].slowed_by_one_rank
    is_wrong = WRONG_DATA in verdict.flags and any(culprit.computed_wrong for culprit, _ in own)
    return is_slow or is_wrong


def _of_device(found: Sequence[tuple[Culprit, Verdict]]) -> Cause:
    first = found[0][0]
    own = [(culprit, verdict) for culprit, verdict in found if _who(culprit) == _who(first)]
    slow = [culprit for culprit, _ in own if culprit.slowdown is not None]
    wrong = [culprit for culprit, _ in own if culprit.computed_wrong]
    # Wrong data matters more than speed, and speed alone is told in numbers that are typed.
    culprit = (wrong or slow or [first])[0]
    sentence = _slow_text(culprit) if culprit.slowdown is not None and not wrong else text.culprit_text(culprit)
    if wrong:
        sentence = f"wrong data: {sentence}"
    return Cause(sentence, frozenset(verdict.id for _, verdict in found), (culprit,))


def _slow_text(culprit: Culprit) -> str:
    whom = "its peers" if culprit.peers is None else f"its {text.count_text(culprit.peers, 'peer')}"
    slow, rounds = culprit.slow_rounds or 0, culprit.rounds or 0
    when = f" in {slow} of {rounds} rounds" if 0 < slow < rounds else ""
    return (
        f"{text.culprit_name(culprit)} is {culprit.slowdown:.2f}× slower than {whom} even without communication{when}"
    )


def _of_other_blockers(blockers: Iterable[Blocker]) -> Iterator[Cause]:
    tests: dict[str, list[str]] = defaultdict(list)
    for one in blockers:
        if one.kind == "test":
            tests[one.reason].append(one.name)
        else:
            yield Cause(text.one_line(one.reason), frozenset({one.name}))
    for reason, names in tests.items():
        shown = first_few([text.one_line(name) for name in names], 2)
        who = f"test {shown}" if len(names) == 1 else f"tests {shown}:"
        yield Cause(f"{who} {text.one_line(reason)}", frozenset(names))


def _of_nobody(verdicts: Sequence[Verdict], are_alike: bool) -> list[Cause]:
    """Failures that no verdict is certain of anybody for: alike ones together, told once."""
    uniform = [verdict for verdict in verdicts if _is_uniform(verdict)]
    others: dict[tuple[str, str], list[Verdict]] = defaultdict(list)
    for verdict in verdicts:
        if verdict not in uniform:
            is_measured = verdict.outcome in ("failed", "inconclusive")
            others[verdict.outcome, verdict.metric if is_measured else verdict.reason].append(verdict)
    found = [_uniform_loss(uniform, are_alike)] if uniform else []
    return found + [_of_alike(alike) for alike in others.values()]


def _is_uniform(verdict: Verdict) -> bool:
    """Whether throughput is below what was published, and no rank is slower than its peers."""
    no_rank = all(culprit.slowdown is None for culprit in verdict.culprits)
    return verdict.outcome == "failed" and verdict.shows_uniform_loss and no_rank and WRONG_DATA not in verdict.flags


def _are_alike(judgement: Judgement) -> bool:
    """Whether ranks were compared with each other, and none was slower."""
    return any(one.metric == RANK_UNIFORMITY.name and one.passed for one in judgement.verdicts)


def _uniform_loss(verdicts: Sequence[Verdict], are_alike: bool) -> Cause:
    losses = [1 - v.value / v.published for v in verdicts if v.value is not None and v.published]
    loss = text.number_text(statistics.median(losses), "fraction")
    sentence = f"all GPUs are alike and {loss} below the published throughput, so no device is named"
    if not are_alike:
        sentence = f"{loss} below the published throughput; whether all GPUs are alike was not measured"
    return Cause(sentence, frozenset(verdict.id for verdict in verdicts), _suspects(verdicts))


def _of_alike(verdicts: Sequence[Verdict]) -> Cause:
    """Of one outcome and metric, or of one reason why nothing is known."""
    names, first = first_few([text.one_line(verdict.id) for verdict in verdicts], 2), verdicts[0]
    suspects = _suspects(verdicts)
    if first.outcome == "failed":
        worst = min(verdicts, key=lambda verdict: verdict.margin or 0.0)
        sentence = f"{text.one_line(worst.id)} is {text.point_text(worst)}, bound {text.bound_text(worst)}"
        # Of one link that is slow many times, or of two ranks either of which may be odd, the verdict is not certain.
        whom = first_few([text.culprit_name(one) for one in suspects], 2)
        sentence += f"; nobody is certain to be at fault: look at {whom}" if whom else "; no device stands out"
        if WRONG_DATA in worst.flags:
            sentence = f"wrong data: {text.reason_text(worst)}"
    else:
        sentence = f"{text.verdict_word(first).lower()}: {names}: {text.reason_text(first)}"
    return Cause(sentence, frozenset(verdict.id for verdict in verdicts), suspects)


def _suspects(verdicts: Iterable[Verdict]) -> tuple[Culprit, ...]:
    """Everybody whom they name, once."""
    return tuple({_who(culprit): culprit for verdict in verdicts for culprit in verdict.culprits}.values())


def _who(culprit: Culprit) -> _Who:
    return culprit.kind, culprit.host, culprit.gpu_index, culprit.peer_host, culprit.peer_gpu_index
