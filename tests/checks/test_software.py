"""The same software on all nodes."""

from __future__ import annotations

import pytest

from tests.builders.nodes_checked import CPU, VERSIONS, cpu_survey, gpus, judged, survey

COMPARED = [name for name in VERSIONS if name != "kernel"]


@pytest.mark.parametrize("name", COMPARED)
def test_the_odd_one_out_is_named_with_what_it_has_and_what_most_have(name: str) -> None:
    odd = survey("n3", versions=VERSIONS | {name: "0.9"})
    result = judged("versions", survey("n1"), survey("n2"), odd, survey("n4"))
    assert (result.outcome, result.share) == ("failed", 0.75)
    (culprit,) = result.culprits
    assert (culprit.kind, culprit.host, culprit.is_certain) == ("node", "n3", True)
    assert culprit.evidence == f"{name} 0.9; 3 of 4 nodes have {VERSIONS[name]}"


def test_of_two_nodes_that_differ_neither_is_certain() -> None:
    result = judged("versions", survey("n1"), survey("n2", versions=VERSIONS | {"nccl": "2.26.2"}))
    assert (result.outcome, result.share) == ("failed", 0.0)
    assert [(culprit.host, culprit.is_certain) for culprit in result.culprits] == [("n1", False), ("n2", False)]


def test_of_two_halves_that_differ_none_is_certain() -> None:
    old = VERSIONS | {"driver": "570.1"}
    result = judged("versions", survey("n1"), survey("n2"), survey("n3", versions=old), survey("n4", versions=old))
    assert [culprit.is_certain for culprit in result.culprits] == [False] * 4
    assert "no majority" in result.reason


def test_other_kernels_are_noted_only() -> None:
    result = judged("versions", survey("n1"), survey("n2"), survey("n3", versions=VERSIONS | {"kernel": "5.15"}))
    assert result.outcome == "passed"
    assert result.notes == ("n3: kernel 5.15; 2 of 3 nodes have 6.8.0-60-generic",)


@pytest.mark.parametrize("name", COMPARED)
def test_a_version_that_is_not_known_is_never_the_same(name: str) -> None:
    result = judged("versions", survey("n1"), survey("n2", versions=VERSIONS | {name: None}, torch_problem="too slow"))
    assert result.outcome == "not_measured"
    assert f"n2: no version of {name} (too slow)" in result.reason


def test_one_node_agrees_with_itself() -> None:
    assert judged("versions", survey("n1")).outcome == "passed"


def test_a_torch_that_was_not_tried_is_noted_once_and_fails_nobody() -> None:
    newer = VERSIONS | {"torch": "2.99.0+cu150"}
    result = judged("versions", *(survey(f"n{number}", versions=newer) for number in range(1, 5)))
    assert result.outcome == "passed"
    assert result.notes == ("n1: torch 2.99.0+cu150 has not been tested with this package; 2.6 to 2.15 have",)


def test_a_gpu_that_torch_has_no_code_for_is_told_the_last_wheel_that_has() -> None:
    v100 = survey("n1", gpus=gpus("n1", which=range(8), compute_capability="7.0"))
    reason = judged("kernels", v100).reason
    assert "it has sm_75 sm_80 sm_86 sm_90 compute_90; the last wheel with code for it is torch 2.14 of CUDA" in reason


def test_nodes_without_gpus_are_compared_by_what_they_have() -> None:
    assert judged("versions", cpu_survey("n1"), cpu_survey("n2"), expectation=CPU).outcome == "passed"
    other = cpu_survey("n2", versions={"torch": "2.11.0+cpu", "python": "3.11.9", "pytest_ddpscale": "0.1.0"})
    assert judged("versions", cpu_survey("n1"), other, expectation=CPU).outcome == "failed"
