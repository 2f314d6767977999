"""The Markdown report says what a ticket needs, whatever run.json lacks; report.html says the rest."""

from __future__ import annotations

import re
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as with_fields

from pytest_ddpscale.report.html_page import render_html
from pytest_ddpscale.report.markdown import code_block, render_markdown
from pytest_ddpscale.report.terminal import table_lines
from pytest_ddpscale.run.verdicts import AgainstSlowest, Judgement
from pytest_ddpscale.util.tables import markdown
from tests.builders.culprits import gpu
from tests.builders.json_types import as_json, run_record
from tests.builders.judgements import (
    ACCEPTED,
    EVIDENCE,
    FAILED,
    HOSTILE,
    JUDGEMENT,
    PLAN,
    RUN,
    hostile_judgement,
    hostile_run,
    judgement_with,
)
from tests.builders.records import gang_on
from tests.builders.workloads import with_settings
from tests.report.page_text import page_text


def _cells(line: str) -> int:
    return len(re.findall(r"(?<!\\)\|", line)) - 1


def _assert_tables_are_whole(rendered: str) -> None:
    width = None
    for line in rendered.splitlines():
        if line.startswith("|"):
            width = _cells(line) if width is None else width
            assert _cells(line) == width, line
        else:
            width = None


def test_by_whom_and_where_stands_there() -> None:
    basis = {"measurements_sha256": "cd" * 32, "judged_at": "2026-03-02T08:30:00+00:00", "note_operator": "B. Name"}
    run = with_fields(RUN, noted={"operator": "A. Name", "site": "Hall 2", "rack": "B 7", "ticket": "OPS-7"})
    rendered = render_markdown(replace(JUDGEMENT, basis=basis), run)
    for row in (
        "| Site | Hall 2 |",
        "| By | A. Name |",
        "| Ticket | OPS-7 |",
        "| rack | B 7 |",
        "| Judged | 2026-03-02 08:30 UTC |",
        "| Judged by | B. Name |",
        f"| Measurements, SHA-256 | {'cd' * 32} |",
        f"| Thresholds, SHA-256 | {'ab' * 32} |",
    ):
        assert row in rendered.splitlines()


def test_what_a_cause_explains_is_measured_again_by_one_command() -> None:
    worst = replace(FAILED, id="throughput_per_gpu[z-8gpu]", value=1000.0)
    rendered = render_markdown(judgement_with(FAILED, worst), RUN)
    assert re.findall("-k '(.*)'", rendered) == [f"{FAILED.id} or {worst.id}"]


def test_a_thousand_failures_fit_into_a_ticket() -> None:
    many = [replace(FAILED, id=f"throughput_per_gpu[w-{n}gpu]", culprits=(), reason=f"reason {n}") for n in range(1000)]
    errors = [replace(one, outcome="error") for one in many]
    rendered = render_markdown(judgement_with(*errors), RUN)
    assert len(rendered) < 30_000
    assert "And 990 more causes: report.html lists them." in rendered
    assert "950 more: report.html lists all." in rendered


def test_what_run_json_need_not_say_may_be_missing() -> None:
    for missing in sorted({*as_json(RUN)} - {"schema_version", "sku", "status", "started_at"}):
        assert render_markdown(JUDGEMENT, run_record(RUN, **{missing: None})).startswith("# REJECTED")


def test_empty_judgement_renders() -> None:
    rendered = render_markdown(Judgement("cpu", "incomplete", "", ()), run_record())
    assert "No requirement was judged." in rendered
    assert "Judged for cpu: 0 of 0 requirements passed." in rendered


def test_large_machine_stays_readable() -> None:
    gang = gang_on([f"n{i}" for i in range(100)], 8, "GPU-{}", device_name="B200")
    evidence = replace(EVIDENCE, gangs=[gang])
    rendered = render_markdown(JUDGEMENT, RUN, evidence=evidence)
    assert "800 × B200 |\n| Nodes | 100: n0, n1, n2, n3 and 96 more" in rendered
    assert "GPU-11" not in rendered
    assert "36 more: measurements.jsonl lists all" in page_text(render_html(JUDGEMENT, RUN, evidence))


def test_hostile_text_breaks_no_table_and_starts_no_html() -> None:
    run = with_fields(hostile_run(), noted=dict.fromkeys(("operator", "site", "ticket", HOSTILE), HOSTILE))
    gang = gang_on([HOSTILE], 1, HOSTILE.replace("{", ""), device_name=HOSTILE, environment={HOSTILE: HOSTILE})
    evidence = replace(EVIDENCE, gangs=[gang])
    rendered = render_markdown(hostile_judgement(), run, [f"plots/{HOSTILE[:-1]}.png"], evidence)
    rendered.encode("utf-8")
    _assert_tables_are_whole(rendered)
    outside_code = re.sub(r"^(`{3,})sh\n.*\n\1$", "", rendered, flags=re.MULTILINE)
    assert "```" not in outside_code
    assert "<" not in outside_code.replace("&lt;", "")
    assert re.search(r"(?<!\\)`", outside_code) is None
    assert re.search(r"(?<!\\)\]\(javascript", outside_code) is None
    assert "\n# heading" not in rendered
    assert "\x1b" not in rendered
    workload = replace(with_settings(PLAN.studies[0].workload, model=HOSTILE), name=HOSTILE)
    plan = replace(PLAN, studies=(replace(PLAN.studies[0], workload=workload),))
    page = render_html(hostile_judgement(), run, replace(evidence, plan=plan))
    assert page.count("<script") == 1
    assert "\x1b" not in page


def test_escaping() -> None:
    for content, expected in [
        ("a|b", r"a\|b"),
        ("`code`", r"\`code\`"),
        ("*bold* _it_ snake_case", r"\*bold\* \_it\_ snake_case"),
        ("[a](b)", r"[a\](b)"),
        ("<b>&amp;", "&lt;b&gt;&amp;amp;"),
        ("back\\slash|", r"back\\slash\|"),
        ("two\nlines", "two lines"),
    ]:
        assert markdown(content) == expected


@given(st.text())
def test_escaped_text_is_one_cell_of_a_table(content: str) -> None:
    escaped = markdown(content)
    assert "\n" not in escaped
    assert "<" not in escaped
    # A pipe is inert only after an odd number of backslashes.
    assert all(len(run.group(1)) % 2 for run in re.finditer(r"(\\*)[|`*]", escaped))


@given(st.text("`ab \n"))
def test_code_cannot_leave_its_block(content: str) -> None:
    fence, *inside, end = code_block(content).splitlines()
    assert fence == f"{end}sh"
    assert len(inside) <= 1
    assert all(end not in line for line in inside)


def test_who_only_misses_what_warns_is_told_before_anything_else() -> None:
    slow = gpu(evidence="1.20× the median of 7 peers", uuid="GPU-4f1c", slowdown=1.2, peers=7)
    warned = replace(FAILED, severity="warn", culprits=(slow,))
    rendered = render_markdown(replace(ACCEPTED, verdicts=(*ACCEPTED.verdicts, warned)), RUN)
    assert "- warning: GPU 3 (GPU-4f1c) on node7 is 1.20× slower" in rendered.split("## What was tested")[0]


def test_a_pass_below_the_bound_says_why_wherever_it_stands() -> None:
    against = AgainstSlowest(0.981, (0.977, 0.984), "GPU 5 on n1", 0.037)
    reason = "98.1 % against the slowest GPU keeps the bound"
    verdict = replace(
        FAILED, metric="weak_scaling_efficiency", bound={"at_least": 0.96}, value=0.9455, interval=(0.941, 0.949),
        outcome="passed", reason=reason, against_slowest=against, culprits=(), notes=(),
    )  # fmt: skip
    judgement = judgement_with(verdict)
    (line,) = (one for one in render_markdown(judgement, RUN).splitlines() if reason in one)
    assert re.search(r"passed with 94.6 %, bound ≥ 96.0\d* %: 98.1 %", line), line
    assert reason in page_text(render_html(judgement, RUN, EVIDENCE))
    assert any(reason in line for line, _ in table_lines(judgement, 100))
    others = replace(verdict, against_slowest=None)
    assert reason not in render_markdown(judgement_with(others), RUN)
