"""Nodes are admitted or refused by what their surveys say, and those that are unfit are told at once."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.results.notices import Unfit
from pytest_ddpscale.results.survey_record import Survey
from pytest_ddpscale.session.admission import Admission
from pytest_ddpscale.settings import LEAVE_OUT, MEASURE, UNFIT
from pytest_ddpscale.thresholds.cases import NodeCase
from pytest_ddpscale.thresholds.model import Requirement, Sku

CPU = Sku.model_validate({"description": "any CPU", "detect": {"device": "cpu"}})
PLAN = Plan("cpu", "cpu", (), nodes=3, ranks_per_node=2, survey=True)
TOO_SMALL = "gpus: 1 CPU cores for 2 ranks"


def check_case(name: str, severity: str = "fail") -> NodeCase:
    line = {"metric": "node_check", "check": name, "at_least": 1.0, "severity": severity, "provisional": True}
    requirement = Requirement.model_validate({**line, "source": {"reasoning": "made up for a test"}})
    return NodeCase(requirement, name, "t.yaml:7", sku=CPU)


def survey(host: str, **fields: Any) -> Survey:
    return Survey(host, 1.7e9, **{"cores": 2, "free_bytes": {"run_directory": 2**40}, **fields})


def asked(unfit_nodes_are: str, *surveys: Survey, cases: tuple[NodeCase, ...] = ()) -> tuple[str, Admission]:
    """What is said of nodes that all have to have two cores, and who said it."""
    heard: list[object] = []
    admission = Admission(cases or (check_case("gpus"),), PLAN, unfit_nodes_are, heard.append)
    reason = admission(list(surveys))
    assert heard == ([Unfit(admission.unfit)] if admission.unfit else [])
    return reason, admission


@pytest.mark.parametrize("unfit_nodes_are", UNFIT)
def test_nodes_that_are_as_they_should_be_are_admitted(unfit_nodes_are: str) -> None:
    reason, admission = asked(unfit_nodes_are, survey("n1"), survey("n2"), survey("n3"))
    assert (reason, admission.unfit, admission.in_words) == ("", {}, "")


@pytest.mark.parametrize(
    ("unfit_nodes_are", "reason"), [(MEASURE, ""), (LEAVE_OUT, f"n2: {TOO_SMALL}"), ("stop", f"n2: {TOO_SMALL}")]
)
def test_an_unfit_node_is_told_whatever_becomes_of_it(unfit_nodes_are: str, reason: str) -> None:
    said, admission = asked(unfit_nodes_are, survey("n1"), survey("n2", cores=1), survey("n3"))
    assert said == reason
    assert admission.unfit == {"n2": TOO_SMALL}


def test_all_unfit_nodes_are_in_the_reason() -> None:
    reason, _ = asked("stop", survey("n1"), survey("n2", cores=1), survey("n3", problem="nvmlInit did not return"))
    assert reason == f"n2: {TOO_SMALL}; n3: it could not be looked at: nvmlInit did not return"


def test_only_a_check_of_severity_fail_makes_a_node_unfit() -> None:
    assert asked("stop", survey("n1", cores=1), cases=(check_case("gpus", "warn"),))[0] == ""
    assert asked("stop", survey("n1", cores=1), cases=(check_case("disk"),))[0] == "", "that was not asked"


def test_a_node_that_may_as_well_be_right_is_admitted() -> None:
    """Most nodes have one core: then it is the plan that expects too much."""
    reason, _ = asked("stop", survey("n1", cores=1), survey("n2", cores=1), survey("n3"))
    assert reason == ""
