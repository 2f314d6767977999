"""The Markdown report says what a ticket needs, whatever run.json lacks; report.html says the rest."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as with_fields

from pytest_ddpscale.evidence.columns import Columns
from pytest_ddpscale.evidence.evidence import Evidence
from pytest_ddpscale.report.cause import causes, headline
from pytest_ddpscale.report.html_page import render_html
from pytest_ddpscale.report.markdown import code_block, escape_markdown, render_markdown
from pytest_ddpscale.results.verdicts import Culprit, Judgement, RunOutcome
from tests.builders.json_types import as_json, run_record
from tests.builders.judgements import (
    ACCEPTED,
    ALL,
    FAILED,
    HOSTILE,
    JUDGEMENT,
    PASSED,
    PLAN,
    RUN,
    UUID,
    hostile_judgement,
    hostile_run,
    judgement_with,
)
from tests.report.page_text import page_text

FULL = render_markdown(JUDGEMENT, RUN, ["plots/weak-throughput.png"])
PAGE = page_text(render_html(JUDGEMENT, RUN, Evidence(PLAN, Columns(), {})))


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


@pytest.mark.parametrize("outcome", ["accepted", "accepted_with_waivers", "rejected", "incomplete", "partial"])
def test_title_starts_with_the_outcome(outcome: RunOutcome) -> None:
    title = render_markdown(replace(JUDGEMENT, outcome=outcome), RUN).splitlines()[0]
    assert title == f"# {outcome.replace('_', ' ').upper()}: a100-sxm4-80gb"


def test_it_begins_with_the_cause() -> None:
    assert FULL.splitlines()[2].startswith(f"{headline(JUDGEMENT)}. At least one requirement is not met")
    assert render_markdown(ACCEPTED, RUN).splitlines()[2].startswith(f"{headline(ACCEPTED)}. Every requirement")


def test_summary_counts_and_names_the_machine() -> None:
    summary = FULL.split("## What was tested\n\n")[1].splitlines()[0]
    assert "Judged for a100-sxm4-80gb on 8 × NVIDIA A100-SXM4-80GB in 1 host: 4 of 8 requirements not met" in summary
    assert "Measured 2026-03-01 10:00 UTC to 2026-03-01 10:09 UTC." in summary


def test_by_whom_and_where_stands_there() -> None:
    basis = {"measurements_sha256": "cd" * 32, "judged_at": "2026-03-02T08:30:00+00:00", "note_operator": "B. Name"}
    run = with_fields(RUN, noted={"operator": "A. Name", "site": "Hall 2", "rack": "B 7", "ticket": "OPS-7"})
    rendered = render_markdown(replace(JUDGEMENT, basis=basis), run)
    for row in (
        "| Site | Hall 2 |",
        "| Measured by | A. Name |",
        "| Ticket | OPS-7 |",
        "| rack | B 7 |",
        "| Judged | 2026-03-02 08:30 UTC |",
        "| Judged by | B. Name |",
        f"| Measurements, SHA-256 | {'cd' * 32} |",
        f"| Thresholds, SHA-256 | {'ab' * 32} |",
    ):
        assert row in rendered.splitlines()


def test_every_verdict_is_in_the_table_of_the_page() -> None:
    assert (
        "| Weak-scaling efficiency: resnet152-fp16-8gpu | PASS | 97.4 % | at least 97.1 % | ≥ 96.0 % | +1.5 % | 12 |"
        in PAGE
    )
    assert "Weak-scaling efficiency\nThroughput per GPU among many" in PAGE
    assert "| INCONCLUSIVE |" in PAGE
    assert PAGE.count(" | PASS | ") == sum(verdict.passed for verdict in ALL)


def test_what_did_not_pass_has_a_row_and_what_passed_has_none() -> None:
    table = FULL.split("## What did not pass")[1].split("\n## ")[0]
    assert table.count("\n| ") == 2 + sum(not verdict.passed for verdict in ALL)
    assert "| ≥ 98.0 % | +0.1 % | **INCONCLUSIVE** | 5 |" in table
    assert "≥ 6.5× (provisional) | −1.2 % | **WARN** | the interval lies below the bound |" in table
    assert "| **FAIL** | 1, 2, 3, 4 |" in table
    assert "PASS" not in FULL


def test_each_cause_comes_once_with_culprits_and_a_command() -> None:
    section = FULL.split("## Causes")[1].split("\n## ")[0]
    sentences = [one.sentence.partition("[")[0] for one in causes(JUDGEMENT)]
    for number, (heading, sentence) in enumerate(zip(section.split("\n### ")[1:], sentences, strict=True), 1):
        assert heading.startswith(f"{number}. {sentence}")
    assert f"- At fault: GPU 3 ({UUID}) on node7\n" in section
    command = "```sh\npytest --gpu-sku=a100-sxm4-80gb -k 'throughput_per_gpu[resnet152-fp16-8gpu]'\n```"
    assert section.count(command) == 1


def test_a_cause_is_measured_again_by_what_fails_most_clearly() -> None:
    undecided = replace(FAILED, id="throughput_per_gpu[a-1gpu]", outcome="inconclusive")
    worst = replace(FAILED, id="throughput_per_gpu[z-8gpu]", value=1000.0)
    rendered = render_markdown(judgement_with(undecided, FAILED, worst), RUN)
    assert re.findall("-k '(.*)'", rendered) == [worst.id]


def test_suspects_are_to_be_looked_at() -> None:
    suspected = tuple(replace(culprit, is_certain=False) for culprit in FAILED.culprits)
    section = render_markdown(judgement_with(replace(FAILED, culprits=suspected)), RUN)
    assert f"- Look at: GPU 3 ({UUID}) on node7: 1.04× the median" in section
    assert "At fault" not in section


def test_a_thousand_failures_fit_into_a_ticket() -> None:
    many = [replace(FAILED, id=f"throughput_per_gpu[w-{n}gpu]", culprits=(), reason=f"reason {n}") for n in range(1000)]
    errors = [replace(one, outcome="error") for one in many]
    rendered = render_markdown(judgement_with(*errors), RUN)
    assert len(rendered) < 30_000
    assert "And 990 more causes: report.html lists them." in rendered
    assert "And 950 more: report.html lists all." in rendered


def test_accepted_run_has_no_section_of_failures() -> None:
    rendered = render_markdown(ACCEPTED, RUN)
    assert "What did not pass" not in rendered
    assert "## Causes" not in rendered
    page = page_text(render_html(ACCEPTED, RUN, Evidence(PLAN, Columns(), {})))
    assert "What did not pass\n" not in page
    assert "Provisional bounds" not in page


def test_provisional_bounds_and_sources_are_told_apart() -> None:
    provisional = PAGE.split("Provisional bounds\n")[1].split("How it was measured")[0]
    published = PAGE.split("Sources of the bounds\n")[1].split("What was required")[0]
    assert "cannot accept a cluster on its own" in provisional
    assert "strong_scaling_speedup[vit-b16-bf16-8gpu], ≥ 6.5×: source 2" in provisional
    assert "willgpaik/pytorch-ddp-scaling-benchmark@dc0b8a8" in published
    assert "nobody published a measurement" in published
    assert "willgpaik" not in provisional


def test_machine_plan_and_start_up_are_on_the_page() -> None:
    for expected in (
        "| torch | 2.12.0+cu130 |",
        "| OMP_NUM_THREADS | 8 |",
        "GPU-00000000-77aa",
        "| weak/resnet152-fp16 | resnet152, fp16, 224² px, channels_last, synthetic data | alone (batch 512), ddp@2",
        "first step 9.9 s",
        "ab" * 32,
        "pytest --gpu-sku=a100 --ddp-budget 10m",
        "note: power limit 300 W on node7",
    ):
        assert expected in PAGE


def test_plots_page_and_signature_lines_are_there() -> None:
    for expected in (
        "![weak throughput](plots/weak-throughput.png)",
        "[report.html](report.html)",
        "- Tested by: ____",
    ):
        assert expected in FULL
    _assert_tables_are_whole(FULL)
    assert FULL.endswith("\n")


@pytest.mark.parametrize("missing", sorted({*as_json(RUN)} - {"schema_version", "sku", "status", "started_at"}))
def test_what_run_json_need_not_say_may_be_missing(missing: str) -> None:
    assert render_markdown(JUDGEMENT, run_record(RUN, **{missing: None})).startswith("# REJECTED")


def test_empty_judgement_renders() -> None:
    rendered = render_markdown(Judgement("cpu", "incomplete", "", ()), run_record())
    assert "No requirement was judged." in rendered
    assert "Judged for cpu: 0 of 0 requirements passed." in rendered


def test_imported_run_names_its_source_and_offers_no_command() -> None:
    run = run_record(sku="a100", status="imported", source="somebody/else")
    rendered = render_markdown(JUDGEMENT, run)
    assert "imported from somebody/else" in rendered
    assert "pytest --gpu-sku" not in rendered
    assert "pytest --gpu-sku" not in render_html(JUDGEMENT, run, Evidence(PLAN, Columns(), {}))


def test_large_machine_stays_readable() -> None:
    hosts = [
        {"host": f"n{i}", "devices": [{"index": j, "uuid": f"GPU-{i}-{j}", "name": "B200"} for j in range(8)]}
        for i in range(100)
    ]
    run = run_record(hosts=hosts)
    rendered = render_markdown(JUDGEMENT, run)
    assert "800 × B200 in 100 hosts" in rendered
    assert "GPU-1-1" not in rendered
    assert "36 more hosts: run.json lists all" in page_text(render_html(JUDGEMENT, run, Evidence(PLAN, Columns(), {})))


def test_hostile_text_breaks_no_table_and_starts_no_html() -> None:
    run = with_fields(hostile_run(), noted=dict.fromkeys(("operator", "site", "ticket", HOSTILE), HOSTILE))
    rendered = render_markdown(hostile_judgement(), run, [f"plots/{HOSTILE[:-1]}.png"])
    rendered.encode("utf-8")
    _assert_tables_are_whole(rendered)
    outside_code = re.sub(r"^(`{3,})sh\n.*\n\1$", "", rendered, flags=re.MULTILINE)
    assert "```" not in outside_code
    assert "<" not in outside_code.replace("&lt;", "")
    assert re.search(r"(?<!\\)`", outside_code) is None
    assert re.search(r"(?<!\\)\]\(javascript", outside_code) is None
    assert "\n# heading" not in rendered
    assert "\x1b" not in rendered
    workload = replace(PLAN.studies[0].workload, name=HOSTILE, model=HOSTILE)
    plan = replace(PLAN, studies=(replace(PLAN.studies[0], workload=workload),))
    page = render_html(hostile_judgement(), run, Evidence(plan, Columns(), {}))
    assert page.count("<script") == 1
    assert "\x1b" not in page


def test_names_of_requirements_are_readable_in_the_raw_text() -> None:
    assert escape_markdown(PASSED.id) == PASSED.id
    assert FAILED.id in render_markdown(judgement_with(FAILED), RUN)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("a|b", r"a\|b"),
        ("`code`", r"\`code\`"),
        ("*bold* _it_ snake_case", r"\*bold\* \_it\_ snake_case"),
        ("[a](b)", r"[a\](b)"),
        ("<b>&amp;", "&lt;b&gt;&amp;amp;"),
        ("back\\slash|", r"back\\slash\|"),
        ("two\nlines", "two lines"),
    ],
)
def test_escaping(content: str, expected: str) -> None:
    assert escape_markdown(content) == expected


@given(st.text())
def test_escaped_text_is_one_cell_of_a_table(content: str) -> None:
    escaped = escape_markdown(content)
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
    slow = Culprit("gpu", "node7", 3, "GPU-4f1c", "1.20× the median of 7 peers", slowdown=1.2, peers=7)
    warned = replace(FAILED, severity="warn", culprits=(slow,))
    rendered = render_markdown(replace(ACCEPTED, verdicts=(*ACCEPTED.verdicts, warned)), RUN)
    assert "- warning: GPU 3 (GPU-4f1c) on node7 is 1.20× slower" in rendered.split("## What was tested")[0]
