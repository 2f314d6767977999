"""Reports say how far launches differ, or that an interval is about a single one."""

from __future__ import annotations

from dataclasses import replace

from pytest_ddpscale.evidence.columns import Columns
from pytest_ddpscale.evidence.evidence import Evidence
from pytest_ddpscale.report.html_page import render_html
from pytest_ddpscale.report.launches_text import launches_sentence
from pytest_ddpscale.report.terminal import table_lines
from pytest_ddpscale.results.verdicts import THIS_LAUNCH_ONLY, Judgement, Verdict
from tests.builders.judgements import ACCEPTED, ERROR, PASSED, PLAN, RATIO, RUN
from tests.report.page_text import page_text

DOUBTFUL = replace(PASSED, flags=(THIS_LAUNCH_ONLY,))
SEVERAL = replace(PASSED, launches=3, launch_sd=0.0123, rounds=24)


def judgement(*verdicts: Verdict) -> Judgement:
    return replace(ACCEPTED, verdicts=verdicts)


def terminal(*verdicts: Verdict) -> list[str]:
    return [line for line, _ in table_lines(judgement(*verdicts), 200)]


def report(*verdicts: Verdict) -> str:
    return page_text(render_html(judgement(*verdicts), RUN, Evidence(PLAN, Columns(), {})))


def test_a_single_launch_on_gpus_is_said_to_be_one() -> None:
    sentence = "raining values are from this launch only: their intervals do not include differences between launches"
    assert f"t{sentence}" in terminal(PASSED, RATIO)
    assert f"T{sentence}.\n" in report(PASSED, RATIO)


def test_a_doubtful_interval_is_marked_beside_it() -> None:
    lines = terminal(DOUBTFUL, RATIO)
    row, other = (next(line for line in lines if line.startswith(one.id)) for one in (DOUBTFUL, RATIO))
    assert "97.4 %  ≥ 97.1 %†" in row
    assert "†" not in other
    assert row.index("  +1.5 %") == other.index("  +7.3 %"), "numbers stand below each other"
    assert any(line.startswith("† this launch only") for line in lines)
    assert "| at least 97.1 %† |" in report(DOUBTFUL)
    assert "53 %" in report(DOUBTFUL)


def test_several_launches_are_told_with_how_far_they_differ() -> None:
    said = launches_sentence([SEVERAL, replace(RATIO, launches=3, launch_sd=0.004)])
    assert said == (
        "training values are means of 3 launches; "
        "rates and efficiencies vary between launches with a standard deviation of 0.4 % … 1.2 %"
    )
    assert launches_sentence([SEVERAL]).endswith("a standard deviation of 1.2 %")
    rendered = report(SEVERAL)
    assert "| 24 in 3 launches |" in rendered
    assert "standard deviation of 3 launches 1.2 % of the value" in rendered


def test_what_is_near_nothing_is_left_out_of_how_far_launches_differ() -> None:
    """0.2 and 0.6 % of a step are a cost that differs by half of itself, and no launches that differ by 50 %."""
    overhead = replace(SEVERAL, id="ddp_overhead[r-1gpu]", metric="ddp_overhead", value=0.004, launch_sd=0.5)
    assert launches_sentence([SEVERAL, overhead]).endswith("a standard deviation of 1.2 %")
    assert launches_sentence([overhead]) == "training values are means of 3 launches"


def test_nothing_is_said_where_nothing_was_trained() -> None:
    assert launches_sentence([ERROR]) == ""
    assert launches_sentence([]) == ""
