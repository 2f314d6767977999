"""A simulated session ends each study when a real one would."""

from __future__ import annotations

import itertools
from typing import Any

from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.simulate.measuring import SimulatedRun
from pytest_ddpscale.thresholds.cases import training_cases
from tests.benchmarks.scripts import benchmark
from tests.builders.clusters import a100, faults

decide = benchmark("simulated_session").decide
CLUSTER = a100()


def decided(*texts: str, rounds: int = 32, seed: int = 1) -> dict[str, Any]:
    plan = CLUSTER.plan(rounds=rounds, short_blocks=True)
    studies = decide(SimulatedRun(plan, CLUSTER.performance, faults(*texts), seed), CLUSTER.cases, 0.95)
    return {study.study.scaling: study for study in studies}


def test_a_sound_machine_passes_all_that_its_thresholds_can_ask() -> None:
    studies = decided()
    assert {verdict.outcome for verdict in studies["weak"].verdicts} == {"passed"}
    assert {"host-bound" in verdict.notes for verdict in studies["strong"].verdicts} == {True}
    asked = sorted(verdict.id for study in studies.values() for verdict in study.verdicts)
    assert asked == sorted(case.id for case in training_cases(CLUSTER.cases))


def test_a_study_ends_once_all_is_decided_and_never_before_the_fewest_rounds() -> None:
    studies = decided()
    assert FEWEST_ROUNDS <= len(studies["weak"].rounds) < 32
    assert len(studies["strong"].rounds) == FEWEST_ROUNDS  # host-bound, whatever the rounds


def test_arms_that_nothing_open_needs_are_left_out() -> None:
    rounds = decided("slow-link:0:0.8")["weak"].rounds
    assert all(arms == rounds[0] for arms in rounds[:FEWEST_ROUNDS])
    assert all(set(later) <= set(earlier) for earlier, later in itertools.pairwise(rounds))
    assert len(rounds) > FEWEST_ROUNDS
    assert "ddp@8" in {arm.name for arm in rounds[0]}
    assert [arm.name for arm in rounds[-1]] == ["ddp@1", "ddp@2"]


def test_once_a_slow_gpu_is_named_what_it_slows_gets_no_further_rounds() -> None:
    """Without it, groups of two and four, of which few have the slow GPU, would take a dozen rounds more."""
    study = decided("slow-gpu:5:1.2")["weak"]
    assert len(study.rounds) == FEWEST_ROUNDS
    assert any(verdict.is_open for verdict in study.verdicts)


def test_what_is_never_decided_ends_at_the_limit() -> None:
    assert len(decided("missing-rank:3:2", rounds=7)["weak"].rounds) == 7


def test_a_slow_gpu_fails_and_is_named() -> None:
    weak = decided("slow-gpu:5:1.2")["weak"]
    failed = {verdict.metric: verdict for verdict in weak.verdicts if verdict.outcome == "failed"}
    assert {"rank_uniformity", "weak_scaling_efficiency"} <= set(failed)
    assert [(c.host, c.place.index) for c in failed["rank_uniformity"].culprits] == [("simulated-0", 5)]


def test_a_corrupt_rank_spoils_whatever_else_is_well() -> None:
    verdicts = {verdict.metric: verdict for verdict in decided("corrupt-rank:2")["weak"].verdicts}
    assert verdicts["replica_agreement"].outcome == "failed"
    assert [culprit.place.index for culprit in verdicts["replica_agreement"].culprits] == [2]
    assert not any(verdict.passed for verdict in verdicts.values())
