"""What fits one node has to be good on every node, and the bad one is named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from pytest_ddpscale.judge.deciding import Decider
from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.judge.values import samples_of, worst_per_round
from pytest_ddpscale.plan.metric_catalogue import METRICS
from pytest_ddpscale.run.verdicts import Culprit, Verdict
from pytest_ddpscale.thresholds.cases import Case
from tests.builders.judged import CONFIDENCE, OTHER_CHECKSUM, make_case
from tests.builders.measurements import Measurement
from tests.builders.records import lines_of
from tests.judge.nodes import (
    ROUNDS,
    Slowness,
    equal,
    measure_nodes,
    nodes_evidence,
    on_host,
    plan_of_nodes,
    slow_node,
)
from tests.rows import rows

THROUGHPUT = make_case("throughput_per_gpu", 90.0, world_size=2)
EFFICIENCY = make_case("weak_scaling_efficiency", 0.9, world_size=2)


def judge_nodes(
    case: Case, slowness: Slowness = equal, nodes: int = 3, *, without: Sequence[int] = (), hosts: Sequence[str] = ()
) -> Verdict:
    plan = plan_of_nodes([case], nodes, 2)
    return judge(case, nodes_evidence(plan, measure_nodes(plan, slowness, without=without), hosts), CONFIDENCE)


def judge_changed(case: Case, change: dict[str, object], host: str = "n1") -> Verdict:
    plan = plan_of_nodes([case], 3, 2)
    return judge(case, nodes_evidence(plan, on_host(measure_nodes(plan), host, **change)), CONFIDENCE)


class TestAllNodesGood:
    def test_value_and_interval_are_the_worst_nodes(self) -> None:
        verdict = judge_nodes(THROUGHPUT, slow_node(1, 1.02))
        alone = judge_nodes(THROUGHPUT)
        assert verdict.passed
        assert verdict.value is not None
        assert alone.value is not None
        assert verdict.value == pytest.approx(alone.value / 1.02)
        assert "n1 is nearest to it" in verdict.reason


class TestOneSlowNodeOfSixteen:
    @rows("which", [0, 7, 15])
    def test_is_named_and_no_other(self, which: int) -> None:
        verdict = judge_nodes(THROUGHPUT, slow_node(which), nodes=16)
        assert verdict.outcome == "failed"
        assert [(c.kind, c.host) for c in verdict.culprits] == [("node", f"n{which}")]
        assert f"n{which}, one of 16 nodes" in verdict.reason

    def test_does_not_pass_by_being_slow_alone_as_well(self) -> None:
        """Relative to itself a slow node scales well."""
        verdict = judge_nodes(EFFICIENCY, slow_node(7), nodes=16)
        assert verdict.outcome == "inconclusive"
        assert "good scaling relative to slow ranks is no pass" in verdict.reason
        assert [(c.kind, c.host) for c in verdict.culprits] == [("node", "n7")]


def test_a_node_that_fails_without_a_slow_rank_is_named_with_its_value() -> None:
    memory = make_case("peak_memory_gib", 2.0, world_size=2)
    verdict = judge_changed(memory, {"peak_memory_bytes": 3 * 2**30})
    assert verdict.outcome == "failed"
    assert verdict.culprits == (
        Culprit(
            "node", "n1", None, None,
            "peak_memory_gib 3 GiB on this node alone; the median of 2 other nodes is 1 GiB",
        ),
    )  # fmt: skip


class TestAMissingNode:
    def test_never_passes(self) -> None:
        verdict = judge_nodes(THROUGHPUT, without=[2])
        assert verdict.outcome == "not_measured"
        assert verdict.reason == "measured on 2 of 3 nodes (n0, n1)"
        assert verdict.value is None


def test_a_node_whose_devices_all_idle_is_named() -> None:
    verdict = judge_changed(make_case("device_utilization", 0.9, world_size=2), {"utilization": 0.5})
    assert verdict.outcome == "failed"
    assert [(culprit.kind, culprit.host) for culprit in verdict.culprits] == [("node", "n1")]


def restless(found: Sequence[Measurement], host: str, swing: float, center: float = 1.0) -> list[Measurement]:
    """One host's blocks now faster, now slower."""

    def changed(one: Measurement) -> Measurement:
        factor = center * (1 + swing * (1 if (one.round * 7) % 3 else -1))
        return replace(one, block_s=one.block_s * factor, step_s=tuple(step * factor for step in one.step_s))

    return [changed(one) if one.host == host else one for one in found]


def test_a_failure_of_one_among_many_needs_more_evidence_than_on_one_node() -> None:
    """Of sixty-four nodes one misses a bound by chance sooner than of two."""
    outcomes = {}
    for nodes in (2, 64):
        plan = plan_of_nodes([THROUGHPUT], nodes, 2)
        found = restless(measure_nodes(plan, rounds=ROUNDS), "n1", 0.015, center=1.18)
        outcomes[nodes] = judge(THROUGHPUT, nodes_evidence(plan, found), CONFIDENCE)
    assert outcomes[2].outcome == "failed"
    assert outcomes[64].outcome == "inconclusive"
    assert "but on one of 64 nodes this may be chance" in outcomes[64].reason


class TestBeforeAllNodesAreDecided:
    def verdict(self) -> Verdict:
        plan = plan_of_nodes([THROUGHPUT], 3, 2)
        found = restless(measure_nodes(plan, slow_node(0, 1.5)), "n2", 0.5)
        return judge(THROUGHPUT, nodes_evidence(plan, found), CONFIDENCE)

    def test_the_open_ones_are_in_the_notes_of_a_failure(self) -> None:
        verdict = self.verdict()
        assert verdict.outcome == "failed"
        assert "more rounds may fail further nodes: undecided on n2" in verdict.notes
        assert verdict.is_open

    def test_no_more_rounds_are_wanted_once_all_are_decided(self) -> None:
        assert not judge_nodes(THROUGHPUT, slow_node(0, 1.5)).is_open


def needed_arms(case: Case, without: Sequence[int] = (), slowness: Slowness = equal, swing: float = 0.0) -> list[str]:
    plan = plan_of_nodes([case], 3, 2)
    decider = Decider(plan, [case], CONFIDENCE)
    for record in lines_of(restless(measure_nodes(plan, slowness, without=without), "n1", swing)):
        decider.hear(record)
    return decider.needed_arms("weak/r")


def test_a_study_ends_when_every_node_is_decided() -> None:
    assert needed_arms(EFFICIENCY) == []
    assert needed_arms(THROUGHPUT, swing=0.5) == ["ddp@2"]


def test_the_nodes_that_are_left_are_measured_until_they_are_decided() -> None:
    assert needed_arms(THROUGHPUT, without=[2], swing=0.5) == ["ddp@2"]
    assert needed_arms(THROUGHPUT, without=[2]) == []
    assert needed_arms(THROUGHPUT, without=[1, 2]) == []


class TestDisagreement:
    def test_groups_on_different_nodes_train_on_different_images(self) -> None:
        plan = plan_of_nodes([EFFICIENCY], 3, 2)
        found = on_host(measure_nodes(plan), "n1", parameters_checksum=OTHER_CHECKSUM)
        found = [replace(one, parameters_checksum=None) if one.arm != "ddp@2" else one for one in found]
        assert judge(EFFICIENCY, nodes_evidence(plan, found), CONFIDENCE).passed


def test_a_test_sees_the_worst_node_of_each_round() -> None:
    plan = plan_of_nodes([THROUGHPUT], 3, 2)
    evidence = nodes_evidence(plan, measure_nodes(plan, slow_node(1, 2.0)))
    values = samples_of(THROUGHPUT.question, evidence)
    assert len(values) == ROUNDS
    assert values == pytest.approx([50.0] * ROUNDS, rel=0.01)
    missing = nodes_evidence(plan, measure_nodes(plan, without=[1]))
    assert len(samples_of(THROUGHPUT.question, missing)) == 0


def test_the_worst_is_the_largest_of_what_has_an_upper_bound() -> None:
    samples = np.array([[1.0, np.nan, 2.0], [3.0, 9.0, 1.0]])
    assert worst_per_round(samples, METRICS["peak_memory_gib"]).tolist() == [3.0, 2.0]
    assert worst_per_round(samples, METRICS["throughput_per_gpu"]).tolist() == [1.0, 1.0]
