"""The terminal's table is readable at any width."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_ddpscale.report.terminal import brief_lines, table_lines
from pytest_ddpscale.results.verdicts import Blocker, Judgement, RunOutcome, Verdict
from tests.builders.judgements import (
    ACCEPTED,
    ALL,
    ERROR,
    FAILED,
    HOSTILE,
    INCONCLUSIVE,
    JUDGEMENT,
    NOT_MEASURED,
    PASSED,
    WARNED,
    hostile_judgement,
    judgement_with,
)

STYLES = {"", "header", "passed", "failed", "warned", "undecided"}
WORDS = ["PASS", "FAIL", "WARN", "INCONCLUSIVE", "NOT MEASURED", "ERROR"]


def _text(judgement: Judgement, columns: int) -> str:
    return "\n".join(line for line, _ in table_lines(judgement, columns))


@pytest.mark.parametrize("columns", [40, 50, 64, 80, 100, 200])
def test_everything_but_the_outcome_fits_the_width_and_no_verdict_is_lost(columns: int) -> None:
    lines = table_lines(JUDGEMENT, columns)
    assert {style for _, style in lines} <= STYLES
    for line, _ in lines[:-1]:
        assert len(line) <= columns
        assert line == line.rstrip()
    rows = [line for line, style in lines[:-1] if style not in {"", "header"}]
    assert len(rows) == len(ALL)
    for word in WORDS:
        assert any(row.endswith(f"  {word}") for row in rows)


def test_80_columns_show_every_column_and_group_by_metric() -> None:
    lines = table_lines(JUDGEMENT, 80)
    header, style = lines[0]
    assert style == "header"
    assert header.split("  ")[0] == "requirement"
    assert header.split()[1:] == ["value", "limit", "bound", "verdict"]
    assert lines[1] == ("weak_scaling_efficiency", "")
    assert " ".join(lines[2][0].split()) == "resnet152-fp16-8gpu 97.4 % ≥ 97.1 % ≥ 96.0 % PASS"
    assert lines[2][1] == "passed"
    assert lines[3][0].split()[0] == "vit-b16-bf16-8gpu", "verdicts of one metric stand together"


WIDE = replace(
    INCONCLUSIVE, id="throughput_per_gpu[resnet50-nchw-fp16-2nodes]", value=102021.3, interval=(101923.2, 102115.0),
    bound={"at_least": 101970.25}, metric="throughput_per_gpu", provisional=True,
)  # fmt: skip


@pytest.mark.parametrize("columns", [80, 100])
@pytest.mark.parametrize("verdicts", [(WIDE,), (WIDE, replace(WIDE, id="throughput_per_gpu[other]")), ALL])
def test_from_80_columns_up_value_limit_bound_and_verdict_are_always_there(
    verdicts: tuple[Verdict, ...], columns: int
) -> None:
    for lines_of in (table_lines, brief_lines):
        lines = [line for line, _ in lines_of(judgement_with(*verdicts), columns)]
        assert all(len(line) <= columns for line in lines if not line.startswith("REJECTED"))
        header = next(line.split() for line in lines if line.endswith("verdict"))
        assert [word for word in header if word not in ("requirement", "margin")] == [
            "value", "limit", "bound", "verdict",
        ]  # fmt: skip


def test_an_interval_gives_its_further_end_before_anything_else_gives_way() -> None:
    lines = [line for line, _ in table_lines(judgement_with(WIDE), 80)]
    assert "102021.30 img/s ≥ 101923.20 img/s ≥ 101970.25 img/s* INCONCLUSIVE" in [
        " ".join(one.split()) for one in lines
    ]
    assert "  resnet50-nchw-fp16-2nodes" in lines, "a name that does not fit has a line of its own"
    assert any("101923.20 … 102115.00 img/s" in line for line, _ in table_lines(judgement_with(WIDE), 120))


def test_what_is_counted_has_no_margin() -> None:
    check = replace(
        PASSED, metric="node_check", workload="ecc", id="node_check[ecc]", bound={"at_least": 1.0}, value=1.0
    )
    (line,) = (line for line, _ in table_lines(judgement_with(check), 120) if "node_check" in line)
    assert line.split()[-2:] == ["–", "PASS"]


def test_the_signs_of_limits_are_explained_where_there_are_any() -> None:
    said = "limit: at least (≥), at most (≤) or between (…) with a confidence of 0.95"
    assert (said, "") in table_lines(JUDGEMENT, 100)
    without = judgement_with(replace(PASSED, interval=None))
    assert not [line for line, _ in table_lines(without, 100) if "with a confidence" in line]


def test_names_that_would_look_alike_when_cut_are_written_out() -> None:
    names = [f"all-reduce-by-whom-of-{size}mib-among-so-many-gpus" for size in (1, 25)]
    verdicts = tuple(replace(PASSED, metric="busbw_gbps", id=f"busbw_gbps[{name}]") for name in names)
    lines = [line for line, _ in table_lines(judgement_with(*verdicts), 80)]
    assert [line.strip() for line in lines if "all-reduce" in line] == names
    assert sum(line.endswith("PASS") for line in lines) == 2


def test_wide_terminal_shows_whole_identities_in_the_given_order() -> None:
    lines = [line for line, style in table_lines(JUDGEMENT, 160) if style not in {"", "header"}]
    assert [line.split("  ")[0] for line in lines[:-1]] == [verdict.id for verdict in ALL]


def test_columns_line_up() -> None:
    lines = [line for line, style in table_lines(judgement_with(PASSED, FAILED, WARNED), 160)]
    header = lines[0]
    rows = [line for line in lines if line.startswith(("weak", "throughput", "strong"))]
    start = header.index("verdict")
    assert [row[start:] for row in rows] == ["PASS", "FAIL", "WARN"]
    assert {row[start - 1] for row in rows} == {" "}


def test_what_did_not_pass_is_explained_under_its_row() -> None:
    lines = [line for line, _ in table_lines(judgement_with(PASSED, FAILED), 160)]
    row = next(i for i, line in enumerate(lines) if line.startswith("throughput_per_gpu"))
    assert lines[row + 1] == "    the interval lies below the bound"
    assert lines[row + 2].startswith("    GPU 3 (GPU-5d3a91c2…) on node7: 1.04× the median")
    assert "the interval lies above the bound" not in "\n".join(lines), "a pass needs no reason"


@pytest.mark.parametrize("verdict", [FAILED, WARNED, INCONCLUSIVE, NOT_MEASURED, ERROR])
def test_every_outcome_but_a_pass_gives_its_reason(verdict: Verdict) -> None:
    assert verdict.reason in _text(judgement_with(verdict), 400)


def test_many_culprits_are_counted_rather_than_listed() -> None:
    crowd = replace(FAILED, culprits=FAILED.culprits * 5)
    assert "and 12 more: see verdicts.json" in _text(judgement_with(crowd), 120)


def test_long_message_is_cut() -> None:
    long = replace(ERROR, reason="word " * 1000)
    assert len(table_lines(judgement_with(long), 80)) < 12


def test_provisional_bounds_are_marked_and_the_mark_is_explained() -> None:
    assert "≥ 6.5×*" in _text(judgement_with(WARNED), 100)
    assert "* provisional bound" in _text(judgement_with(WARNED), 100)
    assert "*" not in _text(ACCEPTED, 100)


@pytest.mark.parametrize(
    ("outcome", "style"),
    [("accepted", "passed"), ("rejected", "failed"), ("incomplete", "failed"), ("partial", "undecided")],
)
def test_outcome_is_the_last_line(outcome: RunOutcome, style: str) -> None:
    blockers = (Blocker("run", "acceptance", "because"),) if outcome in ("rejected", "incomplete") else ()
    judgement = replace(JUDGEMENT, outcome=outcome, reason="because", verdicts=(PASSED,), blockers=blockers)
    last = table_lines(judgement, 80)[-1]
    assert last == (f"{outcome.upper()}: because", style)


def test_notes_of_the_run_are_shown() -> None:
    assert "note: torch 2.12.0+cu130, but" in _text(JUDGEMENT, 80)


def test_notes_of_several_requirements_are_shown_once_with_how_many() -> None:
    noted = [replace(PASSED, id=name, notes=("power unknown",)) for name in ("one", "two")]
    lines = _text(judgement_with(*noted), 80)
    assert lines.count("power unknown") == 1
    assert "note: power unknown (2 requirements)" in lines


def test_no_verdicts_leave_the_outcome_alone() -> None:
    empty = Judgement("cpu", "incomplete", "nothing was selected", ())
    assert table_lines(empty, 80) == [("INCOMPLETE: nothing was selected", "undecided")]


def test_two_requirements_of_one_identity_are_both_shown() -> None:
    lines = [line for line, _ in table_lines(judgement_with(PASSED, replace(PASSED, bound={"at_least": 0.97})), 80)]
    assert sum(line.endswith("PASS") for line in lines) == 2


def test_hostile_text_moves_no_cursor_and_adds_no_line() -> None:
    assert "\x1b" in HOSTILE
    for line, _ in table_lines(hostile_judgement(), 80):
        assert line.isprintable()
        line.encode("utf-8")


def test_a_path_in_a_reason_can_be_copied() -> None:
    path = f"/shared/site/{'ddpscale-runs/' * 12}job-1234"
    verdict = replace(NOT_MEASURED, reason=f"interrupted: --ddp-resume={path} finishes it")
    assert f"--ddp-resume={path}" in _text(judgement_with(verdict), 80)
