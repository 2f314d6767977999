"""The Markdown report says everything a signature needs, whatever run.json lacks."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.report.markdown import code_block, escape_markdown, render_markdown
from pytest_ddpscale.results.verdicts import Judgement, RunOutcome
from tests.builders.json_types import as_json, run_record
from tests.builders.judgements import (
    ACCEPTED,
    ALL,
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

FULL = render_markdown(JUDGEMENT, RUN, PLAN, ["plots/weak-throughput.png"])


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
    title = render_markdown(replace(JUDGEMENT, outcome=outcome), RUN, PLAN).splitlines()[0]
    assert title == f"# {outcome.replace('_', ' ').upper()}: a100-sxm4-80gb"


def test_summary_counts_and_names_the_machine() -> None:
    summary = FULL.splitlines()[2]
    assert summary.startswith("**REJECTED**: 1 requirement failed: throughput_per_gpu[resnet152-fp16-8gpu].")
    assert "8 requirements judged for a100-sxm4-80gb on 8 × NVIDIA A100-SXM4-80GB in 1 host: 3 kept" in summary
    assert "Measured 2026-03-01 10:00 UTC to 2026-03-01 10:09 UTC." in summary


def test_every_verdict_is_in_the_table_of_its_metric() -> None:
    _, weak, rest = re.split("### (?:Weak-scaling efficiency|Throughput per GPU)\n", FULL, maxsplit=2)
    assert weak.strip().startswith("Throughput per GPU among many")
    assert "| resnet152-fp16-8gpu | 97.4 % | at least 97.1 % | ≥ 96.0 % | +1.5 % | 12 | PASS |" in weak
    assert "| **INCONCLUSIVE** |" in weak
    assert "≥ 6.5× (provisional) |" in rest


def test_what_did_not_pass_comes_with_culprits_and_a_command() -> None:
    section = FULL.split("## What did not pass, and why")[1].split("\n## ")[0]
    assert f"- At fault: GPU 3 ({UUID}) on node7: 1.04× the median" in section
    assert "```sh\npytest --gpu-sku=a100-sxm4-80gb -k 'throughput_per_gpu[resnet152-fp16-8gpu]'\n```" in section
    assert section.count("### ") == sum(not verdict.passed for verdict in ALL)


def test_accepted_run_has_no_section_of_failures() -> None:
    rendered = render_markdown(ACCEPTED, RUN, PLAN)
    assert "What did not pass" not in rendered
    assert "## Provisional bounds" not in rendered


def test_provisional_bounds_and_sources_are_told_apart() -> None:
    provisional = FULL.split("## Provisional bounds")[1].split("\n## ")[0]
    published = FULL.split("## Where the bounds come from")[1].split("\n## ")[0]
    assert "cannot accept a cluster on its own" in provisional
    assert "nobody published a measurement" in provisional
    assert "willgpaik/pytorch-ddp-scaling-benchmark@dc0b8a8" in published
    assert "strong_scaling_speedup" not in published


def test_machine_plan_plots_and_signature_lines_are_there() -> None:
    for expected in (
        "| PyTorch | 2.12.0+cu130 |",
        "| environment: OMP_NUM_THREADS | 8 |",
        "0: GPU-00000000-77aa",
        "| weak/resnet152-fp16 | resnet152, fp16, 224² px, channels_last, synthetic data | alone (batch 512), ddp@2",
        "![weak throughput](plots/weak-throughput.png)",
        "first step 9.9 s",
        "ab" * 32,
        "pytest --gpu-sku=a100 --ddp-budget 10m",
        "- Tested by: ____",
    ):
        assert expected in FULL
    _assert_tables_are_whole(FULL)
    assert FULL.endswith("\n")


@pytest.mark.parametrize("missing", sorted({*as_json(RUN)} - {"schema_version", "sku", "status", "started_at"}))
def test_what_run_json_need_not_say_may_be_missing(missing: str) -> None:
    assert render_markdown(JUDGEMENT, run_record(RUN, **{missing: None}), PLAN).startswith("# REJECTED")


def test_empty_judgement_renders() -> None:
    rendered = render_markdown(Judgement("cpu", "incomplete", "", ()), run_record(), None)
    assert "No requirement was judged." in rendered
    assert "0 requirements judged for cpu." in rendered


def test_imported_run_names_its_source_and_offers_no_command() -> None:
    run = run_record(sku="a100", status="imported", source="somebody/else")
    rendered = render_markdown(JUDGEMENT, run, None)
    assert "imported from somebody/else" in rendered
    assert "pytest --gpu-sku" not in rendered


def test_large_machine_stays_readable() -> None:
    hosts = [
        {"host": f"n{i}", "devices": [{"index": j, "uuid": f"GPU-{i}-{j}", "name": "B200"} for j in range(8)]}
        for i in range(100)
    ]
    rendered = render_markdown(JUDGEMENT, run_record(hosts=hosts), None)
    assert "800 × B200 in 100 hosts" in rendered
    assert "GPU-1-1" not in rendered
    assert "And 36 more hosts: run.json lists all." in rendered


def test_hostile_text_breaks_no_table_and_starts_no_html() -> None:
    workload = replace(PLAN.studies[0].workload, name=HOSTILE, model=HOSTILE)
    plan = replace(PLAN, studies=(replace(PLAN.studies[0], workload=workload),))
    rendered = render_markdown(hostile_judgement(), hostile_run(), plan, [f"plots/{HOSTILE[:-1]}.png"])
    rendered.encode("utf-8")
    _assert_tables_are_whole(rendered)
    outside_code = re.sub(r"^(`{3,})sh\n.*\n\1$", "", rendered, flags=re.MULTILINE)
    assert "```" not in outside_code
    assert "<" not in outside_code.replace("&lt;", "")
    assert re.search(r"(?<!\\)`", outside_code) is None
    assert re.search(r"(?<!\\)\]\(javascript", outside_code) is None
    assert "\n# heading" not in rendered
    assert "\x1b" not in rendered


def test_names_of_requirements_are_readable_in_the_raw_text() -> None:
    assert escape_markdown(PASSED.id) == PASSED.id
    assert PASSED.id in render_markdown(judgement_with(PASSED), RUN, PLAN)


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
