"""No report of a simulated run can be taken for a machine's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_ddpscale.report.markdown import render_markdown
from pytest_ddpscale.report.terminal import table_lines
from pytest_ddpscale.run.run_json import WATERMARK, RunRecord
from pytest_ddpscale.run.verdicts import Judgement
from tests.builders.json_types import run_record
from tests.builders.judgements import ACCEPTED, JUDGEMENT, RUN

SIMULATED = replace(ACCEPTED, simulated=True)


@pytest.mark.parametrize("columns", [20, 80, 200])
def test_the_terminal_says_so_right_before_the_outcome(columns: int) -> None:
    lines = [line for line, _ in table_lines(SIMULATED, columns)]
    assert lines[-2] == WATERMARK
    assert lines.count(WATERMARK) == 1
    assert WATERMARK not in "\n".join(line for line, _ in table_lines(JUDGEMENT, columns))


@pytest.mark.parametrize(("judgement", "run"), [(SIMULATED, RUN), (ACCEPTED, run_record(RUN, simulated=True))])
def test_markdown_says_so_at_the_top_and_has_nothing_to_sign(judgement: Judgement, run: RunRecord) -> None:
    report = render_markdown(judgement, run)
    assert report.splitlines()[2].startswith(f"> **{WATERMARK}.**")
    assert "Not to be signed: no machine was measured." in report
    assert "Tested by" not in report
