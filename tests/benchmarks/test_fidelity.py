"""The two loops are compared pair by pair, in a balanced random order."""

from __future__ import annotations

import argparse
import math
import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.benchmarks.scripts import benchmark

fidelity = benchmark("fidelity")


def _job(**changes: object) -> Any:
    values: dict[str, object] = {
        "device_type": "cpu", "ranks": 2, "rounds": 120, "block_steps": 3, "seed": 0, "first_built": "bare",
        "model": "resnet18", "batch_size": 16, "image_size": 64, "precision": "fp32", "memory_format": "contiguous",
        "num_classes": 100,
    }  # fmt: skip
    return fidelity.Job(**values | changes)


class TestOrder:
    def test_each_loop_goes_first_once_in_every_two_rounds(self) -> None:
        orders = _job().orders(2)
        assert len(orders) == 120
        assert all(set(order) == {"bare", "worker"} for order in orders)
        assert all(one != other for one, other in zip(orders[::2], orders[1::2], strict=True))

    def test_it_is_random_and_the_same_on_every_rank(self) -> None:
        firsts = {order[0] for order in _job().orders(2)[::2]}
        assert firsts == {"bare", "worker"}
        assert _job().orders(2) == _job().orders(2)
        assert _job().orders(2) != _job().orders(1)
        assert _job().orders(2) != _job(seed=1).orders(2)

    def test_an_odd_number_of_rounds_is_kept(self) -> None:
        assert len(_job(rounds=7).orders(1)) == 7


class TestAgreement:
    def test_a_worker_that_takes_longer_has_a_ratio_below_one(self) -> None:
        seconds = {"bare": [1.0, 2.0, 4.0], "worker": [1.25, 2.5, 5.0]}
        found = fidelity.agreement(_job(), 2, [seconds])
        assert found.ratio.value == pytest.approx(0.8)
        assert found.ratio.interval == pytest.approx((0.8, 0.8))
        assert found.median_ratio == pytest.approx(0.8)
        # 16 images x 3 steps x 2 ranks in the median block.
        assert found.img_per_s == {"bare": pytest.approx(96 / 2.0), "worker": pytest.approx(96 / 2.5)}
        assert found.as_json()["within_tolerance"] is False

    @pytest.mark.parametrize(("ratio", "within"), [(1.0, True), (1.015, True), (0.985, True), (1.03, False)])
    def test_two_per_cent_are_tolerated_either_way(self, ratio: float, within: bool) -> None:
        seconds = {"bare": [ratio, ratio * 3], "worker": [1.0, 3.0]}
        assert fidelity.agreement(_job(), 1, [seconds]).as_json()["within_tolerance"] is within

    @given(st.lists(st.tuples(st.floats(0.1, 10), st.floats(0.1, 10)), min_size=2, max_size=30))
    def test_swapping_the_loops_inverts_the_ratio(self, pairs: list[tuple[float, float]]) -> None:
        one, other = [first for first, _ in pairs], [second for _, second in pairs]
        ratio = fidelity.agreement(_job(), 1, [{"bare": one, "worker": other}]).ratio
        inverse = fidelity.agreement(_job(), 1, [{"bare": other, "worker": one}]).ratio
        assert math.log(ratio.value) == pytest.approx(-math.log(inverse.value), abs=1e-9)
        assert ratio.interval[0] <= ratio.value <= ratio.interval[1]

    def test_one_disturbed_pair_moves_the_median_less_than_the_mean(self) -> None:
        seconds = {"bare": [1.0] * 9 + [3.0], "worker": [1.0] * 10}
        found = fidelity.agreement(_job(), 1, [seconds])
        assert found.median_ratio == 1.0 < found.ratio.value

    def test_launches_are_pooled_and_shown_each(self) -> None:
        launches = [{"bare": [1.0, 1.0], "worker": [0.5, 0.5]}, {"bare": [1.0] * 4, "worker": [2.0] * 4}]
        found = fidelity.agreement(_job(), 1, launches)
        assert found.ratio_by_launch == pytest.approx([2.0, 0.5])
        assert found.pairs == 6
        assert found.ratio.value == pytest.approx((2.0**2 * 0.5**4) ** (1 / 6))

    def test_a_block_lasts_as_long_as_its_slowest_rank(self) -> None:
        assert fidelity.slowest([[1.0, 5.0], [2.0, 4.0]]) == [2.0, 5.0]


class TestJob:
    def test_one_rank_is_timed_only_once(self) -> None:
        assert _job(ranks=1).world_sizes == (1,)
        assert _job(ranks=4).world_sizes == (1, 4)

    def test_the_worker_is_told_the_same_training(self) -> None:
        job = _job(precision="bf16", memory_format="channels_last", batch_size=7)
        study = job.study
        assert [arm.name for arm in study.arms] == ["ddp@1", "ddp@2"]
        assert {arm.batch_size for arm in study.arms} == {study.workload.batch_size} == {7}
        assert (study.workload.precision, study.workload.memory_format) == ("bf16", "channels_last")
        assert (study.workload.image_size, study.workload.num_classes) == (job.image_size, job.num_classes)

    def test_launches_differ_in_what_is_built_first_and_in_the_order_of_blocks(self) -> None:
        launches = [_job(seed=5).launch(number) for number in range(4)]
        assert [launch.building_order for launch in launches] == [("bare", "worker"), ("worker", "bare")] * 2
        assert len({tuple(launch.orders(2)) for launch in launches}) == 4

    @pytest.mark.parametrize(
        ("device", "ranks", "gpus", "expected"),
        [
            ("auto", None, 0, ("cpu", 2)),
            ("auto", None, 8, ("cuda", 8)),
            ("cpu", None, 8, ("cpu", 2)),
            ("cuda", 3, 4, ("cuda", 3)),
        ],
    )
    def test_it_takes_every_gpu_there_is(
        self, monkeypatch: pytest.MonkeyPatch, device: str, ranks: int | None, gpus: int,
        expected: tuple[str, int],
    ) -> None:  # fmt: skip
        monkeypatch.setattr(fidelity, "visible_gpus", lambda: [None] * gpus)
        job = fidelity.job_from(_arguments(device=device, ranks=ranks))
        assert (job.device_type, job.ranks) == expected

    @pytest.mark.parametrize(
        ("device", "ranks", "gpus", "says"), [("cuda", None, 0, "no GPU"), ("auto", 9, 8, "8 GPUs")]
    )
    def test_it_refuses_gpus_that_are_not_there(
        self, monkeypatch: pytest.MonkeyPatch, device: str, ranks: int | None, gpus: int, says: str
    ) -> None:
        monkeypatch.setattr(fidelity, "visible_gpus", lambda: [None] * gpus)
        with pytest.raises(SystemExit, match=says):
            fidelity.job_from(_arguments(device=device, ranks=ranks))


def _arguments(**given: object) -> argparse.Namespace:
    rest = {
        "model": "resnet18", "batch_size": 16, "image_size": 64, "precision": "fp32", "memory_format": "contiguous",
        "num_classes": 100, "rounds": 4, "block_steps": 3, "seed": 0,
    }  # fmt: skip
    return argparse.Namespace(**rest | given)


def test_the_median_of_an_even_number_of_pairs_lies_between_them() -> None:
    found = fidelity.agreement(_job(), 1, [{"bare": [1.0, 1.2], "worker": [1.0, 1.0]}])
    assert found.median_ratio == statistics.median([1.0, 1.2])
