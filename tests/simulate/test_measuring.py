"""What a simulated run measures: as the judge wants it, and as noisy as asked."""

from __future__ import annotations

import statistics
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.run.block import read_steps
from pytest_ddpscale.run.record_lines import line_of
from pytest_ddpscale.run.records import RoundEnd
from pytest_ddpscale.simulate.machine import DDP_OVERHEAD, NodeSpread, Noise, Performance
from pytest_ddpscale.simulate.measuring import SimulatedRun
from pytest_ddpscale.simulate.writing import records
from pytest_ddpscale.util.arrays import FloatArray
from tests.builders.clusters import a100, measured, quiet, weak_study
from tests.builders.measurements import measurements_of
from tests.rows import rows

CLUSTER = a100()
NOISY, QUIET = CLUSTER.performance, quiet(CLUSTER)
NOISY_ROUNDS = replace(QUIET, noise=Noise(0.01, 0.0, 0.0, 0.0))
ALONE, EACH, DDP = Arm("alone", 1, 512), Arm("each", 8, 512), Arm("ddp", 8, 512)
BOTH = replace(weak_study(EACH, rounds=5), arms=(EACH, DDP))


def steps_of(performance: Performance, study: Study, *typed: str, seed: int = 1) -> dict[str, FloatArray]:
    """Mean step times by arm, (rounds, ranks)."""
    found = measured(performance, study, *typed, seed=seed)
    return {arm: np.array([[one.block_s / one.steps for one in told] for told in of]) for arm, of in found.items()}


def test_every_arm_round_and_rank_of_the_plan_is_there_once_in_order_of_time() -> None:
    plan = CLUSTER.plan(rounds=FEWEST_ROUNDS)
    found = measurements_of(list(records(SimulatedRun(plan, NOISY, (), 0), CLUSTER)))
    expected = [
        (study.id, arm.name, number, rank, arm.batch_size)
        for study in plan.studies
        for arm, number in product(study.arms, range(FEWEST_ROUNDS))
        for rank in plan.layout.ranks([arm], study.turn(0, number))
    ]
    assert sorted((r.study, r.arm, r.round, r.rank, r.batch_size) for r in found) == sorted(expected)
    starts = [one.started_unix_s for one in found]
    assert starts == sorted(starts)
    assert starts[-1] > starts[0] + 60


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32), block_s=st.floats(0.0, 5.0))
def test_blocks_are_what_their_steps_are(seed: int, block_s: float) -> None:
    study = replace(BOTH, rounds=1, block_s=block_s)
    for rounds in measured(NOISY, study, seed=seed).values():
        for one in rounds[0]:
            assert len(one.step_s) == one.steps >= 3
            assert sum(one.step_s) == pytest.approx(one.block_s, rel=1e-6)
            assert one.block_s >= 0.98 * block_s
            spread = statistics.stdev(one.step_s)
            assert one.step_stdev_s == pytest.approx(spread, abs=1e-7)
            assert spread > 0


def test_speed_utilization_and_energy_are_the_published_ones() -> None:
    """Of one GPU under DDP, as the source trained it."""
    study = replace(BOTH, arms=(Arm("ddp", 1, 512), EACH, DDP))
    speeds = {arm: 512 / step_s[0] for arm, step_s in steps_of(QUIET, study).items()}
    assert speeds["ddp@1"] == pytest.approx(1189.5)
    assert speeds["each@8"] == pytest.approx([1189.5 * (1 + DDP_OVERHEAD)] * 8)
    assert speeds["ddp@8"] == pytest.approx([1167.5] * 8, rel=1e-3)
    found = [one for told in measured(NOISY, BOTH)["ddp@8"] for one in told]
    used = [one.utilization or 0.0 for one in found]
    assert 0.9745 <= min(used) < 0.976
    assert max(used) <= 1.0
    per_joule = [one.batch_size * one.steps / (one.energy_j or 1e-9) for one in found]
    assert statistics.fmean(per_joule) == pytest.approx(2.964, rel=0.01)


def test_ranks_that_infer_leave_no_replica_to_compare() -> None:
    for told in measured(QUIET, weak_study(Arm("infer", 8, 512)))["infer@8"]:
        assert {(one.parameters_checksum, one.peak_memory_bytes) for one in told} == {(None, None)}


@rows(("arm", "correlation"), product([ALONE, EACH, DDP], [0.0, 0.6]))
def test_noise_is_as_large_as_asked_and_remembers_from_round_to_round(arm: Arm, correlation: float) -> None:
    noise = replace(NOISY_ROUNDS.noise, correlation=correlation)
    logs = np.log(steps_of(replace(QUIET, noise=noise), weak_study(arm, rounds=400))[arm.name])
    logs -= logs.mean(axis=0)
    assert logs.std() == pytest.approx(0.01, rel=0.2)
    assert np.corrcoef(logs[:-1, 0], logs[1:, 0])[0, 1] == pytest.approx(correlation, abs=0.12)
    if arm == DDP:
        assert logs[:, 0] == pytest.approx(logs[:, 7])
    if arm == EACH and not correlation:
        assert abs(np.corrcoef(logs[:, 0], logs[:, 1])[0, 1]) < 0.15


def test_noise_within_a_block_leaves_ranks_of_ddp_together_and_the_mean_as_it_is() -> None:
    alone = steps_of(NOISY, weak_study(ALONE, rounds=400))["alone"]
    assert alone.std() / alone.mean() == pytest.approx(0.003, rel=0.1)
    together = steps_of(NOISY, BOTH, "slow-gpu:3:1.2")["ddp@8"]
    assert (together.max(axis=1) / together.min(axis=1)).max() < 1.001


def test_forward_passes_have_noise_of_their_own() -> None:
    rounds = measured(NOISY_ROUNDS, weak_study(DDP, 200))["ddp@8"]
    logs = np.log([[one.forward_s or 0.0 for one in told] + [told[0].block_s] for told in rounds])
    assert logs.std(axis=0) == pytest.approx([0.01] * 9, rel=0.2)
    assert np.abs(np.corrcoef(logs.T) - np.eye(9)).max() < 0.3


def test_noise_depends_on_the_seed_and_neither_on_other_arms_nor_on_which_are_left_out() -> None:
    alone, beside, other = (
        steps_of(NOISY_ROUNDS, replace(BOTH, arms=arms), seed=seed)["each@8"]
        for arms, seed in (((EACH,), 1), (BOTH.arms, 1), ((EACH,), 2))
    )
    assert alone == pytest.approx(beside)
    assert (other != alone).all()
    plan = Plan("a100-sxm4-80gb", "cuda", (BOTH,))
    both, one = ([*SimulatedRun(plan, NOISY, (), 0).measure_round(BOTH, 0, arms)] for arms in (BOTH.arms, (DDP,)))
    assert [line_of(record) for record in both if getattr(record, "arm", "") == "ddp@8"] == [line_of(one[0])]
    assert one[1:] == [RoundEnd(BOTH.id, 0, ("ddp@8",))]


def test_the_wait_for_the_slowest_gpu_comes_on_top_of_what_is_published() -> None:
    nodes = [QUIET, *(replace(QUIET, spread=NodeSpread(gpu_sd=0.01, seed=seed)) for seed in range(200))]
    sound, *slowed = (1 / steps_of(node, weak_study(DDP, 1))["ddp@8"][0, 0] for node in nodes)
    # The mean of the largest of eight normal values is 1.42 standard deviations.
    assert statistics.fmean(slowed) == pytest.approx(sound / 1.0142, rel=1e-3)


def test_hot_gpus_are_slower_in_one_stretch_than_in_rounds_by_what_they_rest() -> None:
    cluster = a100(8, heat=0.1)
    plan = cluster.plan(rounds=FEWEST_ROUNDS)
    study = next(study for study in plan.studies if study.stretched)
    run, arms = SimulatedRun(plan, quiet(cluster), (), 1), [arm for arm in study.arms if arm == study.stretched]
    *_, stretch, block, _ = list[Any]([*run.before_rounds(study), *run.measure_round(study, 0, arms)])
    [first, *others] = stretch.ranks
    steps_s, cold_s = read_steps(first.step_s), steps_of(QUIET, weak_study(arms[0]))[block.arm][0, 0]
    found_s = [steps_s[0], block.seconds[0] / block.count, steps_s[-1]]
    assert found_s == pytest.approx([cold_s, 1.044 * cold_s, 1.1 * cold_s], rel=0.003)
    assert steps_s.sum() == pytest.approx(study.sustained_s, rel=0.1)
    assert [one.step_s for one in others] == [b""] * 7
