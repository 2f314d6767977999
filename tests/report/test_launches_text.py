"""Reports say how far launches differ, or that an interval is about a single one."""

from __future__ import annotations

from dataclasses import replace

from pytest_ddpscale.report.html_page import render_html
from pytest_ddpscale.report.sentences import launches_sentence
from pytest_ddpscale.report.terminal import table_lines
from pytest_ddpscale.run.columns import Columns
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.verdicts import Judgement, Verdict
from tests.builders.judgements import ACCEPTED, PASSED, PLAN, RUN
from tests.report.page_text import page_text

SEVERAL = replace(PASSED, launches=3, launch_sd=0.0123, rounds=24)


def judgement(*verdicts: Verdict) -> Judgement:
    return replace(ACCEPTED, verdicts=verdicts)


def terminal(*verdicts: Verdict) -> list[str]:
    return [line for line, _ in table_lines(judgement(*verdicts), 200)]


def report(*verdicts: Verdict) -> str:
    return page_text(render_html(judgement(*verdicts), RUN, Evidence(PLAN, Columns(), {})))


def test_what_is_near_nothing_is_left_out_of_how_far_launches_differ() -> None:
    """0.2 and 0.6 % of a step are a cost that differs by half of itself, and no launches that differ by 50 %."""
    overhead = replace(SEVERAL, id="ddp_overhead[r-1gpu]", metric="ddp_overhead", value=0.004, launch_sd=0.5)
    assert launches_sentence([SEVERAL, overhead]).endswith("a standard deviation of 1.2 %")
    assert launches_sentence([overhead]) == "training values are means of 3 launches"
