"""Probes, checks of nodes, energy and history read well in every format."""

from __future__ import annotations

from dataclasses import replace

from pytest_ddpscale.plan.metric_catalogue import METRICS
from pytest_ddpscale.plan.node_check import NODE_CHECKS
from pytest_ddpscale.report import digits
from pytest_ddpscale.report.listings import plan_lines
from pytest_ddpscale.report.words.verdicts import check_text
from tests.builders.untrained import (
    CHECK,
    PLAN,
)


class TestNumbers:
    def test_every_metric_has_its_unit(self) -> None:
        for metric in sorted(METRICS):
            unit = {"fraction": " %", "x": "×"}.get(METRICS[metric].unit, f" {METRICS[metric].unit_of()}")
            assert digits.number_text(0.5, METRICS[metric].unit_of()).endswith(unit)


class TestSubject:
    def test_every_check_says_what_a_node_needs_to_pass(self) -> None:
        for name in sorted(NODE_CHECKS):
            one = replace(CHECK, id=f"node_check[{name}]", workload=name)
            assert check_text(one) == f"{NODE_CHECKS[name].title}: a node passes if {NODE_CHECKS[name].meaning}"


class TestPlan:
    def test_a_survey_alone_takes_no_gpu(self) -> None:
        (head,) = plan_lines(replace(PLAN, probes=None), 3, isolate=False)
        assert "3 requirements, 0 studies, about 0.1 min on 0 GPUs = 0.00 GPU-hours" in head
