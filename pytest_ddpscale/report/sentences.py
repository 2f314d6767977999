"""Sentences about a whole run: loss of all devices, launches, what was not tested."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from decimal import ROUND_FLOOR

from pytest_ddpscale.plan.metric_catalogue import METRICS
from pytest_ddpscale.report.digits import has_interval
from pytest_ddpscale.report.words.verdicts import reason_text
from pytest_ddpscale.run.verdicts import THIS_LAUNCH_ONLY, Judgement, UniformLoss, Verdict
from pytest_ddpscale.util.digits import rounded
from pytest_ddpscale.util.listing import count_text, first_few

MARK = "†"  # marks an interval that is known to be too narrow
TOO_NARROW = f"{MARK} too narrow, from this launch only: launches differ by more; measure again on another day"
_UNKNOWN = "training values are from this launch only: their intervals do not include differences between launches"
NOT_COVERED = (
    "This report covers the day of the measurement and the workloads and world sizes in the table. It does not cover "
    "storage, external networks, software that users install, or wear.",
    "Nodes that appear in no row and in no count were not tested.",
)


def uniform_loss_text(judgement: Judgement) -> str:
    """How fast all GPUs are at least, in a sentence; else why that is not known, or empty if nobody asks."""
    loss = judgement.uniform_loss
    if loss is not None:
        # Where no bound is close to the GPU's own speed, to be faster than published says little.
        says_little = judgement.notes_of("unseen-loss") and not loss.largest
        # Intervals that are too narrow have not that confidence.
        return "" if says_little or any(map(interval_mark, judgement.verdicts)) else _at_least(loss)
    shown = [one for one in judgement.verdicts if one.shows_uniform_loss]
    if lost := sum(one.is_uniform_loss for one in judgement.verdicts):
        fail = count_text(lost, "requirement on throughput fails", "requirements on throughput fail")
        return f"All devices alike slow: {fail} for which no device is named."
    trained = [one for one in judgement.verdicts if METRICS[one.metric].subject == "workload" and one.value is not None]
    if trained and not shown and not judgement.notes_of("unseen-loss"):  # which says the same
        against = "this run has no published throughput to compare with"
        return f"All devices alike slow: {against}, so a loss of any size could stay hidden."
    return ""


def _at_least(loss: UniformLoss) -> str:
    """The lower limits of all compared workloads hold together, so that of the slowest holds for each."""
    share = f"{rounded(1 - loss.largest, 1, ROUND_FLOOR, power_of_ten=2)} % of " if loss.largest else ""
    whose = f" for each of {loss.workloads} workloads" if loss.workloads > 1 else ""
    confidence = f"{100 * loss.confidence:.4g} % confidence"
    return f"Throughput per GPU in this run: at least {share}the published one{whose} ({confidence})."


def interval_mark(verdict: Verdict) -> str:
    """`MARK` for an interval that is too narrow because it rests on rounds alone; else empty."""
    return MARK if THIS_LAUNCH_ONLY in verdict.flags and has_interval(verdict) else ""


def launches_sentence(verdicts: Sequence[Verdict]) -> str:
    """What the intervals of training values cover, without a full stop; empty if there are none."""
    trained = [one for one in verdicts if METRICS[one.metric].subject == "workload" and has_interval(one)]
    if not trained:
        return ""
    return TOO_NARROW if any(map(interval_mark, trained)) else _UNKNOWN


def not_tested_lines(judgement: Judgement) -> list[str]:
    """What no bound of the run shows, one line for each reason and each kind of untested device."""
    reasons = Counter(reason_text(one) for one in judgement.verdicts if one.outcome == "not_measured")
    said = [f"{count_text(count, 'requirement')}: {reason}" for reason, count in reasons.most_common(10)]
    if further := len(reasons) - len(said):
        said.append(f"{count_text(further, 'more reason')}: verdicts.json lists all")
    coverage = judgement.coverage
    if coverage is not None and coverage.idle_gpus:
        idle = [f"{gpu.place.number} on {gpu.place.host}" for gpu in coverage.idle_gpus[:5]]
        said.append(f"GPUs not tested: {first_few(idle, 5, count=len(coverage.idle_gpus))}")
    if coverage is not None and coverage.nodes_absent:
        said.append(f"Nodes not tested: {first_few(coverage.nodes_absent, 5)}")
    return [*judgement.notes_of("unseen-loss"), *said]
