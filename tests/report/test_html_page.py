"""The page that is signed: one file of its own, readable without its script, whose text from outside stays text."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from datetime import date
from html.parser import HTMLParser
from typing import Any

from markupsafe import escape
from msgspec.structs import replace as with_fields

from pytest_ddpscale.plan.metric_catalogue import METRICS
from pytest_ddpscale.report.first_page import key_numbers, shared
from pytest_ddpscale.report.html_page import render_html, topologies
from pytest_ddpscale.report.markdown import render_markdown
from pytest_ddpscale.report.text import short_name
from pytest_ddpscale.report.while_measuring import LIVE
from pytest_ddpscale.run.coverage import Coverage, NodeCoverage
from pytest_ddpscale.run.run_json import Resumed
from pytest_ddpscale.run.survey_record import Survey
from pytest_ddpscale.run.verdicts import Verdict
from pytest_ddpscale.thresholds.waiver import Waiver
from tests.builders.culprits import gpu, node
from tests.builders.judgements import (
    ACCEPTED,
    EVIDENCE,
    FAILED,
    HOSTILE,
    JUDGEMENT,
    NOT_MEASURED,
    RUN,
    hostile_judgement,
    hostile_run,
    judgement_with,
)
from tests.report.page_text import page_text

ATTACK = HOSTILE + "</script><img src=x onerror=alert(1)>\u202egnp.exe\x07"
NOTHING = EVIDENCE
PAGE = render_html(JUDGEMENT, RUN, NOTHING)


def test_text_from_outside_stays_text() -> None:
    surveys = {ATTACK: Survey(host=ATTACK, unix_s=1.0, topology=f"GPU0 {ATTACK}")}
    run = with_fields(hostile_run(), noted=dict.fromkeys(("operator", "site", "ticket", ATTACK), ATTACK))
    page = render_html(
        replace(hostile_judgement(), notes=(ATTACK,), reason=ATTACK), run, replace(NOTHING, surveys=surveys)
    )
    assert page.count("<script") == 1
    assert "<img" not in page
    assert "&lt;/script&gt;&lt;img" in page
    assert not re.search("[\u202a-\u202e\u2066-\u2069\x00-\x08\x0b-\x1f\x7f]", page)


def test_nothing_is_asked_of_the_network_and_only_the_pages_own_script_runs() -> None:
    script = re.search("<script>(.*)</script>", PAGE, re.DOTALL)
    assert script is not None
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'" in PAGE
    assert not re.search(r'(src|href)="(?!#)|url\(|@import', PAGE)


class Tags(HTMLParser):
    """Elements that are open, ids, and targets of links within the page."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.targets: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "input", "br"):
            self.open.append(tag)
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self.targets |= {(value or "")[1:] for name, value in attrs if name == "href"}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_elements_are_nested_and_links_have_targets() -> None:
    for page in (PAGE, render_html(ACCEPTED, RUN, NOTHING), render_html(JUDGEMENT, RUN, NOTHING, goes_on=True)):
        tags = Tags()
        tags.feed(page)
        assert tags.open == []
        assert len(tags.ids) == len(set(tags.ids))
        assert tags.targets <= set(tags.ids)


def test_only_the_page_of_a_run_that_goes_on_refreshes() -> None:
    assert 'http-equiv="refresh"' not in PAGE
    assert "<body>" in PAGE
    page = render_html(JUDGEMENT, RUN, NOTHING, goes_on=True)
    assert '<noscript><meta http-equiv="refresh" content="10"></noscript>' in page, "a reader could not pause it"
    assert '<body data-refresh-s="10">' in page
    assert (page.count(LIVE), PAGE.count(LIVE)) == (1, 0)
    attacked = render_html(replace(hostile_judgement(), notes=(LIVE,), reason=LIVE), RUN, NOTHING, goes_on=True)
    assert attacked.count(LIVE) == 1


def test_what_failed_stands_above_what_passed() -> None:
    table = PAGE.split('id="requirements"')[1]
    words = re.findall(r'class="word \w*">([A-Z ]+)<', table)
    assert words[0] == "FAIL"
    assert words[-3:] == ["PASS"] * 3


def test_a_bound_has_the_number_of_its_source() -> None:
    sources = {name: number for number, name in re.findall(r'<li id="source-(\d+)">(.*?)</li>', PAGE)}
    for one in filter(lambda one: one.source, JUDGEMENT.verdicts):
        row = PAGE.split(f"{METRICS[one.metric].title}: {short_name(one)}</th>")[1]
        assert re.findall(r'#source-(\d+)">', row.split("</tr>")[0]) == [sources[str(escape(one.source))]]


def test_a_number_that_was_not_measured_is_shown_before_one_that_was() -> None:
    missing = replace(FAILED, id="throughput_per_gpu[x-8gpu]", outcome="not_measured", value=None, interval=None)
    assert key_numbers(judgement_with(FAILED, missing))[1].word == "NOT MEASURED"


def test_throughput_is_shown_against_the_published_value() -> None:
    number = key_numbers(judgement_with(replace(FAILED, published=2318.4)))[1]
    assert (number.value, number.subject.split(",")[0]) == ("50.0 % of published", "1159.2 img/s")


def check_of(name: str, **changes: Any) -> Verdict:
    """A node check that one node of two fails for certain."""
    fields: dict[str, Any] = {
        "id": f"node_check[{name}]", "metric": "node_check", "workload": name, "world_size": 1, "severity": "fail",
        "bound": {"at_least": 1.0}, "outcome": "failed", "value": 0.5,
        "culprits": (node("n1", "no"),),
    }  # fmt: skip
    return Verdict(**(fields | changes))


def nodes_number(*checks: Verdict, **changes: Any) -> tuple[str, str]:
    coverage = Coverage((NodeCoverage("n1", ("survey",)), NodeCoverage("n2", ("survey",))))
    fields: dict[str, Any] = {"coverage": coverage, "outcome": "rejected"}
    number = key_numbers(replace(judgement_with(*checks), **(fields | changes)))[0]
    return number.value, number.word


def test_nodes_at_fault_are_those_that_the_worst_kind_of_failure_names() -> None:
    good = check_of("driver", outcome="passed", value=1.0, culprits=())
    only_warns = check_of("ecc", severity="warn")
    waived = check_of("ecc", waiver=Waiver("known", "ops", date(2099, 1, 1)))
    assert nodes_number(good, outcome="accepted") == ("0 of 2", "PASS")
    assert nodes_number(good, only_warns, outcome="accepted") == ("1 of 2", "WARN")
    assert nodes_number(good, waived, outcome="accepted") == ("1 of 2", "WAIVED")
    assert nodes_number(good, only_warns, check_of("nvlink")) == ("1 of 2", "FAIL")


def test_no_node_at_fault_is_no_pass_if_the_run_was_rejected_or_did_not_test_all() -> None:
    certain = node("n1", "no")
    suspect = node("n2", "or it", is_certain=False)
    assert nodes_number(check_of("ecc", culprits=(suspect,))) == ("0 of 2", "INCONCLUSIVE")
    assert nodes_number(check_of("ecc", culprits=(certain, suspect))) == ("1 of 2", "FAIL")
    assert nodes_number(check_of("ecc", culprits=())) == ("0 of 2", "INCONCLUSIVE")
    good = check_of("driver", outcome="passed", value=1.0, culprits=())
    assert nodes_number(good) == ("0 of 2", "INCONCLUSIVE")
    half = Coverage((NodeCoverage("n1", ("survey",)), NodeCoverage("n2", ())))
    assert nodes_number(good, coverage=half, outcome="incomplete") == ("0 of 2", "NOT MEASURED")


def test_one_reason_of_several_requirements_stands_once_below_them() -> None:
    reasons = [f"GPU 3 of node7 is 1.20{i}× the median of its 7 peers" for i in range(3)]
    slow = gpu(evidence="1.20× the median of 7 peers", uuid="GPU-4f1c")
    alike = [
        replace(FAILED, id=f"throughput_per_gpu[w{i}-8gpu]", reason=reason, culprits=(slow,), notes=())
        for i, reason in enumerate(reasons)
    ]
    other = replace(
        alike[0], id="throughput_per_gpu[w9-8gpu]", culprits=(replace(slow, places=gpu(index=4, uuid="GPU-5").places),)
    )
    page = page_text(render_html(judgement_with(*alike, other), RUN, NOTHING))
    table = page.split("\nRequirements: not met\n")[1].split("\nNodes\n")[0].splitlines()
    assert [line for line in table if line.endswith(reasons[0])] == [f"Cause 1: {reasons[0]}", f"Cause 2: {reasons[0]}"]
    assert f"w1-8gpu: {reasons[1]}" in table, "other values are not lost"
    assert [line.split()[4] for line in table if "FAIL" in line] == ["w0-8gpu", "w1-8gpu", "w2-8gpu", "w9-8gpu"]


def test_whoever_measured_resumed_and_judged_is_on_the_first_page() -> None:
    resumed = Resumed(
        at="2026-03-01T11:00:00+00:00", argv=(), status_before="interrupted", measured_anew={},
        noted={"operator": "Bob"},
    )  # fmt: skip
    run = with_fields(RUN, noted={"rack": "B 7", "operator": "Ann"}, resumed=(resumed, resumed))
    page = render_html(replace(JUDGEMENT, basis={"note_operator": "Eve"}), run, NOTHING)
    assert "<dt>By</dt><dd>Ann, Bob</dd>" in page
    assert "<dt>Resumed</dt><dd>2026-03-01 11:00 UTC by Bob; the session before was interrupted</dd>" in page
    assert "<dt>Judged by</dt><dd>Eve</dd>" in page
    assert "<dt>rack</dt><dd>B 7</dd>" in page
    assert "Judged by" not in PAGE


def test_a_topology_unlike_most_is_marked() -> None:
    surveys = [Survey(host=host, unix_s=1.0, topology=matrix) for host, matrix in zip("abc", "YXX", strict=True)]
    assert [hosts for hosts, _ in topologies(surveys)] == ["b, c", "a"]


def test_who_only_misses_what_warns_is_on_the_first_page() -> None:
    slow = gpu(evidence="1.20× the median of 7 peers", uuid="GPU-4f1c", slowdown=1.2, peers=7)
    warned = [replace(FAILED, id=f"throughput_per_gpu[{i}]", severity="warn", culprits=(slow,)) for i in range(2)]
    first, second = warned[0], replace(warned[1], culprits=(replace(slow, places=gpu(index=4, uuid="GPU-5").places),))
    page = render_html(replace(ACCEPTED, verdicts=(*ACCEPTED.verdicts, first, second)), RUN, NOTHING)
    front = page[: page.index('class="numbers"')]
    for who in ("GPU 3 (GPU-4f1c)", "GPU 4 (GPU-5)"):
        assert f"warning: {who} on node7 is 1.20× slower than its 7 peers" in front
    assert "3 of 5 requirements passed, 2 only warn" in front


def test_only_a_run_of_a_machine_that_is_over_has_lines_to_sign() -> None:
    roles = [role for role, _ in shared(JUDGEMENT, RUN, None, ())["signatures"]]
    assert roles == ["Measured by", "Checked by", "Decided by"]
    assert "Accepted by, date" in render_html(ACCEPTED, RUN, NOTHING)
    named = with_fields(RUN, noted={"operator": "Ann"})
    for page in (render_html(JUDGEMENT, named, NOTHING), render_markdown(JUDGEMENT, named)):
        assert [role for role in ("Measured by", "Checked by", "Decided by") if role in page] == sorted(
            ("Measured by", "Checked by", "Decided by"), key=page.index
        )
        assert re.search("Measured by:? Ann", page)
    simulated = render_html(replace(ACCEPTED, simulated=True), RUN, NOTHING)
    going_on = render_html(ACCEPTED, RUN, NOTHING, goes_on=True)
    for page, why in ((simulated, "Not to be signed: no machine was measured."), (going_on, "To be signed once")):
        assert "by, date" not in page
        assert why in page


def test_while_it_goes_on_only_failures_are_causes() -> None:
    page = render_html(judgement_with(NOT_MEASURED, FAILED), RUN, NOTHING, goes_on=True)
    assert "MEASURING: 0 of 2 requirements passed so far, 1 failed</h1>" in page
    causes = page.split("Failures so far, by cause")[1].split("</ol>")[0]
    assert "GPU 3" in causes
    assert "it needs 64 ranks" not in causes
    nothing = render_html(judgement_with(NOT_MEASURED), RUN, NOTHING, goes_on=True)
    assert "by cause" not in nothing


def test_a_run_that_can_be_measured_again_says_how_once() -> None:
    page = page_text(render_html(JUDGEMENT, with_fields(RUN, again=("pytest", "--gpu-sku=b200")), NOTHING))
    assert page.count("Measure everything again: pytest --gpu-sku=b200") == 1
    for run in (with_fields(RUN, status="imported"), with_fields(RUN, simulated=True)):
        assert "Measure everything again" not in render_html(JUDGEMENT, run, NOTHING)
    unfinished = replace(JUDGEMENT, unfinished=True, basis={"measurements_path": "run/measurements.jsonl"})
    page = render_html(unfinished, RUN, NOTHING)
    assert page.count("--ddp-resume=run") == 1
    assert "Measure everything again" not in page
