"""How often probes pass who should fail, fail who should pass, and name the wrong GPU: by simulation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.run.table import Columns
from pytest_ddpscale.run.verdicts import Verdict
from tests.builders.judged import CONFIDENCE
from tests.judge.probe_runs import USUAL, run_of

pytestmark = pytest.mark.lab

BOUND = 100.0
RUNS, RUNS_AT_THE_BOUND = 200, 60
# Of the rounds, those after which it is looked whether to go on: each look costs time, and all would find the same.
LOOKS = (FEWEST_ROUNDS, 10, 16)


def run(seed: int, share_of_rank_0: float, share_of_others: float) -> Verdict:
    """Eight GPUs, looked at after some rounds until it is decided or the rounds are used up."""
    slow = f"slow=*{USUAL / BOUND / share_of_others} slow=*{share_of_others / share_of_rank_0}/0"
    asked = f"matmul-bf16:{BOUND}@1 1x8 rounds={LOOKS[-1]} noise=0.01 seed={seed}"
    case, evidence = run_of(f"{asked} {slow}").judged()
    for rounds in LOOKS:
        first = {arm: measured.of(slice(rounds)) for arm, measured in evidence.columns.arms.items()}
        verdict = judge(case, replace(evidence, columns=Columns(first)), CONFIDENCE)
        if not verdict.is_open:
            break
    return verdict


def runs(share_of_rank_0: float, share_of_others: float, number: int = RUNS) -> list[Verdict]:
    return [run(seed, share_of_rank_0, share_of_others) for seed in range(number)]


def test_healthy_gpus_pass() -> None:
    verdicts = runs(1.03, 1.03)
    assert [verdict.culprits for verdict in verdicts] == [()] * RUNS
    assert sum(verdict.outcome == "failed" for verdict in verdicts) == 0
    assert sum(verdict.passed for verdict in verdicts) >= 0.9 * RUNS


def test_a_slow_gpu_fails_and_nobody_else_is_ever_named() -> None:
    verdicts = runs(0.95, 1.03)
    assert not any(verdict.passed for verdict in verdicts)
    assert sum(verdict.outcome == "failed" for verdict in verdicts) >= 0.99 * RUNS
    named = {(c.kind, c.place.index, c.is_certain) for verdict in verdicts for c in verdict.culprits}
    assert named == {("gpu", 0, True)}


def test_where_all_are_exactly_at_the_bound_it_is_rarely_decided() -> None:
    verdicts = runs(1.0, 1.0, RUNS_AT_THE_BOUND)
    allowed = (1 - CONFIDENCE) * RUNS_AT_THE_BOUND
    assert sum(verdict.outcome == "failed" for verdict in verdicts) <= allowed
    assert sum(verdict.passed for verdict in verdicts) <= allowed


def test_one_gpu_at_the_bound_among_good_ones_is_rarely_decided() -> None:
    verdicts = runs(1.0, 1.1, RUNS_AT_THE_BOUND)
    allowed = (1 - CONFIDENCE) * RUNS_AT_THE_BOUND
    assert sum(verdict.passed for verdict in verdicts) <= allowed
    assert sum(verdict.outcome == "failed" for verdict in verdicts) <= allowed
