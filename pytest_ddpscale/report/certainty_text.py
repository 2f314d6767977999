"""How certain an outcome is: false acceptance, false rejection, and a loss that no requirement would show."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from decimal import ROUND_FLOOR

from pytest_ddpscale.plan.metric_catalogue import METRICS
from pytest_ddpscale.report import text
from pytest_ddpscale.report.launches_text import DOUBTFUL, interval_mark
from pytest_ddpscale.run.counting import counted_groups
from pytest_ddpscale.run.verdicts import Judgement, UniformLoss, Verdict
from pytest_ddpscale.util.digits import rounded

# False failures of a requirement exactly on its bound, relative to 1 - confidence, if successive rounds correlate by
# 0.5, the most that intervals allow for. With independent rounds it is 0.014 (benchmarks/family.py).
_WRONG_FAILURES = 0.18
# The same for several launches: one side of Student's t, which is exact for their number.
_WRONG_FAILURES_OF_LAUNCHES = 0.5
# Smaller p-values depend on the noise model more than on chance.
_LEAST_CHANCE = 1e-9


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
    has_launches = any(one.launches > 1 for one in members)
    shares = [_WRONG_FAILURES_OF_LAUNCHES if one.launches > 1 else _WRONG_FAILURES for one in members]
    together = max(shares) * (1 - level)
    apart = 1 - math.prod(1 - share * (1 - level) for share in shares)
    how = "simulated, with noise that lasts for several rounds"
    if has_launches:
        how = "if launches are normally distributed"
    return (
        f"Rejected by mistake: {counted} can reject by chance. A machine exactly on all their bounds would be rejected "
        f"in {_percent(together)} of runs if their errors coincide, and in {_percent(apart)} if they are independent "
        f"({how}). A margin makes that rare."
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


def chance_text(verdict: Verdict) -> str:
    """How rarely this failure happens by chance; empty if nothing failed or chance plays no part."""
    if verdict.p_value is None or verdict.outcome not in ("failed", "inconclusive"):
        return ""
    if verdict.p_value < _LEAST_CHANCE:
        return "A machine that meets this bound fails so by chance in less than 1 of 1,000,000,000 runs."
    runs = f"1 of {1 / verdict.p_value:,.0f} runs" if verdict.p_value < 1 else "any number of runs"
    return f"A machine that meets this bound fails so by chance in at most {runs} (p = {verdict.p_value:.2g})."


def _percent(share: float) -> str:
    """``5 %``, ``0.28 %``, ``99.9 %``."""
    return f"{100 * share:.2g} %" if share < 0.5 else f"{100 * share:.4g} %"
