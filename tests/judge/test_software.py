"""The same software on all nodes."""

from __future__ import annotations

from typing import Any

from pytest_ddpscale.run.survey_record import Survey
from tests.builders.nodes_checked import CPU, VERSIONS, blamed, cpu_survey, judged, survey

COMPARED = [name for name in VERSIONS if name != "kernel"]


def node(host: str, **versions: Any) -> Survey:
    return survey(host, versions=VERSIONS | versions)


def test_the_odd_one_out_is_named_with_what_it_has_and_what_most_have() -> None:
    for name in COMPARED:
        result = judged("versions", node("n1"), node("n2"), node("n3", **{name: "0.9"}), node("n4"))
        assert (*blamed(result), result.value) == ("failed", [("n3", True)], 0.75)
        assert result.culprits[0].evidence == f"{name} 0.9; 3 of 4 nodes have {VERSIONS[name]}"


def test_without_a_majority_nobody_is_certain_and_one_node_agrees_with_itself() -> None:
    assert blamed(judged("versions", node("n1"))) == ("passed", [])
    two = judged("versions", node("n1"), node("n2", nccl="2.26.2"))
    assert (*blamed(two), two.value) == ("failed", [("n1", False), ("n2", False)], 0.0)
    halves = judged("versions", node("n1"), node("n2"), node("n3", driver="570.1"), node("n4", driver="570.1"))
    assert [culprit.is_certain for culprit in halves.culprits] == [False] * 4


def test_other_kernels_and_a_torch_that_was_not_tried_are_noted_once_and_fail_nobody() -> None:
    kernel = judged("versions", node("n1"), node("n2"), node("n3", kernel="5.15"))
    torch = judged("versions", *(node(f"n{number}", torch="2.99.0+cu150") for number in range(1, 5)))
    for result in (kernel, torch):
        assert (result.outcome, len(result.notes)) == ("passed", 1)


def test_a_version_that_is_not_known_is_never_the_same() -> None:
    for name in COMPARED:
        other = survey("n2", versions=VERSIONS | {name: None}, torch_problem="too slow")
        result = judged("versions", node("n1"), other)
        assert result.outcome == "not_measured"
        assert f"n2: no version of {name} (too slow)" in result.reason


def test_nodes_without_gpus_are_compared_by_what_they_have() -> None:
    assert judged("versions", cpu_survey("n1"), cpu_survey("n2"), expectation=CPU).outcome == "passed"
    other = cpu_survey("n2", versions={"torch": "2.11.0+cpu", "python": "3.11.9", "pytest_ddpscale": "0.1.0"})
    assert judged("versions", cpu_survey("n1"), other, expectation=CPU).outcome == "failed"
