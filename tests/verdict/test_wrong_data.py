"""A probe that gives a wrong result fails, however fast it was."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pytest_ddpscale.plan.probe import Probe
from pytest_ddpscale.results.probe_record import ProbeMeasurement
from pytest_ddpscale.results.verdicts import Verdict
from tests.verdict.probed import (
    ALL_REDUCE,
    MATMUL,
    SEND_RECV,
    judge_evidence,
    measure_probe,
    probe_case,
    probe_evidence,
    probe_plan,
    steady,
)


def judge_wrong(
    probe: Probe,
    is_wrong: Callable[[ProbeMeasurement], bool],
    value: float = 120.0,
    nodes: int = 1,
    rounds: int = 8,
    **keys: object,
) -> Verdict:
    plan = probe_plan(probe, nodes)
    measured = [replace(one, is_correct=not is_wrong(one)) for one in measure_probe(plan, probe, steady(value), rounds)]
    return judge_evidence(probe_case(probe, 100.0), probe_evidence(plan, measured, **keys))


def test_a_gpu_that_computes_wrong_data_once_fails_and_is_named() -> None:
    verdict = judge_wrong(MATMUL, lambda one: (one.rank, one.round) == (5, 6))
    assert verdict.outcome == "failed"
    assert verdict.reason == "computed wrong data, as seen by local rank 5 of n0 (1 of 8 rounds)"
    (culprit,) = verdict.culprits
    assert (culprit.kind, culprit.gpu_index, culprit.gpu_uuid, culprit.is_certain) == ("gpu", 5, "GPU-5", True)
    assert culprit.evidence == "computed wrong data in 1 of 8 rounds"


def test_gpus_that_all_compute_wrong_data_are_all_certain() -> None:
    verdict = judge_wrong(MATMUL, lambda one: True)
    assert [culprit.is_certain for culprit in verdict.culprits] == [True] * 8


def test_wrong_data_fails_before_there_are_rounds_enough() -> None:
    verdict = judge_wrong(MATMUL, lambda one: one.rank == 2, rounds=1)
    assert (verdict.outcome, [culprit.gpu_index for culprit in verdict.culprits]) == ("failed", [2])


def test_wrong_data_fails_although_the_study_broke_later() -> None:
    verdict = judge_wrong(MATMUL, lambda one: one.rank == 2, errors={"probes": "rank 2 was lost"})
    assert verdict.outcome == "failed"
    assert verdict.reason.endswith("; also: rank 2 was lost")
    assert [culprit.gpu_index for culprit in verdict.culprits] == [2]


def test_who_is_too_slow_besides_is_named_once() -> None:
    plan = probe_plan(MATMUL)
    measured = [
        replace(one, is_correct=one.rank != 3)
        for one in measure_probe(plan, MATMUL, steady(120.0, {(3,): 80.0, (6,): 90.0}))
    ]
    verdict = judge_evidence(probe_case(MATMUL, 100.0), probe_evidence(plan, measured))
    assert [(c.gpu_index, "wrong data" in c.evidence) for c in verdict.culprits] == [(3, True), (6, False)]
    assert verdict.reason.endswith("the whole interval misses the bound (failed too: GPU 6 of n0)")


def test_of_a_collective_the_node_is_certain_and_its_witnesses_are_not() -> None:
    verdict = judge_wrong(ALL_REDUCE, lambda one: one.host == "n1" and one.round == 2, nodes=2)
    node, *witnesses = verdict.culprits
    assert (node.kind, node.host, node.is_certain) == ("node", "n1", True)
    assert node.evidence == "moved wrong data in 1 of 8 rounds, seen by 8 of 8 ranks"
    assert [(c.kind, c.host, c.gpu_index, c.is_certain) for c in witnesses] == [
        ("gpu", "n1", gpu, False) for gpu in range(8)
    ]


def test_a_single_witness_is_not_the_culprit() -> None:
    verdict = judge_wrong(Probe("reduce-scatter-1mib", 8), lambda one: one.rank == 4)
    assert [(c.kind, c.is_certain) for c in verdict.culprits] == [("node", True), ("gpu", False)]


def test_of_a_group_over_several_nodes_nobody_is_certain() -> None:
    verdict = judge_wrong(Probe("all-gather-1mib", 16), lambda one: one.rank in (3, 12), nodes=2)
    assert verdict.outcome == "failed"
    assert [(c.kind, c.host, c.gpu_index, c.is_certain) for c in verdict.culprits] == [
        ("gpu", "n0", 3, False),
        ("gpu", "n1", 4, False),
    ]


def test_a_pair_that_moves_wrong_data_is_a_bad_link() -> None:
    verdict = judge_wrong(SEND_RECV, lambda one: (one.rank, one.peer_rank) == (5, 2))
    (culprit,) = verdict.culprits
    assert (culprit.kind, culprit.gpu_index, culprit.peer_gpu_index) == ("link", 2, 5)
    assert (culprit.is_certain, culprit.evidence) == (True, "moved wrong data in 8 of 8 rounds")


def test_pairs_that_share_a_gpu_blame_it() -> None:
    verdict = judge_wrong(SEND_RECV, lambda one: one.peer_rank == 2)
    (culprit,) = verdict.culprits
    assert (culprit.kind, culprit.gpu_index, culprit.is_certain) == ("gpu", 2, True)
    assert culprit.evidence == "moved wrong data with 7 others: the GPU is at fault, not its links"


def test_right_data_changes_nothing() -> None:
    verdict = judge_wrong(SEND_RECV, lambda one: False)
    assert (verdict.outcome, verdict.culprits) == ("passed", ())
