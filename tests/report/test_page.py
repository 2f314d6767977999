"""The report that is signed, as a page and as Markdown: whole, and true on its first screen."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import date, timedelta
from html.parser import HTMLParser
from typing import Any

import pytest
from msgspec.structs import replace as with_fields

from pytest_ddpscale.report.machine import node_blocks, software_versions, took_text, topologies
from pytest_ddpscale.report.page import key_numbers, report, title_of
from pytest_ddpscale.report.terminal import table_lines
from pytest_ddpscale.report.where_time_goes import problem_lines
from pytest_ddpscale.report.while_measuring import LIVE
from pytest_ddpscale.report.words.outcome import notes
from pytest_ddpscale.report.words.reasons import said
from pytest_ddpscale.run.coverage import Coverage, GpuCoverage, NodeCoverage, PathCoverage
from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.reason import because
from pytest_ddpscale.run.records import ArmProfile
from pytest_ddpscale.run.run_json import WATERMARK
from pytest_ddpscale.run.survey_record import Survey
from pytest_ddpscale.run.verdicts import Judgement, Verdict
from pytest_ddpscale.thresholds.waiver import Waiver
from pytest_ddpscale.util.document import Hole, html, text_lines
from tests.builders.culprits import gpu, node
from tests.builders.json_types import as_json, run_record
from tests.builders.judgements import (
    ACCEPTED,
    EVIDENCE,
    FAILED,
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

ATTACK = HOSTILE + "</script><img src=x onerror=alert(1)>\u202egnp.exe\x07"
PAGE = page_of(JUDGEMENT)
SLOW = gpu(evidence="1.20× the median of 7 peers", uuid="GPU-4f1c", slowdown=1.2, peers=7)


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
    judgement = replace(hostile_judgement(), notes=(ATTACK,), reason=ATTACK, coverage=coverage)
    page = page_of(judgement, run, evidence)
    assert page.count("<script") == 1
    assert page.count("<img") == PAGE.count("<img")
    assert "&lt;/script&gt;&lt;img" in page
    ticket = ticket_of(judgement, run, evidence)
    outside = re.sub(r"(`{2,}) .*? \1(?!`)", "", ticket)  # commands
    assert "<" not in outside
    assert re.search(r"(?<!\\)`", outside) is None
    assert re.search(r"(?<!\\)\]\(javascript", outside) is None
    assert "\n# heading" not in ticket
    cells = [len(re.findall(r"(?<!\\)\|", line)) for line in ticket.splitlines() if line.startswith("| ")]
    assert {*cells} == {5, 6, 8, 4}
    printed = "".join(text_lines(*report(judgement, run, evidence), width=80))
    for form in (page, ticket, printed):
        assert not re.search("[\u202a-\u202e\u2066-\u2069\x00-\x08\x0b-\x1f\x7f]", form)
        form.encode("utf-8")


class Tags(HTMLParser):
    """Elements that are open, ids, and targets of links within the page."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.targets: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "img"):
            self.open.append(tag)
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self.targets |= {(value or "")[1:] for name, value in attrs if name == "href"}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_elements_are_nested_and_links_have_targets() -> None:
    for page in (PAGE, page_of(ACCEPTED), page_of(JUDGEMENT, goes_on=True)):
        tags = Tags()
        tags.feed(page)
        assert tags.open == []
        assert len(tags.ids) == len(set(tags.ids))
        assert tags.targets <= set(tags.ids)


def test_only_the_page_of_a_run_that_goes_on_refreshes_and_has_a_hole() -> None:
    hole, page = html(Hole(LIVE)), page_of(replace(hostile_judgement(), reason=html(Hole(LIVE))), goes_on=True)
    assert 'http-equiv="refresh"' not in PAGE
    assert '<noscript><meta http-equiv="refresh" content="10"></noscript>' in page, "a reader could not pause it"
    assert '<body data-refresh-s="10">' in page
    assert (page.count(hole), PAGE.count(hole)) == (1, 0)


def test_what_keeps_a_machine_from_being_accepted_is_open_and_what_passed_is_closed() -> None:
    assert re.findall(r"<details open><summary>(.*?)</summary>", PAGE) == ["4 not met"]
    assert {"1 not met, only warnings", "3 passed"} <= {*re.findall(r"<details><summary>(.*?)</summary>", PAGE)}


def test_a_tile_shows_the_worst_requirement_of_its_metric_that_counts() -> None:
    missing = replace(FAILED, id="throughput_per_gpu[x-8gpu]", outcome="not_measured", value=None, interval=None)
    kept = replace(FAILED, id="throughput_per_gpu[y-8gpu]", outcome="passed", value=1190.0)
    assert key_numbers(judgement_with(kept, missing, FAILED))[1][-1] == "FAIL"
    assert key_numbers(judgement_with(kept, missing))[1][-1] == "NOT MEASURED"
    short = replace(PASSED, outcome="failed", value=0.9, interval=(0.89, 0.91))
    wide = replace(INCONCLUSIVE, world_size=64)
    assert key_numbers(judgement_with(wide, short))[2][-1] == "FAIL", "a smaller world size"
    _, value, subject, *_ = key_numbers(judgement_with(replace(FAILED, published=2318.4)))[1]
    assert (value, subject.split(",")[0]) == ("50.0 % of published", "1159.2 img/s")


def check_of(name: str, **changes: Any) -> Verdict:
    """A node check that one node of two fails for certain."""
    fields: dict[str, Any] = {
        "id": f"node_check[{name}]", "metric": "node_check", "workload": name, "world_size": 1, "severity": "fail",
        "bound": {"at_least": 1.0}, "outcome": "failed", "value": 0.5,
        "culprits": (node("n1", "no"),),
    }  # fmt: skip
    return Verdict(**(fields | changes))


SUSPECT = node("n2", "or it", is_certain=False)
GOOD = check_of("driver", outcome="passed", value=1.0, culprits=())
HALF = {"coverage": Coverage((NodeCoverage("n1", ("survey",)), NodeCoverage("n2", ()))), "outcome": "incomplete"}


@pytest.mark.parametrize(
    ("checks", "changes", "number"),
    [
        ([GOOD], {"outcome": "accepted"}, ("0 of 2", "PASS")),
        ([GOOD, check_of("ecc", severity="warn")], {"outcome": "accepted"}, ("1 of 2", "WARN")),
        ([GOOD, check_of("ecc", waiver=Waiver("known", "ops", date(2099, 1, 1)))], {"outcome": "accepted"},
         ("1 of 2", "WAIVED")),
        ([GOOD, check_of("ecc", severity="warn"), check_of("nvlink")], {}, ("1 of 2", "FAIL")),
        ([check_of("ecc", culprits=(SUSPECT,))], {}, ("0 of 2", "INCONCLUSIVE")),
        ([check_of("ecc", culprits=(node("n1", "no"), SUSPECT))], {}, ("1 of 2", "FAIL")),
        ([check_of("ecc", culprits=())], {}, ("0 of 2", "INCONCLUSIVE")),
        ([GOOD], {}, ("0 of 2", "INCONCLUSIVE")),
        ([GOOD], HALF, ("0 of 2", "INCONCLUSIVE")),
    ],
)  # fmt: skip
def test_no_node_at_fault_is_a_pass_only_if_nothing_blocks_and_all_were_tested(
    checks: list[Verdict], changes: dict[str, Any], number: tuple[str, str]
) -> None:
    coverage = Coverage((NodeCoverage("n1", ("survey",)), NodeCoverage("n2", ("survey",))))
    fields: dict[str, Any] = {"coverage": coverage, "outcome": "rejected"}
    _, value, *_, word = key_numbers(replace(judgement_with(*checks), **(fields | changes)))[0]
    assert (value, word) == number


def test_a_topology_unlike_most_is_marked() -> None:
    surveys = [Survey(host=host, unix_s=1.0, topology=matrix) for host, matrix in zip("abc", "YXX", strict=True)]
    assert [hosts for hosts, _ in topologies(surveys)] == ["b, c", "a"]


def test_versions_that_ranks_do_not_tell_come_from_the_surveys_and_are_counted_where_nodes_differ() -> None:
    drivers = enumerate(("565.3", "570.1", "570.1", None))
    surveys = {f"n{i}": Survey(f"n{i}", 0.0, versions={"driver": one, "torch": "other"}) for i, one in drivers}
    versions = software_versions(RUN, replace(EVIDENCE, surveys=surveys))
    assert versions["driver"] == "570.1 (2 nodes), 565.3 (1 node)"
    assert versions["torch"] == EVIDENCE.versions["torch"]


def test_how_long_a_run_took_is_told_unless_its_clock_was_set_back() -> None:
    used = GpuCoverage(Place("n", None, "GPU-1", 0), ("training",))
    coverage = Coverage((NodeCoverage("n", ("training",), gpus=(used,) * 4),))
    ended = [(RUN.began + timedelta(minutes=minutes)).isoformat() for minutes in (30, -30)]
    said = [took_text(with_fields(RUN, finished_at=moment), coverage) for moment in ended]
    assert said == ["30.0 min, 2.0 GPU-hours", ""]


@pytest.mark.parametrize(
    ("judgement", "said"),
    [
        (ACCEPTED, ["node7: all requirements met."]),
        (judgement_with(NOT_MEASURED, replace(WARNED, culprits=())),
         ["node7: no failure names it."]),
        (replace(ACCEPTED, coverage=Coverage(unnamed_nodes=1)), ["1 further node never answered."]),
    ],
)  # fmt: skip
def test_all_nodes_meet_all_only_if_every_requirement_passed(judgement: Judgement, said: list[str]) -> None:
    assert list(text_lines(*node_blocks(judgement, ["node7"]))) == said


def test_a_thousand_failures_fit_into_a_ticket() -> None:
    many = [replace(FAILED, id=f"throughput_per_gpu[w-{n}gpu]", culprits=(), reason=f"reason {n}") for n in range(1000)]
    ticket = ticket_of(judgement_with(*(replace(one, outcome="error") for one in many)))
    assert len(ticket) < 30_000
    assert "\n\n87 more: report.html lists them\n\n900 more: verdicts.json lists all." in ticket
    assert "950 more: report.html lists them" in ticket


def test_what_run_json_need_not_say_may_be_missing() -> None:
    for missing in sorted({*as_json(RUN)} - {"schema_version", "sku", "status", "started_at"}):
        assert ticket_of(JUDGEMENT, run_record(RUN, **{missing: None})).startswith("# REJECTED")
    empty = ticket_of(Judgement("cpu", "incomplete", "", ()), run_record())
    assert "No requirement was judged." in empty


def test_many_arms_of_low_utilization_are_one_note() -> None:
    remarks = [because("low-utilization", "s", f"ddp@{n}", 1, 1, 0.8, 0, "n1", 0.7) for n in range(7)]
    judgement = replace(ACCEPTED, notes=(*map(said, remarks), "other"), remarks=(*remarks, because("text", "other")))
    assert notes(judgement) == [f"{said(remarks[0])} (6 more arms alike: verdicts.json)", "other"]
    assert notes(judgement, ["low-utilization"]) == ["other"]


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
    assert "800 × B200\n- Nodes: 100: n0, n1, n2, n3 and 96 more" in ticket
    assert "GPU-11" not in ticket
    page = page_text(page_of(judgement, RUN, evidence))
    left = re.findall(r"(\d+) more: (\S+) lists all", page)
    assert left == [("36", "verdicts.json"), ("59", "verdicts.json"), ("36", "measurements.jsonl")]


def test_many_arms_without_a_profile_are_counted() -> None:
    why = "this build of torch has no Kineto"
    lost = [ArmProfile(study="weak/r", arm=f"ddp@{2**n}", gang=0, rank=0, problem=why) for n in range(1, 8)]
    assert problem_lines(lost) == [f"no profile of weak/r, ddp@2; weak/r, ddp@4; weak/r, ddp@8 and 4 more: {why}"]


def test_a_run_that_can_be_measured_again_says_how_once() -> None:
    page = page_text(page_of(JUDGEMENT, with_fields(RUN, again=("pytest", "--gpu-sku=b200"))))
    assert page.count("Measure everything again: pytest --gpu-sku=b200") == 1
    for run in (with_fields(RUN, status="imported"), with_fields(RUN, simulated=True)):
        assert "Measure everything again" not in page_of(JUDGEMENT, run)
    unfinished = replace(JUDGEMENT, unfinished=True, basis={"measurements_path": "run/measurements.jsonl"})
    page = page_of(unfinished)
    assert page.count("--ddp-resume=run") == 1
    assert "Measure everything again" not in page


@pytest.mark.parametrize("columns", [20, 80, 200])
def test_a_terminal_says_right_before_the_outcome_that_a_run_was_simulated(columns: int) -> None:
    lines = [line for line, _ in table_lines(replace(ACCEPTED, simulated=True), columns)]
    assert lines[-2] == WATERMARK
    assert lines.count(WATERMARK) == 1
    assert WATERMARK not in "\n".join(line for line, _ in table_lines(JUDGEMENT, columns))
