"""Each node that something is wrong with has a row with all that is known of it; the others have one together."""

from __future__ import annotations

from dataclasses import replace

from pytest_ddpscale.report.node_table import node_table
from pytest_ddpscale.run.coverage import Coverage, NodeCoverage
from pytest_ddpscale.run.verdicts import Culprit
from tests.builders.culprits import gpu
from tests.builders.judgements import ACCEPTED, FAILED, NOT_MEASURED, WARNED, judgement_with


def of_gpu(index: int, evidence: str, *, is_certain: bool = True) -> Culprit:
    return gpu("node7", index, evidence, f"GPU-{index}", is_certain=is_certain)


def test_all_nodes_meet_all_only_if_every_requirement_passed() -> None:
    assert node_table(ACCEPTED, ["node7"]).others == "node7: all requirements met"
    open_run = node_table(judgement_with(NOT_MEASURED, replace(WARNED, culprits=())), ["node7"])
    assert open_run.others == "node7: no failure names it; 1 requirement not measured, 1 failed, without naming a node"


def test_a_row_names_every_gpu_and_link_of_its_node_once_those_at_fault_first() -> None:
    first = replace(FAILED, culprits=(of_gpu(1, "odd", is_certain=False), of_gpu(2, "slow"), of_gpu(3, "hot")))
    second = replace(WARNED, culprits=(of_gpu(2, "slow here, too"),))
    (row,) = node_table(judgement_with(first, second), ["node7"]).rows
    assert row.remarks == (
        "GPU 2 (GPU-2) on node7: slow", "GPU 3 (GPU-3) on node7: hot", "suspected: GPU 1 (GPU-1) on node7: odd",
    )  # fmt: skip


def test_nodes_that_nothing_names_stand_in_one_row() -> None:
    nodes = Coverage(tuple(NodeCoverage(host, ("training",)) for host in ("node1", "node2", "node7")))
    named = replace(FAILED, culprits=(of_gpu(3, "slow"),))
    table = node_table(replace(judgement_with(named), coverage=nodes), ["node7"])
    assert table.others == "2 other nodes: no failure names them"


def test_nodes_that_never_answered_stand_beside_those_that_met_all() -> None:
    coverage = Coverage((NodeCoverage("node7", ("training",)),), unnamed_nodes=2)
    table = node_table(replace(ACCEPTED, coverage=coverage), ["node7"])
    assert table.others == "node7: all requirements met; 2 further nodes never answered"
    nobody = Coverage(unnamed_nodes=1)
    assert node_table(replace(ACCEPTED, coverage=nobody), ["node7"]).others == "1 further node never answered"
