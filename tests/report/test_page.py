"""The report that is signed, as a page and as Markdown: whole, and true on its first screen."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import date
from typing import Any

from msgspec.structs import replace as with_fields

from pytest_ddpscale.report.causes import headline
from pytest_ddpscale.report.explain import explain
from pytest_ddpscale.report.machine import hosts_table, machine_blocks
from pytest_ddpscale.report.page import key_numbers, report, title_of
from pytest_ddpscale.report.terminal import table_lines
from pytest_ddpscale.run.coverage import Coverage, GpuCoverage, NodeCoverage, PathCoverage
from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.records import ArmProfile, RankStretch, Sustained
from pytest_ddpscale.run.survey_record import Survey
from pytest_ddpscale.run.verdicts import Blocker, Judgement, Verdict
from pytest_ddpscale.thresholds.waiver import Waiver
from pytest_ddpscale.util.document import html, text_lines
from tests.builders.culprits import node
from tests.builders.json_types import as_json, run_record
from tests.builders.judgements import (
    ACCEPTED,
    EVIDENCE,
    FAILED,
    GANG,
    HOSTILE,
    INCONCLUSIVE,
    JUDGEMENT,
    NOT_MEASURED,
    PASSED,
    PLAN,
    RUN,
    WARNED,
    hostile_judgement,
    hostile_run,
    judgement_with,
)
from tests.builders.records import gang_on
from tests.builders.workloads import with_settings
from tests.report.page_text import page_text
from tests.report.written import page_of, ticket_of
from tests.rows import rows

ATTACK = HOSTILE + "</script><img src=x onerror=alert(1)>\u202egnp.exe\x07"
PAGE = page_of(JUDGEMENT)
HARMLESS = replace(FAILED, culprits=FAILED.culprits[:1])


def test_text_from_outside_stays_text_in_every_form() -> None:
    gang = gang_on([ATTACK], 1, ATTACK.replace("{", ""), device_name=ATTACK, environment={ATTACK: ATTACK})
    workload = replace(with_settings(PLAN.studies[0].workload, model=ATTACK), name=ATTACK)
    evidence = replace(
        EVIDENCE, gangs=[gang], plan=replace(PLAN, studies=(replace(PLAN.studies[0], workload=workload),)),
        surveys={ATTACK: Survey(host=ATTACK, unix_s=1.0, topology=f"GPU0 {ATTACK}", versions={ATTACK: ATTACK})},
        profiles=[ArmProfile(study=ATTACK, arm=ATTACK, gang=0, rank=0, problem=ATTACK)],
    )  # fmt: skip
    lost = GpuCoverage(Place(ATTACK, None, ATTACK, 0), (), ATTACK)
    coverage = Coverage((NodeCoverage(ATTACK, ("training",), ATTACK, (lost,)), NodeCoverage("n", ())), 0, 1, 2,
                        (PathCoverage(0, 1, 1.0, 1),), 1, over_all_nodes=(ATTACK,))  # fmt: skip
    run = with_fields(hostile_run(), noted=dict.fromkeys(("operator", "site", "ticket", ATTACK), ATTACK))
    blockers = (Blocker("test", ATTACK, ATTACK),)
    judgement = replace(hostile_judgement(), notes=(ATTACK,), reason=ATTACK, coverage=coverage, blockers=blockers)
    page = page_of(judgement, run, evidence)
    assert page.count("<script") == 1
    assert page.count("<img") == PAGE.count("<img")
    assert "&lt;/script&gt;&lt;img" in page
    ticket = ticket_of(judgement, run, evidence)
    outside = re.sub(r"(?<![\\`])(`+)(?!`).*?(?<!`)\1(?!`)", "", ticket)  # commands
    assert "<" not in outside
    assert re.search(r"(?<!\\)`", outside) is None
    assert re.search(r"(?<!\\)\]\(javascript", outside) is None
    assert "\n# heading" not in ticket
    cells = [len(re.findall(r"(?<!\\)\|", line)) for line in ticket.splitlines() if line.startswith("| ")]
    assert {*cells} == {5, 6, 8, 4}
    printed = "".join(text_lines(*report(judgement, run, evidence), width=80))
    first, harmless = (explain(one, "t.yaml:1", "pytest") for one in (judgement.verdicts[0], HARMLESS))
    assert first.count("\n") == harmless.count("\n")
    lines = [headline(judgement), *first.splitlines(), *(line for line, _ in table_lines(judgement, 80))]
    assert all(line.isprintable() for line in lines)
    for form in (page, ticket, printed, *lines):
        assert not re.search("[\u202a-\u202e\u2066-\u2069\x00-\x08\x0b-\x1f\x7f]", form)
        form.encode("utf-8")


def test_links_have_targets_and_no_id_stands_twice() -> None:
    for page in (PAGE, page_of(ACCEPTED), page_of(JUDGEMENT, goes_on=True)):
        ids = re.findall(r' id="([^"]+)"', page)
        assert len(ids) == len(set(ids))
        assert {*re.findall(r' href="#([^"]+)"', page)} <= {*ids}


def test_only_the_page_of_a_run_that_goes_on_refreshes() -> None:
    page = page_of(replace(hostile_judgement(), reason="<h1>"), goes_on=True)
    assert 'http-equiv="refresh"' not in PAGE
    assert '<noscript><meta http-equiv="refresh" content="5"></noscript>' in page, "a reader could not pause it"
    assert '<body data-refresh-s="5">' in page
    assert page.count("<h1") == 1, "what goes on stands above it"


def test_what_keeps_a_machine_from_being_accepted_is_open_and_what_passed_is_closed() -> None:
    assert re.findall(r"<details open><summary>(.*?)</summary>", PAGE) == ["4 not met"]
    assert {"1 not met, only warnings", "3 passed"} <= {*re.findall(r"<details><summary>(.*?)</summary>", PAGE)}


def test_a_tile_shows_the_worst_requirement_of_its_metric_that_counts() -> None:
    missing = replace(FAILED, id="throughput_per_gpu[x-8gpu]", outcome="not_measured", value=None, interval=None)
    kept = replace(FAILED, id="throughput_per_gpu[y-8gpu]", outcome="passed", value=1190.0)
    assert key_numbers(judgement_with(kept, missing, FAILED))[1][-1] == "FAIL"
    assert key_numbers(judgement_with(kept, missing))[1][-1] == "NOT MEASURED"
    warning = replace(FAILED, severity="warn")
    assert key_numbers(judgement_with(warning, missing))[1][-1] == "NOT MEASURED", "it keeps from an acceptance"
    short = replace(PASSED, outcome="failed", value=0.9, interval=(0.89, 0.91))
    wide = replace(INCONCLUSIVE, world_size=64)
    assert key_numbers(judgement_with(wide, short))[2][-1] == "FAIL", "a smaller world size"
    _, value, subject, *_ = key_numbers(judgement_with(replace(FAILED, published=2318.4)))[1]
    assert (value, subject.split(",")[0]) == ("50.0 % of published", "1159.2 img/s")


FAILS = replace(FAILED, metric="node_check", culprits=(node("n1"),))
GOOD, WARNS = replace(FAILS, outcome="passed", culprits=()), replace(FAILS, severity="warn")
WAIVED = replace(FAILS, waiver=Waiver("known", "ops", date(2099, 1, 1)))
SUSPECT = node("n2", is_certain=False)
SUSPECTED, BOTH, OF_NOBODY = (replace(FAILS, culprits=who) for who in ((SUSPECT,), (SUSPECT, *FAILS.culprits), ()))


@rows(
    ("outcome", "checks", "number"),
    [
        ("accepted", (), "0 of 2 PASS"), ("accepted", (WARNS,), "1 of 2 WARN"),
        ("accepted", (WAIVED,), "1 of 2 WAIVED"),
        ("rejected", (WARNS, FAILS), "1 of 2 FAIL"), ("rejected", (SUSPECTED,), "0 of 2 INCONCLUSIVE"),
        ("rejected", (BOTH,), "1 of 2 FAIL"), ("rejected", (OF_NOBODY,), "0 of 2 INCONCLUSIVE"),
        ("rejected", (), "0 of 2 INCONCLUSIVE"), ("accepted by one node", (), "0 of 2 INCONCLUSIVE"),
    ],
)  # fmt: skip
def test_no_node_at_fault_is_a_pass_only_if_nothing_blocks_and_all_were_tested(
    outcome: Any, checks: tuple[Verdict, ...], number: str
) -> None:
    outcome, _, is_partly = outcome.partition(" ")
    nodes = NodeCoverage("n1", ("survey",)), NodeCoverage("n2", () if is_partly else ("survey",))
    judgement = replace(judgement_with(GOOD, *checks), outcome=outcome, coverage=Coverage(nodes))
    _, value, *_, word = key_numbers(judgement)[0]
    assert f"{value} {word}" == number


def test_all_nodes_meet_all_only_if_every_requirement_passed() -> None:
    judgement = judgement_with(NOT_MEASURED, replace(WARNED, culprits=()))
    assert "<summary>1 node: named by no failure<" in html(*machine_blocks(judgement, replace(EVIDENCE, surveys={})))


def test_a_thousand_failures_fit_into_a_ticket() -> None:
    many = [replace(FAILED, id=f"throughput_per_gpu[w-{n}gpu]", culprits=(), reason=f"reason {n}") for n in range(1000)]
    ticket = ticket_of(judgement_with(*(replace(one, outcome="error") for one in many)))
    assert len(ticket) < 30_000
    assert "\n\n87 more: report.html lists them\n\n900 more: verdicts.json lists all." in ticket
    assert "950 more: report.html lists them" in ticket


def test_rows_of_two_causes_lead_to_their_own() -> None:
    other = replace(INCONCLUSIVE, id="device_utilization[vit-b16-bf16-8gpu]", metric="device_utilization")
    ticket = ticket_of(replace(judgement_with(INCONCLUSIVE, other), outcome="incomplete"))
    assert sorted(re.findall("Cause [0-9]", ticket)) == ["Cause 1", "Cause 2"]


def test_what_run_json_need_not_say_may_be_missing() -> None:
    for missing in sorted({*as_json(RUN)} - {"schema_version", "sku", "status", "started_at"}):
        assert ticket_of(JUDGEMENT, run_record(RUN, **{missing: None})).startswith("# REJECTED")
    empty = ticket_of(Judgement("cpu", "incomplete", "", ()), run_record())
    assert "No requirement was judged." in empty


def test_a_run_that_goes_on_later_is_resumed_and_not_measured_again() -> None:
    page = page_of(replace(JUDGEMENT, unfinished=True, basis={"measurements_path": "run/measurements.jsonl"}))
    assert page.count("--ddp-resume=run") == 1
    assert "Measure everything again" not in page


def test_printed_pages_have_the_name_of_the_run() -> None:
    assert title_of(replace(JUDGEMENT, basis={"measurements_path": "runs/night-7/measurements.jsonl"})) == (
        "REJECTED: a100-sxm4-80gb, run night-7"
    )
    assert 'setProperty("--title", JSON.stringify(document.title))' in PAGE


def test_a_large_machine_stays_readable() -> None:
    gang = gang_on([f"n{i}" for i in range(100)], 8, "GPU-{}", device_name="B200")
    nodes = tuple(NodeCoverage(f"n{i}", ("training",)) for i in range(100))
    paths = tuple(PathCoverage(0, other, 20.0 + other, 1) for other in range(1, 100))
    judgement, evidence = replace(JUDGEMENT, coverage=Coverage(nodes, paths=paths)), replace(EVIDENCE, gangs=[gang])
    ticket = ticket_of(judgement, RUN, evidence)
    assert "800 × B200\n- Nodes: 100: n[0-99]" in ticket
    assert "GPU-11" not in ticket
    page = page_text(page_of(judgement, RUN, evidence))
    assert re.findall(r"(\d+) more: (\S+) lists all", page) == [("36", "measurements.jsonl")]
    assert "\nn[0-99]\n" in page


def test_hosts_have_clock_and_temperature_of_each_gpu_at_the_end_of_a_stretch() -> None:
    ranks = RankStretch(rank=1, sm_clock_mhz=1350.4, temperature_c=61.0), RankStretch(rank=0)
    said = Sustained(study="weak/r", arm="ddp@2", gang=GANG.gang, ranks=ranks)
    [(host, devices)] = hosts_table(replace(EVIDENCE, sustained={"weak/r": said})).rows
    first, second, *_ = str(devices).split("; ")
    assert (host, "MHz" in first) == ("node7", False)
    assert second.endswith(" (1350 MHz, 61 °C)")
