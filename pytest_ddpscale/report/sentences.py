"""Sentences about a whole run: loss of all devices, what was not tested and what is not covered."""

from __future__ import annotations

from collections import Counter
from decimal import ROUND_FLOOR

from pytest_ddpscale.plan.metric_catalogue import METRICS
from pytest_ddpscale.report.digits import has_interval
from pytest_ddpscale.report.words.verdicts import reason_text
from pytest_ddpscale.run.verdicts import THIS_LAUNCH_ONLY, Judgement, Verdict
from pytest_ddpscale.util.digits import rounded
from pytest_ddpscale.util.listing import count_text, first_few

MARK = "†"  # marks an interval that is known to be too narrow
TOO_NARROW = f"{MARK} too narrow, from this launch only: launches differ by more; measure again on another day"
_UNSEEN = (
    "All devices alike slow: this run has no published throughput to compare with, so a loss of any size could stay "
    "hidden."
)
NOT_COVERED = (
    "This report covers the day of the measurement and the workloads and world sizes in the table. It does not cover "
    "storage, external networks, software that users install, or wear.",
    "Nodes that appear in no row and in no count were not tested.",
)


def uniform_loss_text(judgement: Judgement) -> str:
    """How fast all GPUs are at least, in a sentence; else that nothing shows it, or empty if something else says so."""
    loss, is_noted = judgement.uniform_loss, bool(judgement.notes_of("unseen-loss"))
    if loss is None:
        compared = any(verdict.shows_uniform_loss for verdict in judgement.verdicts)
        trained = [verdict for verdict in judgement.verdicts if METRICS[verdict.metric].subject == "workload"]
        is_asked = not compared and not is_noted and any(verdict.value is not None for verdict in trained)
        return _UNSEEN if is_asked else ""
    # Where no bound is close to the GPU's own speed, to be faster than published says little; intervals that are too
    # narrow have not that confidence.
    if (is_noted and not loss.largest) or any(map(interval_mark, judgement.verdicts)):
        return ""
    # The lower limits of all compared workloads hold together, so that of the slowest holds for each.
    share = f"{rounded(1 - loss.largest, 1, ROUND_FLOOR, power_of_ten=2)} % of " if loss.largest else ""
    whose = f" for each of {loss.workloads} workloads" if loss.workloads > 1 else ""
    sure = f"{100 * loss.confidence:.4g} % confidence"
    return f"Throughput per GPU in this run: at least {share}the published one{whose} ({sure})."


def interval_mark(verdict: Verdict) -> str:
    """`MARK` for an interval that is too narrow because it rests on rounds alone; else empty."""
    return MARK if THIS_LAUNCH_ONLY in verdict.flags and has_interval(verdict) else ""


def not_tested_lines(judgement: Judgement) -> list[str]:
    """What no bound of the run shows, one line for each reason and each kind of untested device."""
    reasons = Counter(reason_text(verdict) for verdict in judgement.verdicts if verdict.outcome == "not_measured")
    lines = [f"{count_text(count, 'requirement')}: {reason}" for reason, count in reasons.most_common(10)]
    if further := len(reasons) - len(lines):
        lines.append(f"{count_text(further, 'more reason')}: verdicts.json lists all")
    coverage = judgement.coverage
    if coverage is not None and coverage.idle_gpus:
        idle = [f"{gpu.place.number} on {gpu.place.host}" for gpu in coverage.idle_gpus[:5]]
        lines.append(f"GPUs not tested: {first_few(idle, 5, count=len(coverage.idle_gpus))}")
    if coverage is not None and coverage.nodes_absent:
        lines.append(f"Nodes not tested: {first_few(coverage.nodes_absent, 5)}")
    return [*judgement.notes_of("unseen-loss"), *lines]
