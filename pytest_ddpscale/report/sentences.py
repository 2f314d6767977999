"""Sentences about a whole run: its certainty, launches, ratios, what was not tested."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import ROUND_FLOOR

from pytest_ddpscale.plan.metric_catalogue import METRICS
from pytest_ddpscale.report import digits, text
from pytest_ddpscale.report.digits import has_interval, number_text
from pytest_ddpscale.run.counting import counted_groups
from pytest_ddpscale.run.verdicts import THIS_LAUNCH_ONLY, Judgement, UniformLoss, Verdict
from pytest_ddpscale.util.digits import rounded
from pytest_ddpscale.util.listing import first_few

# False failures of a requirement exactly on its bound, relative to 1 - confidence, if successive rounds correlate by
# 0.5, the most that intervals allow for. With independent rounds it is 0.014 (benchmarks/family.py).
_WRONG_FAILURES = 0.18
MARK = "†"  # marks an interval that is known to be too narrow
# Simulated, 20,000 runs: with a standard deviation of launches twice that of rounds.
DOUBTFUL = (
    "on a CPU, launches differ about twice as much as rounds, so an interval from 16 rounds covers the true value in "
    "54 % of cases; more rounds do not help, runs on other days do"
)
TOO_NARROW = f"{MARK} too narrow, from this launch only: launches differ by more; measure again on another day"
_UNKNOWN = "training values are from this launch only: their intervals do not include differences between launches"
NOT_COVERED = (
    "This report covers the day of the measurement and the workloads and world sizes in the table. It does not cover "
    "storage, external networks, software that users install, or wear.",
    "Nodes that appear in no row and in no count were not tested.",
)


def certainty_lines(judgement: Judgement) -> Iterator[str]:
    """Sentences for the report; none for a run that neither trained nor probed."""
    measured = [one for one in judgement.verdicts if one.interval is not None]
    groups = [[one for one in group if one.may_reject_by_chance] for group in counted_groups(judgement.verdicts)]
    members = [group[0] for group in groups if group]  # the same measurement errs once
    if any(map(interval_mark, measured)):
        yield f"Accepted or rejected by mistake: {DOUBTFUL}."
    elif measured and members:
        level = min(one.confidence for one in measured)
        yield (
            f"Accepted by mistake: a machine that misses a bound is accepted in at most {_percent(1 - level)} of runs "
            f"if its noise is steady. Each requirement is judged with {_percent(level)} confidence, and acceptance "
            "needs all of them. What becomes slower only after its requirements were decided, mostly after 8 to 10 "
            "rounds, is not seen."
        )
        yield _rejected_by_mistake(members, level)
    loss = uniform_loss_text(judgement)
    if loss:
        yield loss


def _rejected_by_mistake(members: Sequence[Verdict], level: float) -> str:
    counted = text.count_text(len(members), "requirement")
    together = _WRONG_FAILURES * (1 - level)
    apart = 1 - (1 - together) ** len(members)
    return (
        f"Rejected by mistake: {counted} can reject by chance. A machine exactly on all their bounds would be rejected "
        f"in {_percent(together)} of runs if their errors coincide, and in {_percent(apart)} if they are independent "
        "(simulated, with noise that lasts for several rounds). A margin makes that rare."
    )


def uniform_loss_text(judgement: Judgement) -> str:
    """How fast all GPUs are at least, in a sentence; else why that is not known, or empty if nobody asks."""
    loss = judgement.uniform_loss
    if loss is not None:
        # Where no bound is close to the GPU's own speed, to be faster than published says little.
        says_little = judgement.unseen_loss and not loss.largest
        # Intervals that are too narrow have not that confidence.
        return "" if says_little or any(map(interval_mark, judgement.verdicts)) else _at_least(loss)
    shown = [one for one in judgement.verdicts if one.shows_uniform_loss]
    if lost := sum(any(one.is_uniform_loss for one in group) for group in counted_groups(judgement.verdicts)):
        fail = text.count_text(lost, "requirement on throughput fails", "requirements on throughput fail")
        return f"All devices alike slow: {fail} for which no device is named."
    trained = [one for one in judgement.verdicts if METRICS[one.metric].subject == "workload" and one.value is not None]
    if trained and not shown and not judgement.unseen_loss:  # which says the same
        against = "this run has no published throughput to compare with"
        return f"All devices alike slow: {against}, so a loss of any size could stay hidden."
    return ""


def _at_least(loss: UniformLoss) -> str:
    """The lower limits of all compared workloads hold together, so that of the slowest holds for each."""
    share = f"{rounded(1 - loss.largest, 1, ROUND_FLOOR, power_of_ten=2)} % of " if loss.largest else ""
    whose = f" for each of {loss.workloads} workloads" if loss.workloads > 1 else ""
    confidence = f"{_percent(loss.confidence)} confidence"
    return f"Throughput per GPU in this run: at least {share}the published one{whose} ({confidence})."


def _percent(share: float) -> str:
    """``5 %``, ``0.28 %``, ``99.9 %``."""
    return f"{100 * share:.2g} %" if share < 0.5 else f"{100 * share:.4g} %"


def interval_mark(verdict: Verdict) -> str:
    """`MARK` for an interval that is too narrow because it rests on rounds alone; else empty."""
    return MARK if THIS_LAUNCH_ONLY in verdict.flags and has_interval(verdict) else ""


def launches_sentence(verdicts: Sequence[Verdict]) -> str:
    """What the intervals of training values cover, without a full stop; empty if there are none."""
    trained = [one for one in verdicts if METRICS[one.metric].subject == "workload" and has_interval(one)]
    if not trained:
        return ""
    return TOO_NARROW if any(map(interval_mark, trained)) else _UNKNOWN


def launch_sd_text(verdict: Verdict) -> str:
    """``standard deviation of earlier launches 1.2 % of the value``; empty if unknown."""
    if verdict.launch_sd is None:
        return ""
    return f"standard deviation of earlier launches {number_text(verdict.launch_sd, 'fraction')} of the value"


def not_tested_lines(judgement: Judgement) -> list[str]:
    """What no bound of the run shows, one line for each reason and each kind of untested device."""
    missing = [[one for one in group if one.outcome == "not_measured"] for group in counted_groups(judgement.verdicts)]
    reasons = Counter(text.reason_text(group[0]) for group in missing if group)
    said = [f"{text.count_text(count, 'requirement')}: {reason}" for reason, count in reasons.most_common(10)]
    if further := len(reasons) - len(said):
        said.append(f"{text.count_text(further, 'more reason')}: verdicts.json lists all")
    coverage = judgement.coverage
    if coverage is not None and coverage.idle_gpus:
        idle = [f"{gpu.name} on {node.host}" for node, gpu in coverage.idle_gpus[:5]]
        said.append(f"GPUs not tested: {first_few(idle, 5, count=len(coverage.idle_gpus))}")
    if coverage is not None and coverage.nodes_absent:
        said.append(f"Nodes not tested: {first_few(coverage.nodes_absent, 5)}")
    return [*filter(None, [judgement.unseen_loss]), *said]


def ratio_lines(verdicts: Iterable[Verdict]) -> Mapping[str, Sequence[str]]:
    """By the id of a throughput, each measured ratio that is counted with it.

    ``1.76× a100-sxm4-80gb; bound ≥ 1.64×``, with its own verdict where that is another one.
    """
    found: dict[str, Sequence[str]] = {}
    for lead, *ratios in counted_groups(verdicts):
        if said := [_ratio_text(one, lead) for one in ratios if one.compared is not None]:
            found[lead.id] = said
    return found


def _ratio_text(ratio: Verdict, lead: Verdict) -> str:
    assert ratio.compared is not None  # callers pass only measured ratios
    said = f"{digits.point_text(ratio)} {text.one_line(ratio.compared.reference)}; bound {digits.bound_text(ratio)}"
    word = text.verdict_word(ratio)
    return said if word == text.verdict_word(lead) else f"{said}: {word}"
