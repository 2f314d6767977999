"""A throughput and its ratio are one requirement wherever a report counts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pytest_ddpscale.compare.compare_text import counts_line
from pytest_ddpscale.compare.comparing import ComparedRequirement
from pytest_ddpscale.report.culprits_text import read_findings, text_lines
from pytest_ddpscale.report.html_page import render_html
from pytest_ddpscale.report.junit import render_junit
from pytest_ddpscale.report.markdown import render_markdown
from pytest_ddpscale.report.node_table import node_table
from pytest_ddpscale.report.prometheus import render_prometheus
from pytest_ddpscale.report.sentences import certainty_lines, not_tested_lines, uniform_loss_text
from pytest_ddpscale.report.terminal import table_lines
from pytest_ddpscale.run.columns import Columns
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.verdicts import Culprit, GenerationComparison, Judgement, Verdict
from tests.builders.judged import ValueChange
from tests.builders.judgements import PASSED, PLAN, RUN
from tests.report.judged import gpu, write_judged_run

NODE = gpu("node7")
THROUGHPUT = replace(
    PASSED, id="throughput_per_gpu[r-1gpu]", metric="throughput_per_gpu", workload="r", world_size=1, unit="img/s",
    bound={"at_least": 900.0}, outcome="failed", value=800.0, interval=(790.0, 810.0), published=950.0,
)  # fmt: skip
RATIO = replace(
    THROUGHPUT, id="generation_ratio[r-1gpu-vs-a100]", metric="generation_ratio", unit="x", bound={"at_least": 1.5},
    value=1.3, interval=(1.28, 1.32), published=1.6, compared=GenerationComparison(800.0, 615.4, "a100", "a paper"),
    counts_with=THROUGHPUT.id,
)  # fmt: skip
OTHER = replace(THROUGHPUT, id="throughput_per_gpu[s-1gpu]", workload="s")


def judged(*verdicts: Verdict, **changes: Any) -> Judgement:
    return Judgement("b200", "rejected", "why", verdicts, **changes)


def naming(culprit: Culprit, *verdicts: Verdict) -> list[Verdict]:
    return [replace(one, culprits=(culprit,)) for one in verdicts]


def test_a_node_fails_both_once_in_the_column_of_the_throughput() -> None:
    table = node_table(judged(*naming(NODE, THROUGHPUT, RATIO, OTHER)), RUN)
    assert table.metrics == ("Throughput per GPU",)
    [row] = table.rows
    assert (row.cells, row.failures) == (("FAIL 2",), 2)


def test_a_node_that_fails_the_ratio_alone_fails_it_in_its_column() -> None:
    suspected = replace(NODE, is_certain=False)
    [open_, ratio] = [*naming(suspected, replace(THROUGHPUT, outcome="inconclusive")), *naming(NODE, RATIO)]
    table = node_table(judged(open_, ratio), RUN)
    assert table.metrics == ("Generation ratio",)
    assert [row.cells for row in table.rows] == [("FAIL 1",)]


def test_both_without_a_device_are_one_failure_that_names_no_node() -> None:
    others = node_table(judged(THROUGHPUT, RATIO, OTHER), RUN).others
    assert others.endswith("2 requirements failed, without naming a node")


def test_both_err_by_chance_together() -> None:
    alone, pair = (list(certainty_lines(judged(*of)))[1] for of in ((THROUGHPUT,), (THROUGHPUT, RATIO)))
    assert pair == alone
    assert "1 requirement can reject by chance" in pair
    loss = uniform_loss_text(judged(THROUGHPUT, RATIO))
    assert loss == "All devices alike slow: 1 requirement on throughput fails for which no device is named."


def test_both_that_were_not_measured_are_one() -> None:
    missing = [replace(one, outcome="not_measured", value=None, interval=None, compared=None, reason="no time")
               for one in (THROUGHPUT, RATIO, OTHER)]  # fmt: skip
    assert not_tested_lines(judged(*missing))[0] == "2 requirements: no time"
    alone = not_tested_lines(judged(OTHER, THROUGHPUT, missing[1]))
    assert alone[0] == "1 requirement: no time", "a measured throughput does not hide it"
    many = [replace(missing[2], id=f"one[{i}]", reason=f"interrupted in study {i}") for i in range(12)]
    assert not_tested_lines(judged(*many))[-1] == "2 more reasons: verdicts.json lists all"


def test_who_drains_is_told_how_many_more_once(tmp_path: Path) -> None:
    run = write_judged_run(tmp_path / "r", "rejected", ("n1",), [THROUGHPUT, RATIO, OTHER])
    [line] = text_lines(read_findings(run).findings)
    assert "and 1 more failed" in line
    suspected = naming(gpu("n1"), *(replace(one, severity="warn") for one in (THROUGHPUT, RATIO)))
    run = write_judged_run(tmp_path / "s", "accepted", ("n1",), suspected)
    assert not any("more" in line for line in text_lines(read_findings(run).findings))


def test_a_culprit_of_both_has_one_failure() -> None:
    text = render_prometheus(judged(*naming(NODE, THROUGHPUT, RATIO, OTHER)), RUN)
    samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
    assert [one.value for one in samples if one.name == "ddpscale_culprit_failures"] == [2]


def test_a_comparison_counts_both_once() -> None:
    def compared(of: Verdict, size: float) -> ComparedRequirement:
        change = ValueChange(size, size - 0.001, size + 0.001)
        difference = "slower" if size < 0 else "faster" if size > 0.002 else "no difference shown"
        return ComparedRequirement(
            of.id, of.metric, of.workload, 1, of.unit, change=change, is_worse=size < 0, counts_with=of.counts_with,
            difference=difference,  # type: ignore[arg-type]
        )  # fmt: skip

    rows = [compared(THROUGHPUT, -0.1), compared(RATIO, -0.1), compared(OTHER, 0.1)]
    assert counts_line(rows) == "Worse and better: of 2 requirements 1 are worse in B, 1 better, 0 show no difference."
    assert counts_line(rows[1:]).startswith("Worse and better: of 2 requirements 1 are worse")
    mixed = [compared(THROUGHPUT, 0.0), compared(RATIO, -0.1)]
    assert counts_line(mixed) == "Worse: of 1 requirements 1 are worse in B, 0 better, 0 show no difference."


def test_a_note_on_both_is_a_note_on_one_requirement() -> None:
    noted = [replace(one, notes=("host-bound",)) for one in (THROUGHPUT, RATIO, OTHER)]
    said = f"note: {THROUGHPUT.id}, {OTHER.id}: host-bound"
    assert said in [line for line, _ in table_lines(judged(*noted), 120)]
    alone = [line.strip() for line, _ in table_lines(judged(*noted[:2]), 120)]
    assert alone.count("note: host-bound") == 2, "below both rows"


@pytest.mark.parametrize("ratio", [RATIO, replace(RATIO, outcome="passed", value=1.55)])
def test_the_page_of_a_run_that_goes_on_counts_both_once(ratio: Verdict) -> None:
    page = render_html(judged(THROUGHPUT, ratio, PASSED), RUN, Evidence(PLAN, Columns(), {}), goes_on=True)
    assert "MEASURING: 1 of 2 requirements passed so far, 1 failed" in page


def test_markdown_has_the_ratio_beside_its_throughput() -> None:
    report = render_markdown(judged(THROUGHPUT, replace(RATIO, outcome="passed", value=1.55)), RUN)
    assert "| 800.0 img/s; 1.55× a100; bound ≥ 1.5×: PASS |" in report
    assert ": 1 of 1 requirement failed, 0 passed." in report


def test_programs_see_both() -> None:
    junit = render_junit(judged(THROUGHPUT, RATIO))
    assert 'tests="2" failures="2"' in junit
