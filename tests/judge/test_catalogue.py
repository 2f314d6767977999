"""All checks together: missing nodes, certainty, and who is left out."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_ddpscale.judge.findings import NodeEvidence
from pytest_ddpscale.judge.node_checks import unfit_hosts
from pytest_ddpscale.plan.node_check import NODE_CHECKS
from pytest_ddpscale.run.survey_record import Survey
from pytest_ddpscale.run.verdicts import PARTLY_KNOWN
from tests.builders.nodes_checked import A100, CPU, VERSIONS, by_host, cpu_survey, gpu, gpus, judged, survey, with_gpu

ON_SURVEYS = [name for name, check in NODE_CHECKS.items() if check.reads == "survey"]


def test_no_check_passes_on_nothing_nor_without_a_survey_of_each_node() -> None:
    for name in NODE_CHECKS:
        nothing = judged(name, planned=2)
        assert (nothing.outcome, nothing.value) == ("not_measured", None)
    for name in ON_SURVEYS:
        absent = judged(name, survey("n1"), survey("n2"), planned=3)
        assert absent.outcome == "not_measured"
        assert "1 of 3 nodes reported nothing" in absent.reason
        hung = judged(name, survey("n1"), Survey("n2", 1.7e9, problem="no answer in 60 s"))
        assert (hung.outcome, hung.value) == ("not_measured", None)
        assert "n2: survey failed: no answer in 60 s" in hung.reason


def test_a_failure_says_what_else_is_not_known() -> None:
    result = judged("pcie", with_gpu(host="n1", pcie_width_max=8), survey("n2", problem="it hangs"))
    assert (result.outcome, result.flags) == ("failed", (PARTLY_KNOWN,))
    assert "also missing data: n2: survey failed: it hangs" in result.notes
    assert judged("pcie", with_gpu(host="n1", pcie_width_max=8), survey("n2")).flags == ()


def test_what_means_nothing_without_a_gpu_is_not_passed_on_cpu_and_the_others_pass_there() -> None:
    for name, check in NODE_CHECKS.items():
        result = judged(name, cpu_survey("n1"), cpu_survey("n2"), expectation=CPU)
        assert result.outcome == ("passed" if check.on_cpu else "not_measured")


def test_if_most_nodes_fail_alike_the_expectation_may_be_wrong_and_nobody_is_certain() -> None:
    everywhere = [survey(host, gpus=gpus(host, which=range(8), pcie_width_max=8)) for host in ("n1", "n2", "n3")]
    result = judged("pcie", *everywhere, survey("n4"))
    assert (result.outcome, result.value) == ("failed", 0.25)
    assert len(result.culprits) == 24
    assert not any(culprit.is_certain for culprit in result.culprits)
    assert "is the expectation right?" in result.notes[-1]


def test_one_bad_gpu_is_certain_beside_good_ones_and_all_of_a_single_node_are_not() -> None:
    result = judged("pcie", with_gpu(host="n1", pcie_width_max=8), with_gpu(host="n2", pcie_width_max=4))
    assert [culprit.is_certain for culprit in result.culprits] == [True, True]
    assert judged("nvlink", with_gpu(nvlinks_active=0)).culprits[0].is_certain
    assert not judged("nvlink", with_gpu(which=range(8), nvlinks_active=0)).culprits[0].is_certain


def test_what_a_single_node_as_a_whole_is_not_is_certainly_its_own_fault() -> None:
    node = survey(gpus=gpus(count=7), free_bytes={"run_directory": 0})
    assert [culprit.is_certain for culprit in judged("gpus", node).culprits] == [True]
    assert sorted(unfit_hosts(["gpus", "disk"], NodeEvidence(A100, by_host([node]), 1))) == ["n1"]
    alike = [survey(host, free_bytes={"run_directory": 0}) for host in ("n1", "n2")]
    assert not any(culprit.is_certain for culprit in judged("disk", *alike).culprits)


@pytest.mark.parametrize(("braked", "is_certain"), [(1, True), (2, True), (3, False), (4, False)])
def test_a_power_brake_of_most_nodes_may_be_the_facilitys(braked: int, is_certain: bool) -> None:
    reasons = ("hw_slowdown", "hw_power_brake_slowdown")
    nodes = [with_gpu(host=f"n{i}", throttle_reasons=reasons if i < braked else ()) for i in range(4)]
    result = judged("throttling", *nodes)
    assert result.outcome == "failed"
    assert [culprit.is_certain for culprit in result.culprits] == [is_certain] * braked
    assert any("is it the facility?" in text for text in result.notes) is not is_certain


def test_heat_is_certain_even_beside_a_power_brake_of_most_nodes() -> None:
    hot = ("hw_thermal_slowdown", "hw_power_brake_slowdown")
    nodes = [with_gpu(host=f"n{i}", throttle_reasons=("hw_power_brake_slowdown",)) for i in range(3)]
    culprits = judged("throttling", *nodes, with_gpu(host="n3", throttle_reasons=hot)).culprits
    assert [culprit.host for culprit in culprits if culprit.is_certain] == ["n3"]


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("gpus", {"problem": "GPU is lost"}),
        ("ecc", {"ecc_uncorrected": 1}),
        ("throttling", {"throttle_reasons": ("hw_slowdown",)}),
    ],
)
def test_what_needs_no_comparison_is_certain_on_every_node(name: str, changes: dict[str, Any]) -> None:
    nodes = [survey(host, gpus=gpus(host, which=range(8), **changes)) for host in ("n1", "n2")]
    assert all(culprit.is_certain for culprit in judged(name, *nodes).culprits)


def test_a_lost_gpu_is_certain_even_among_gpus_of_which_the_expectation_may_be_wrong() -> None:
    others = gpus(which=range(8), name="NVIDIA A100-SXM4-40GB")
    node = survey(gpus=(*others[:7], gpu(7, problem="GPU is lost")))
    certain = [culprit.gpu_index for culprit in judged("gpus", node).culprits if culprit.is_certain]
    assert certain == [7]


def test_unfit_nodes_are_those_that_certainly_fail_or_do_not_answer() -> None:
    nodes = [
        survey("n1"),
        with_gpu(host="n2", nvlinks_active=0, ecc_uncorrected=1),
        Survey("n3", 1.7e9, problem="no answer in 60 s"),
        survey("n4"),
        survey("n5", versions=VERSIONS | {"driver": "570.1"}),
    ]
    found = unfit_hosts(
        ["nvlink", "ecc", "versions", "transport", "ecc_under_load"], NodeEvidence(A100, by_host(nodes), 5)
    )
    assert found == {
        "n2": "nvlink: GPU 3: 0 NVLinks are up; expected 12; "
        "ecc: GPU 3: 1 uncorrectable memory errors since the driver was loaded",
        "n3": "survey failed: no answer in 60 s",
        "n5": f"versions: driver 570.1; 3 of 4 nodes have {VERSIONS['driver']}",
    }


def test_checks_that_were_not_asked_for_leave_nobody_out() -> None:
    assert (
        unfit_hosts(["pcie"], NodeEvidence(A100, by_host([survey("n1"), with_gpu(host="n2", nvlinks_active=0)]), 2))
        == {}
    )
    assert unfit_hosts([], NodeEvidence(A100, by_host([survey("n1", problem="it hangs")]), 1)) == {}


def test_nodes_that_may_be_right_are_not_left_out() -> None:
    nodes = [survey("n1"), survey("n2", versions=VERSIONS | {"nccl": "2.26.2"})]
    assert unfit_hosts(["versions"], NodeEvidence(A100, by_host(nodes), 2)) == {}
    everywhere = [survey(host, gpus=gpus(host, which=range(8), pcie_width_max=8)) for host in ("n1", "n2")]
    assert unfit_hosts(["pcie"], NodeEvidence(A100, by_host(everywhere), 2)) == {}
