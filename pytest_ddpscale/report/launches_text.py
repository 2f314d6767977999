"""What reports say about launches: the spread between several, or that an interval covers only one."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_ddpscale.plan.metric_catalogue import METRICS
from pytest_ddpscale.report.text import has_interval, number_text
from pytest_ddpscale.run.verdicts import THIS_LAUNCH_ONLY, Verdict

MARK = "†"  # marks an interval that is known to be too narrow
# Simulated, 20,000 runs: with a standard deviation of launches twice that of rounds.
DOUBTFUL = (
    "on a CPU, launches differ about twice as much as rounds, so an interval from 16 rounds covers the true value in "
    "54 % of cases; more rounds do not help, --ddp-launches=3 does"
)
TOO_NARROW = f"{MARK} too narrow, from this launch only: launches differ by more, which --ddp-launches=3 includes"
_UNKNOWN = "training values are from this launch only: their intervals do not include differences between launches"


def interval_mark(verdict: Verdict) -> str:
    """`MARK` for an interval that is too narrow because it rests on rounds alone; else empty."""
    return MARK if THIS_LAUNCH_ONLY in verdict.flags and has_interval(verdict) else ""


def launches_sentence(verdicts: Sequence[Verdict]) -> str:
    """What the intervals of training values cover, without a full stop; empty if there are none."""
    trained = [one for one in verdicts if METRICS[one.metric].subject == "workload" and has_interval(one)]
    if not trained:
        return ""
    if any(map(interval_mark, trained)):
        return TOO_NARROW
    count = max(one.launches for one in trained)
    if count == 1:
        return _UNKNOWN
    said = f"training values are means of {count} launches"
    # A relative spread says little about values near zero, such as the cost of DDP on one GPU.
    rates = [one for one in trained if METRICS[one.metric].is_rate]
    spreads = [one.launch_sd for one in rates if one.launch_sd is not None]
    if not spreads:
        return said
    least, most = (number_text(end, "fraction") for end in (min(spreads), max(spreads)))
    ends = least if least == most else f"{least} … {most}"
    return f"{said}; rates and efficiencies vary between launches with a standard deviation of {ends}"


def launch_sd_text(verdict: Verdict) -> str:
    """``standard deviation of 3 launches 1.2 % of the value``, or of earlier launches; empty if unknown."""
    if verdict.launch_sd is None:
        return ""
    which = "earlier" if verdict.launches == 1 else verdict.launches
    return f"standard deviation of {which} launches {number_text(verdict.launch_sd, 'fraction')} of the value"
