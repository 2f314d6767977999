"""The terminal's table is readable at any width."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_ddpscale.report.causes import headline
from pytest_ddpscale.report.terminal import brief_lines, table_lines
from pytest_ddpscale.run.verdicts import Blocker, Judgement, RunOutcome, Verdict
from tests.builders.judgements import (
    ACCEPTED,
    ALL,
    ERROR,
    INCONCLUSIVE,
    JUDGEMENT,
    NOT_MEASURED,
    PASSED,
    judgement_with,
)

STYLES = {"", "header", "passed", "failed", "warned", "undecided"}
WORDS = ["PASS", "FAIL", "WARN", "INCONCLUSIVE", "NOT MEASURED", "ERROR"]


def _text(judgement: Judgement, columns: int) -> str:
    return "\n".join(line for line, _ in table_lines(judgement, columns))


@pytest.mark.parametrize("columns", [40, 50, 64, 80, 100, 200])
def test_everything_fits_the_width_and_no_verdict_is_lost(columns: int) -> None:
    lines = table_lines(JUDGEMENT, columns)
    assert {style for _, style in lines} <= STYLES
    for line, _ in lines:
        assert len(line) <= columns
        assert line == line.rstrip()
    outcome = next(number for number, (line, _) in enumerate(lines) if line.startswith("REJECTED: "))
    assert " ".join(line.strip() for line, _ in lines[outcome:]).startswith(headline(JUDGEMENT))
    rows = [line for line, style in lines[:outcome] if style not in {"", "header"}]
    assert len(rows) == len(ALL)
    for word in WORDS:
        assert any(row.endswith(f"  {word}") for row in rows)


WIDE = replace(
    INCONCLUSIVE, id="throughput_per_gpu[resnet50-nchw-fp16-2nodes]", value=102021.3, interval=(101923.2, 102115.0),
    bound={"at_least": 101970.25}, metric="throughput_per_gpu", unit="img/s", provisional=True,
)  # fmt: skip


@pytest.mark.parametrize("columns", [80, 100])
@pytest.mark.parametrize("verdicts", [(WIDE,), (WIDE, replace(WIDE, id="throughput_per_gpu[other]")), ALL])
def test_from_80_columns_up_value_limit_bound_and_verdict_are_always_there(
    verdicts: tuple[Verdict, ...], columns: int
) -> None:
    for lines_of in (table_lines, brief_lines):
        lines = [line for line, _ in lines_of(judgement_with(*verdicts), columns)]
        assert all(len(line) <= columns for line in lines)
        header = next(line.split() for line in lines if line.endswith("verdict"))
        assert [word for word in header if word not in ("requirement", "margin")] == [
            "value", "limit", "bound", "verdict",
        ]  # fmt: skip


def test_names_that_would_look_alike_when_cut_are_written_out() -> None:
    names = [f"all-reduce-by-whom-of-{size}mib-among-so-many-gpus" for size in (1, 25)]
    verdicts = tuple(replace(PASSED, metric="busbw_gbps", id=f"busbw_gbps[{name}]") for name in names)
    lines = [line for line, _ in table_lines(judgement_with(*verdicts), 80)]
    assert [line.strip() for line in lines if "all-reduce" in line] == names
    assert sum(line.endswith("PASS") for line in lines) == 2


def test_long_message_is_cut() -> None:
    long = replace(ERROR, reason="word " * 1000)
    assert len(table_lines(judgement_with(long), 80)) < 20


def test_only_causes_follow_the_outcome() -> None:
    styles: dict[RunOutcome, str] = {
        "accepted": "passed",
        "rejected": "failed",
        "incomplete": "failed",
        "partial": "undecided",
    }
    for outcome, style in styles.items():
        blockers = (Blocker("run", "acceptance", "because"),) if style == "failed" else ()
        judgement = replace(ACCEPTED, outcome=outcome, reason="because", blockers=blockers)
        assert table_lines(judgement, 80)[-2 if blockers else -1] == (f"{outcome.upper()}: because", style)


def test_a_path_in_a_reason_can_be_copied() -> None:
    path = f"/shared/site/{'ddpscale-runs/' * 12}job-1234"
    verdict = replace(NOT_MEASURED, reason=f"interrupted: --ddp-resume={path} finishes it")
    assert f"--ddp-resume={path}" in _text(judgement_with(verdict), 80)
