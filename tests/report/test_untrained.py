"""Probes, checks of nodes, energy and history read well in every format."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import pytest

from pytest_ddpscale.evidence.columns import Columns
from pytest_ddpscale.evidence.evidence import Evidence
from pytest_ddpscale.plan.metric_catalogue import METRICS
from pytest_ddpscale.plan.node_check import NODE_CHECKS
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.report import text
from pytest_ddpscale.report.explain import explain
from pytest_ddpscale.report.html_page import render_html
from pytest_ddpscale.report.junit import render_junit
from pytest_ddpscale.report.markdown import render_markdown
from pytest_ddpscale.report.plan_text import plan_lines
from pytest_ddpscale.report.plots import write_plots
from pytest_ddpscale.report.terminal import table_lines
from pytest_ddpscale.results.records import StudyStart
from pytest_ddpscale.results.verdicts import Verdict
from tests.builders.judgements import JUDGEMENT as TRAINED
from tests.builders.judgements import MEASUREMENTS, RUN, UUID
from tests.builders.judgements import PLAN as TRAINED_PLAN
from tests.builders.rounds import columns_of
from tests.builders.untrained import (
    ALL_REDUCE,
    CHECK,
    CHECK_PASSED,
    CHECK_UNKNOWN,
    ENERGY,
    HISTORY,
    JUDGEMENT,
    MATMUL,
    PAIRS,
    PLAN,
)
from tests.report.page_text import page_text

BEGIN = StudyStart(study="probes", unix_s=1.7e9)
MEANING = "a node passes if ECC is on as expected, without uncorrectable errors"


def page(plan: Plan = PLAN, judgement: Any = JUDGEMENT) -> str:
    return page_text(render_html(judgement, RUN, Evidence(plan, Columns(), {})))


class TestNumbers:
    @pytest.mark.parametrize("metric", sorted(METRICS))
    def test_every_metric_has_its_unit(self, metric: str) -> None:
        unit = {"fraction": " %", "x": "×"}.get(METRICS[metric].unit, f" {METRICS[metric].unit}")
        assert text.number_text(0.5, METRICS[metric].unit).endswith(unit)

    @pytest.mark.parametrize(
        ("verdict", "value", "bound"),
        [
            (MATMUL, "205.3 (≤ 205.6) TFLOPS", "≥ 230.5 TFLOPS"),
            (ALL_REDUCE, "131.4 (≥ 130.9) GB/s", "≥ 112.9 GB/s"),
            (PAIRS, "9.81 (≤ 9.92) GB/s", "≥ 117 GB/s"),
            (ENERGY, "2.964 (≥ 2.950) img/J", "≥ 2.668 img/J"),
            (HISTORY, "0.91 (≤ 0.92)×", "≥ 0.95×"),
            (CHECK, "50.0 %", "≥ 100.0 %"),
        ],
    )
    def test_value_and_bound(self, verdict: Verdict, value: str, bound: str) -> None:
        assert (text.value_text(verdict), text.bound_text(verdict)) == (value, bound)

    def test_nodes_are_counted_without_an_interval_or_rounds(self) -> None:
        assert (text.has_interval(CHECK), text.limits_text(CHECK), text.rounds_text(CHECK)) == (False, "–", "–")
        assert (text.has_interval(MATMUL), text.rounds_text(MATMUL)) == (True, "8")

    def test_a_check_is_not_provisional_and_a_probe_may_be(self) -> None:
        assert CHECK.provisional
        assert (text.is_provisional(CHECK), text.is_provisional(PAIRS), text.is_provisional(MATMUL)) == (
            False, True, False,
        )  # fmt: skip


class TestSubject:
    @pytest.mark.parametrize(
        ("verdict", "expected"),
        [
            (MATMUL, "Matrix multiplication of each rank, probed by matmul-bf16"),
            (ALL_REDUCE, "Bus bandwidth among 8 ranks, probed by all-reduce-32mib"),
            (PAIRS, "Bandwidth of pairs among 8 ranks, probed by send-recv-256mib"),
            (ENERGY, "Images per joule of resnet152-fp16 on 8 ranks"),
            (HISTORY, "No regression of any node"),
            (CHECK, f"Memory errors ({MEANING})"),
        ],
    )
    def test_says_what_was_asked(self, verdict: Verdict, expected: str) -> None:
        assert text.subject_text(verdict) == expected

    def test_a_check_that_is_no_longer_known_has_its_name(self) -> None:
        unknown = replace(CHECK, id="node_check[gone]", workload="gone")
        assert text.subject_text(unknown) == "Node checks, gone"
        assert (text.check_text(unknown), text.requirement_text(unknown)) == ("", "gone")

    @pytest.mark.parametrize("name", sorted(NODE_CHECKS))
    def test_every_check_says_what_a_node_needs_to_pass(self, name: str) -> None:
        one = replace(CHECK, id=f"node_check[{name}]", workload=name)
        assert text.check_text(one) == f"{NODE_CHECKS[name].title}: a node passes if {NODE_CHECKS[name].meaning}"
        assert text.requirement_text(one) == f"{name}: {NODE_CHECKS[name].meaning}"


class TestTerminal:
    LINES = tuple(line for line, _ in table_lines(JUDGEMENT, 130))

    def test_a_failed_check_says_what_was_asked_and_what_was_found(self) -> None:
        row = next(i for i, line in enumerate(self.LINES) if line.startswith("node_check[ecc]"))
        assert " ".join(self.LINES[row].split()) == "node_check[ecc] 50.0 % – ≥ 100.0 % −50.0 % FAIL"
        assert self.LINES[row + 1] == f"    Memory errors: {MEANING}"
        assert self.LINES[row + 2] == f"    {CHECK.reason}"

    def test_a_passed_check_is_one_line(self) -> None:
        row = next(i for i, line in enumerate(self.LINES) if line.startswith("node_check[pcie]"))
        assert self.LINES[row].endswith("  PASS")
        assert not self.LINES[row + 1].startswith(" ")

    def test_only_bounds_without_a_figure_are_marked(self) -> None:
        row, legend = (line for line in self.LINES if "*" in line)
        assert row.startswith("pair_bandwidth_gbps[")
        assert legend == "* provisional bound: no published figure stands behind it"


class TestMarkdown:
    def test_the_table_says_what_was_found(self) -> None:
        lines = render_markdown(JUDGEMENT, RUN).splitlines()
        assert "| node_check[ecc] | 50.0 % | – | ≥ 100.0 % | −50.0 % | **FAIL** | 1 |" in lines
        assert any(line.startswith("### 1. GPU 3 (GPU-5d3a91c2…) on node7: 2 memory errors") for line in lines)


class TestPage:
    def test_it_says_what_each_check_asks(self) -> None:
        lines = page().splitlines()
        assert "| Node checks: ecc | FAIL | 50.0 % | – | ≥ 100.0 % | −50.0 % | – |" in lines
        assert f"Memory errors: {MEANING}" in lines
        below = lines.index(CHECK.reason)
        assert lines[below + 1] == f"at fault: GPU 3 ({UUID}) on node7"
        assert MATMUL.reason in lines

    def test_checks_are_not_among_bounds_that_want_a_figure(self) -> None:
        bounds = page().partition("Provisional bounds\n")[2].partition("How it was measured")[0]
        assert "pair_bandwidth_gbps[send-recv-256mib-8gpu], " in bounds
        assert "node_check" not in bounds

    def test_says_what_was_done_without_training(self) -> None:
        report = page()
        assert "A survey of each node before the launch read its GPUs" in report
        assert "on all GPUs or links: at most 16 rounds of 0.5 s of matmul-bf16, all-reduce-32mib@8." in report
        assert "No model was trained." in report

    def test_says_nothing_of_probes_where_there_were_none(self) -> None:
        report = page(TRAINED_PLAN, TRAINED)
        assert "Probes" not in report
        assert "was asked what it is" not in report


class TestJunit:
    def failure(self, verdict: Verdict) -> str:
        """What a failure says below the headline."""
        suite = ElementTree.fromstring(render_junit(replace(JUDGEMENT, verdicts=(verdict,))))
        return (suite.findtext(".//failure") or "").partition("\n")[2]

    def test_a_failed_check_says_what_was_asked(self) -> None:
        assert self.failure(CHECK).splitlines() == [
            f"Memory errors: {MEANING}",
            "value 50.0 %",
            f"GPU 3 ({UUID}) on node7: 2 memory errors that could not be corrected",
        ]

    def test_what_nobody_could_tell_is_no_pass(self) -> None:
        assert self.failure(CHECK_UNKNOWN).startswith("NVLink: a node passes if all NVLinks are up")

    def test_one_round_is_not_many(self) -> None:
        assert "value 205.3 TFLOPS, at most 205.6 TFLOPS, 8 rounds" in self.failure(MATMUL)
        assert self.failure(replace(MATMUL, rounds=1)).splitlines()[0].endswith(", 1 round")


class TestExplanation:
    def test_of_a_check_in_full(self) -> None:
        assert explain(CHECK, "thresholds.yaml:42", "pytest it").splitlines() == [
            f"FAIL  node_check[ecc]: {CHECK.reason}",
            f"  check     Memory errors: {MEANING}",
            "  value     50.0 %",
            "  bound     ≥ 100.0 %  (severity fail, thresholds.yaml:42)",
            "  margin    −50.0 %",
            f"  blame     GPU 3 ({UUID}) on node7: 2 memory errors that could not be corrected",
            "  rerun     pytest it",
        ]

    def test_of_a_probe_has_its_limits(self) -> None:
        assert "  limits    at most 205.6 TFLOPS  (95% confidence, 8 rounds)" in explain(MATMUL, "", "").splitlines()


def test_plots_of_what_was_trained_ignore_the_others(tmp_path: Any) -> None:
    both = replace(TRAINED, verdicts=(*TRAINED.verdicts, *JUDGEMENT.verdicts))
    assert len(write_plots(columns_of(MEASUREMENTS), TRAINED_PLAN, both, tmp_path / "both")) > 0
    assert write_plots(columns_of([]), PLAN, JUDGEMENT, tmp_path / "none") == []


class TestPlan:
    def test_a_survey_alone_takes_no_gpu(self) -> None:
        (head,) = plan_lines(replace(PLAN, probes=None), 3, isolate=False)
        assert "3 requirements, 0 studies, about 0.1 min on 0 GPUs = 0.00 GPU-hours" in head


def test_a_passing_check_is_a_pass() -> None:
    assert (text.verdict_word(CHECK_PASSED), text.margin_text(CHECK_PASSED)) == ("PASS", "–")
