"""What reports say of launches: how far values of several differ, or that an interval is about a single one."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_ddpscale.plan.metric_catalogue import METRICS
from pytest_ddpscale.report.text import has_interval, number_text
from pytest_ddpscale.results.verdicts import THIS_LAUNCH_ONLY, Verdict

MARK = "†"  # beside an interval that is known to be too narrow
_DOUBTFUL = (
    f"{MARK} this launch only: on a CPU launches differ about twice as much as rounds, so that such an interval, of 16 "
    "rounds, holds in 53 % of cases; further rounds do not mend that, --ddp-launches=3 does"
)
_UNKNOWN = "training values are of this launch only: how much launches differ is not part of their intervals"


def interval_mark(verdict: Verdict) -> str:
    """`MARK` beside an interval that rounds alone make too narrow; empty beside others."""
    return MARK if THIS_LAUNCH_ONLY in verdict.flags and has_interval(verdict) else ""


def launches_sentence(verdicts: Sequence[Verdict]) -> str:
    """What intervals of training are about, without a full stop; empty where there are none."""
    trained = [one for one in verdicts if METRICS[one.metric].subject == "workload" and has_interval(one)]
    if not trained:
        return ""
    if any(map(interval_mark, trained)):
        return _DOUBTFUL
    count = max(one.launches for one in trained)
    if count == 1:
        return _UNKNOWN
    said = f"training values are means of {count} launches"
    # Of what is near nothing, such as the cost of DDP on one GPU, a share of the value says little.
    rates = [one for one in trained if METRICS[one.metric].takes_precision]
    spreads = [one.launch_sd for one in rates if one.launch_sd is not None]
    if not spreads:
        return said
    least, most = (number_text(end, "fraction") for end in (min(spreads), max(spreads)))
    ends = least if least == most else f"{least} … {most}"
    return f"{said}; rates and efficiencies vary between launches with a standard deviation of {ends}"


def launch_sd_text(verdict: Verdict) -> str:
    """``standard deviation of 3 launches 1.2 % of the value``, or of earlier ones; empty where that is unknown."""
    if verdict.launch_sd is None:
        return ""
    which = "earlier" if verdict.launches == 1 else verdict.launches
    return f"standard deviation of {which} launches {number_text(verdict.launch_sd, 'fraction')} of the value"
