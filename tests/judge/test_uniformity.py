"""A GPU or a node that is slower than its peers by more than the limit is rejected and named in one step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest

from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.judge.values import worst_value
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.verdicts import Verdict
from pytest_ddpscale.thresholds.cases import Case
from tests.builders.judged import (
    ALONE_SAMPLES_PER_S,
    CONFIDENCE,
    WORKLOAD,
    evidence_of_plan,
    make_case,
    make_study,
    measure,
)
from tests.builders.measurements import Measurement
from tests.rows import rows

ROUNDS = 9
# A third of a step.
FORWARD_S = WORKLOAD.batch_size / ALONE_SAMPLES_PER_S / 3


def judge_paces(
    slower: Mapping[int, float],
    nodes: int = 1,
    gpus: int = 8,
    metric: str = "rank_uniformity",
    change: Callable[[Measurement], Measurement | None] = lambda one: one,
    noise: float = 0.003,
) -> Verdict:
    """The verdict if ranks compute slower by factors, while DDP keeps the steps of all alike."""
    return judge(*measured(slower, nodes, gpus, metric, change, noise), CONFIDENCE)


def measured(
    slower: Mapping[int, float], nodes: int, gpus: int, metric: str,
    change: Callable[[Measurement], Measurement | None] = lambda one: one, noise: float = 0.003,
) -> tuple[Case, Evidence]:  # fmt: skip
    """The requirement, and what it is judged by."""
    case = make_case(metric, 1.03 if metric == "node_uniformity" else 1.05, world_size=gpus, provisional=True)
    study = make_study(case, ROUNDS)
    plan = Plan("a100", "cuda", (study,), nodes=nodes, ranks_per_node=gpus)
    random = np.random.default_rng(1)
    found = []
    for node in range(nodes):
        for one in measure(study, ROUNDS, ranks_per_host=gpus):
            rank = node * gpus + one.rank
            pace = slower.get(rank, 1.0) * float(np.exp(noise * random.standard_normal()))
            own = one.steps * FORWARD_S * pace
            placed = replace(one, rank=rank, host=f"node{node}", device=f"GPU-{rank}", forward_s=own)
            found.append(change(placed))
    return case, evidence_of_plan(plan, [one for one in found if one is not None])


def named(verdict: Verdict) -> list[tuple[str, int | None]]:
    assert all(culprit.is_certain for culprit in verdict.culprits)
    return [(culprit.host, culprit.gpu_index) for culprit in verdict.culprits]


@rows(("nodes", "rank"), [(1, 0), (1, 3), (1, 7), (4, 0), (4, 13), (4, 31)])
def test_a_gpu_beyond_the_limit_is_rejected_and_named(nodes: int, rank: int) -> None:
    verdict = judge_paces({rank: 1.08}, nodes)
    assert verdict.outcome == "failed"
    assert named(verdict) == [(f"node{rank // 8}", rank % 8)]
    assert verdict.value == pytest.approx(1.08, abs=0.01)
    assert verdict.interval is not None
    assert verdict.interval[0] > 1.05
    assert verdict.place == f"GPU {rank % 8} of node{rank // 8}"


@rows(
    ("slower", "nodes", "metric"),
    [
        ({3: 1.2}, 1, "rank_uniformity"),
        ({3: 1.2}, 2, "rank_uniformity"),
        (dict.fromkeys(range(8, 16), 1.2), 4, "rank_uniformity"),
        (dict.fromkeys(range(8, 16), 1.2), 4, "node_uniformity"),
    ],
)
def test_comparisons_of_runs_and_calibration_have_the_verdicts_value(
    slower: Mapping[int, float], nodes: int, metric: str
) -> None:
    case, evidence = measured(slower, nodes, 8, metric)
    verdict, read = judge(case, evidence, CONFIDENCE), worst_value(case.question, evidence, CONFIDENCE)
    assert verdict.outcome == "failed"
    assert read is not None
    assert read.value == pytest.approx(verdict.value, abs=0.003)
    node = f"node{next(iter(slower)) // 8}"
    assert read.place == (node if nodes > 1 else "")
    assert verdict.place.endswith(node)


@rows("slower", [{}, {2: 1.03}, dict.fromkeys(range(8), 1.5)])
def test_gpus_within_the_limit_or_all_alike_pass(slower: Mapping[int, float]) -> None:
    verdict = judge_paces(slower)
    assert (verdict.outcome, verdict.culprits) == ("passed", ())


def test_a_gpu_on_the_limit_is_open() -> None:
    verdict = judge_paces({2: 1.05})
    assert verdict.outcome == "inconclusive"
    assert verdict.is_open
    assert "GPU 2 of node0" in verdict.reason


@rows(("gpus", "slower", "expected"), [(4, 1.08, "inconclusive"), (4, 1.13, "failed"), (2, 1.5, "inconclusive")])
def test_few_peers_reject_only_what_is_far_beyond(gpus: int, slower: float, expected: str) -> None:
    assert judge_paces({1: slower}, gpus=gpus).outcome == expected


@rows(
    ("times", "factor", "expected"),
    [(3, 1.4, "failed"), (3, 1.14, "failed"), (2, 1.4, "inconclusive"), (2, 1.14, "passed"), (3, 1.06, "passed")],
)
def test_a_gpu_that_is_slow_in_some_rounds_only_is_rejected_and_named(times: int, factor: float, expected: str) -> None:
    """By 1.14 in a third of the rounds its mean is within the limit."""

    def at_times(one: Measurement) -> Measurement:
        is_slow = one.rank == 5 and one.round % 3 == 0 and one.round < 3 * times
        return replace(one, forward_s=factor * (one.forward_s or 0.0)) if is_slow else one

    verdict = judge_paces({2: 1.02}, change=at_times)  # on average the slowest
    assert verdict.outcome == expected
    assert named(verdict) == ([("node0", 5)] if expected == "failed" else [])
    if expected == "failed":
        assert "is slow at times: " in verdict.reason
        assert verdict.value == pytest.approx(factor, abs=0.01)
        assert verdict.place == "GPU 5 of node0"


@rows(("slower", "expected"), [(1.08, "inconclusive"), (1.035, "passed")])
def test_where_most_gpus_are_slow_their_median_passes_nobody(slower: float, expected: str) -> None:
    verdict = judge_paces(dict.fromkeys(range(3, 8), slower))
    assert verdict.outcome == expected
    if expected == "inconclusive":
        assert "two groups of ranks" in verdict.reason
        assert [one.is_certain for one in verdict.culprits] == [False] * 5


@rows(("slower", "noise"), [(1.2, 0.003), (1.06, 0.006)])
def test_half_of_the_gpus_are_named_without_certainty(slower: float, noise: float) -> None:
    """Also where noise leaves open of some whether they are beyond the limit."""
    verdict = judge_paces(dict.fromkeys(range(4), slower), noise=noise)
    assert verdict.outcome in ("failed", "inconclusive")
    assert {culprit.gpu_index for culprit in verdict.culprits} <= set(range(4))
    assert verdict.culprits
    assert not any(culprit.is_certain for culprit in verdict.culprits)


def test_a_whole_slow_node_is_named_in_place_of_its_gpus() -> None:
    verdict = judge_paces(dict.fromkeys(range(8, 16), 1.1), nodes=4)
    assert verdict.outcome == "failed"
    assert named(verdict) == [("node1", None)]


@rows(("slower", "expected"), [(1.05, "failed"), (1.02, "passed"), (1.03, "inconclusive")])
def test_a_node_is_compared_with_the_other_nodes(slower: float, expected: str) -> None:
    verdict = judge_paces(dict.fromkeys(range(16, 24), slower), nodes=8, metric="node_uniformity")
    assert verdict.outcome == expected
    assert named(verdict) == ([("node2", None)] if expected == "failed" else [])


def test_one_slow_gpu_does_not_make_a_slow_node() -> None:
    assert judge_paces({16: 1.5}, nodes=8, metric="node_uniformity").outcome == "passed"


def lacks_forward(one: Measurement) -> Measurement | None:
    return replace(one, forward_s=None) if one.rank == 5 else one


def loses_a_node(one: Measurement) -> Measurement | None:
    return None if one.host == "node3" else one


@rows(
    ("nodes", "change", "why"),
    [(1, lacks_forward, "GPU 5 of node0"), (4, loses_a_node, "measured on 24 of 32 GPUs")],
)
def test_what_was_not_measured_on_every_gpu_does_not_pass(
    nodes: int, change: Callable[[Measurement], Measurement | None], why: str
) -> None:
    verdict = judge_paces({}, nodes, change=change)
    assert verdict.outcome == "not_measured"
    assert why in verdict.reason
    assert judge_paces({1: 1.2}, nodes, change=change).outcome == "failed"


def test_rounds_that_are_incomplete_may_be_those_that_fail() -> None:
    def lost(one: Measurement) -> Measurement | None:
        return None if (one.round, one.rank) == (8, 3) else one

    verdict = judge_paces({}, change=lost)
    assert verdict.outcome == "inconclusive"
    assert "8 of 9 rounds" in verdict.reason


def test_a_compiled_model_is_judged_by_its_steps_alone() -> None:
    case = make_case("rank_uniformity", 1.05, world_size=8, workload=replace(WORKLOAD, compile=True))
    assert [arm.name for arm in case.question.arms] == ["each@8"]
    study = make_study(case, ROUNDS)
    random = np.random.default_rng(1)

    def pace(_: object, number: int, rank: int) -> float:
        return ALONE_SAMPLES_PER_S / (1.1 if rank == 6 else 1.0) * float(np.exp(0.003 * random.standard_normal()))

    evidence = evidence_of_plan(Plan("a100", "cuda", (study,)), measure(study, ROUNDS, pace, ranks_per_host=8))
    assert named(judge(case, evidence, CONFIDENCE)) == [("node0", 6)]
