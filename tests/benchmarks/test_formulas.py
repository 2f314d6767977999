"""Formulas behind published figures that live in the benchmarks alone, and a tiny run where that takes no time."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.benchmarks.scripts import benchmark


def test_results_are_aligned_and_kept_as_strict_json_with_the_machine(tmp_path: Path) -> None:
    reporting = benchmark("reporting")
    assert reporting.table(("arm", "img/s"), [("alone", "9.5"), ("ddp@2", "1234.5")]).splitlines() == [
        "arm     img/s",
        "alone     9.5",
        "ddp@2  1234.5",
    ]
    kept = tmp_path / "result.json"
    with pytest.raises(ValueError, match="JSON compliant"):
        reporting.keep(kept, "fidelity", {"ratio": math.nan})
    assert not kept.exists()
    reporting.keep(kept, "fidelity", {"ratio": 1.01})
    assert {"ratio", "host", "measured_at", "usable_cpus"} <= set(json.loads(kept.read_text(encoding="utf-8")))


def test_two_loops_are_compared_pair_by_pair_in_a_balanced_random_order() -> None:
    fidelity = benchmark("fidelity")
    job = fidelity.job_from(
        argparse.Namespace(
            device="cpu", ranks=2, model="resnet18", batch_size=16, image_size=64, precision="fp32",
            memory_format="contiguous", num_classes=100, rounds=120, block_steps=3, seed=0,
        )
    )  # fmt: skip
    orders = job.orders(2)
    assert {order[0] for order in orders[::2]} == {"bare", "worker"}
    assert all(one != other for one, other in zip(orders[::2], orders[1::2], strict=True))
    found = fidelity.agreement(job, 2, [{"bare": [1.0, 2.0, 4.0], "worker": [1.25, 2.5, 5.0]}])
    assert (found.ratio.value, found.median_ratio) == pytest.approx((0.8, 0.8))
    assert found.samples_per_s == {"bare": pytest.approx(96 / 2.0), "worker": pytest.approx(96 / 2.5)}
    launches = [{"bare": [1.0, 1.0], "worker": [0.5, 0.5]}, {"bare": [1.0] * 4, "worker": [2.0] * 4}]
    assert fidelity.agreement(job, 1, launches).ratio.value == pytest.approx((2.0**2 * 0.5**4) ** (1 / 6))


def test_the_samplers_cost_is_a_ratio_within_rounds_of_both_orders() -> None:
    sampler = benchmark("sampler_overhead")
    # The machine slows down threefold; the sampler costs 2 % all the same.
    found = sampler.overhead([sampler.Round(0.98 * pace, pace, 0.01, 2.0) for pace in (9.0, 6.0, 3.0)])
    assert (found.ratio.value, found.cpu_s_per_s) == pytest.approx((0.98, 0.005))
    orders = sampler.orders(7, seed=3)
    assert all({orders[i][0], orders[i + 1][0]} == {True, False} for i in (0, 2, 4))


def test_outcomes_of_fresh_nodes_are_shares_of_all_clusters() -> None:
    rehearsal = benchmark("calibrate_rehearsal")
    none: dict[str, int] = {}
    fresh = {"healthy": {"passed": 3, "rejected": 1}, "slow_gpu": {"rejected": 2}, "slow_node": none}
    clusters = [SimpleNamespace(**fresh), SimpleNamespace(**fresh | {"slow_node": {"undecided": 1, "rejected": 1}})]
    shares = {(what, how): (share.count, share.runs) for what, how, share in rehearsal._fresh_shares(clusters)}
    assert shares["healthy", "rejected"] == (2, 8)
    assert shares["whole node 5 % slow", "rejected"] == (1, 2)


def test_cells_of_few_nodes_are_added_up_by_what_is_slow() -> None:
    sizes = benchmark("calibrate_sizes")
    cells = [
        sizes.Cell("b200", 0, 3, runs, 5, 0, {"healthy": {"accepted": 3, "incomplete": 1}, "memory 5 %": {}}, {})
        for runs in sizes.RUNS
    ]
    found = sizes.shares(cells, "healthy")
    assert {how: (share.count, share.runs) for how, share in found.items()} == {
        "accepted": (9, 12), "rejected": (0, 12), "incomplete": (3, 12),
    }  # fmt: skip
