"""Which failures a waiver covers, and until when."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, timedelta

import pytest

from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.judge.waiving import with_waiver
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.verdicts import Verdict, VerdictOutcome
from pytest_ddpscale.thresholds.cases import AnyCase, Case, NodeCase
from pytest_ddpscale.thresholds.waiver import Waiver
from tests.builders.judged import CONFIDENCE, make_case
from tests.judge.nodes import equal, measure_nodes, nodes_evidence, plan_of_nodes, slow_rank
from tests.judge.probed import MATMUL, measure_probe, probe_case, probe_evidence, probe_plan, steady
from tests.rows import rows

DAY = date(2026, 10, 1)
WAIVER = Waiver("A. Name", "a fan is ordered", DAY)
# Of nodes with two ranks each: one node by itself, and two nodes together.
WITHIN = make_case("throughput_per_gpu", 90.0, world_size=2)
BETWEEN = make_case("throughput_per_gpu", 90.0, world_size=4)


def with_a_waiver(case: AnyCase, waiver: Waiver = WAIVER) -> AnyCase:
    requirement = replace(case.requirement, waiver=waiver)
    return replace(case, requirement=requirement)


def judged(case: AnyCase, evidence: Evidence, day: date = DAY) -> Verdict:
    waived = with_a_waiver(case)
    return with_waiver(judge(waived, evidence, CONFIDENCE), waived, evidence, day)


def slow_gpu(case: Case, *, without: tuple[int, ...] = (), odd: tuple[int, ...] = (), is_slow: bool = True) -> Evidence:
    """Three nodes; a GPU of the first is slow."""
    plan = plan_of_nodes([case], 3, 2)
    slowness = slow_rank(0, 1) if is_slow else equal
    return nodes_evidence(plan, measure_nodes(plan, slowness, without=without), odd=odd)


def probed(case: NodeCase, value: float, *, is_correct: bool) -> Evidence:
    plan = probe_plan(MATMUL)
    measured = measure_probe(plan, MATMUL, steady(value))
    return probe_evidence(plan, [replace(one, is_correct=is_correct or one.rank != 3) for one in measured])


def test_a_failure_is_waived_and_stays_a_failure() -> None:
    verdict = judged(WITHIN, slow_gpu(WITHIN))
    assert (verdict.outcome, verdict.waiver, verdict.passed, verdict.blocks()) == ("failed", WAIVER, False, False)
    assert [culprit.host for culprit in verdict.culprits] == ["n0"]


def test_it_ends_by_itself_after_its_last_day() -> None:
    evidence = slow_gpu(WITHIN)
    assert judged(WITHIN, evidence, DAY).is_waived
    ended = judged(WITHIN, evidence, DAY + timedelta(1))
    assert (ended.waiver, ended.blocks()) == (None, True)
    assert ended.notes[-1] == "waiver by A. Name ended 2026-10-01"


def test_what_passes_needs_none() -> None:
    verdict = judged(WITHIN, slow_gpu(WITHIN, is_slow=False))
    assert (verdict.outcome, verdict.waiver) == ("passed", None)
    assert verdict.notes[-1] == "waiver by A. Name until 2026-10-01: not needed"


@rows("outcome", ["inconclusive", "not_measured", "error"])
def test_what_is_not_known_is_not_waived(outcome: VerdictOutcome) -> None:
    evidence, case = slow_gpu(WITHIN), with_a_waiver(WITHIN)
    verdict = with_waiver(replace(judge(case, evidence, CONFIDENCE), outcome=outcome), case, evidence, DAY)
    assert (verdict.waiver, verdict.blocks()) == (None, True)
    assert verdict.notes[-1].endswith("only a failure can be waived")


def test_a_failure_on_one_node_does_not_hide_another_that_was_not_measured() -> None:
    verdict = judged(WITHIN, slow_gpu(WITHIN, without=(2,)))
    assert (verdict.outcome, verdict.waiver, verdict.blocks()) == ("failed", None, True)
    assert verdict.notes[-1].endswith("not applied, because other places were not measured or are undecided")


def test_ranks_that_turn_out_to_be_on_several_nodes_are_not_waived() -> None:
    verdict = judged(BETWEEN, slow_gpu(BETWEEN))
    assert (verdict.outcome, verdict.waiver, verdict.blocks()) == ("failed", None, True)
    assert verdict.notes[-1].endswith("a result between nodes cannot be waived")


def test_a_probe_that_computes_wrong_data_is_not_waived_however_slow_it_is() -> None:
    case = probe_case(MATMUL, 100.0)
    assert judged(case, probed(case, 80.0, is_correct=True)).is_waived
    for value in (80.0, 120.0):
        verdict = judged(case, probed(case, value, is_correct=False))
        assert (verdict.outcome, verdict.waiver) == ("failed", None)
        assert verdict.notes[-1].endswith("wrong data cannot be waived")


def test_slow_training_whose_replicas_differ_is_not_waived() -> None:
    verdict = judged(WITHIN, slow_gpu(WITHIN, odd=(5,)))
    assert (verdict.outcome, verdict.waiver, verdict.blocks()) == ("failed", None, True)
    assert verdict.notes[-1].endswith("wrong data cannot be waived")


@rows("change", [{"outcome": "error"}, {"flags": ("wrong-data",)}, {"flags": ("partly-known",)}])
def test_no_verdict_can_say_that_such_a_thing_is_waived(change: dict[str, object]) -> None:
    verdict = judged(WITHIN, slow_gpu(WITHIN))
    with pytest.raises(ValueError, match="is waived; expected a failure"):
        replace(verdict, **change)  # type: ignore[arg-type]
