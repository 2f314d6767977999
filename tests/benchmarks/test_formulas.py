"""Formulas behind published figures that live in the benchmarks alone."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.benchmarks.scripts import benchmark


def test_results_are_tables_and_kept_as_strict_json_with_the_machine(tmp_path: Path) -> None:
    reporting = benchmark("reporting")
    assert reporting.table(("arm", "img/s"), [("alone", 9.5)]).splitlines() == [
        "| arm | img/s |",
        "| --- | --- |",
        "| alone | 9.5 |",
    ]
    kept = tmp_path / "result.json"
    with pytest.raises(ValueError, match="JSON compliant"):
        reporting.keep(kept, "fidelity", {"ratio": math.nan})
    assert not kept.exists()
    reporting.keep(kept, "fidelity", {"ratio": 1.01})
    assert {"ratio", "host", "measured_at", "usable_cpus"} <= set(json.loads(kept.read_text(encoding="utf-8")))


def test_work_in_a_fork_ends_with_its_code_or_at_its_limit(tmp_path: Path) -> None:
    in_a_fork = benchmark("reporting").in_a_fork
    assert in_a_fork(lambda: print("one") or 3, tmp_path / "said")[0] == 3
    assert in_a_fork(lambda: 1 / 0, tmp_path / "said")[0] == 1
    text = (tmp_path / "said").read_text(encoding="utf-8")
    assert (text.startswith("one\n"), "ZeroDivisionError" in text) == (True, True)
    assert in_a_fork(lambda: math.factorial(10**9), tmp_path / "said", 0.1) == (None, 0.1)


def test_two_ways_take_turns_in_a_balanced_random_order() -> None:
    orders = benchmark("reporting").orders(("bare", "worker"), 121, 0)
    assert {order[0] for order in orders[::2]} == {"bare", "worker"}
    assert all(one == other[::-1] for one, other in zip(orders[::2], orders[1::2], strict=False))


def test_two_loops_are_compared_pair_by_pair() -> None:
    fidelity, job = benchmark("fidelity"), SimpleNamespace(batch_size=16, block_steps=3)
    found = fidelity.agreement(job, 2, [{"bare": [1.0, 2.0, 4.0], "worker": [1.25, 2.5, 5.0]}])
    assert (found["ratio"]["value"], found["median_ratio"]) == pytest.approx((0.8, 0.8))
    assert found["samples_per_s"] == {"bare": pytest.approx(96 / 2.0), "worker": pytest.approx(96 / 2.5)}
    launches = [{"bare": [1.0, 1.0], "worker": [0.5, 0.5]}, {"bare": [1.0] * 4, "worker": [2.0] * 4}]
    assert fidelity.agreement(job, 1, launches)["ratio"]["value"] == pytest.approx((2.0**2 * 0.5**4) ** (1 / 6))


def test_the_samplers_cost_is_a_ratio_within_rounds() -> None:
    sampler = benchmark("sampler_overhead")
    # The machine slows down threefold; the sampler costs 2 % all the same.
    ratio, cpu_s_per_s = sampler.overhead([sampler.Round(0.98 * pace, pace, 0.01, 2.0) for pace in (9.0, 6.0, 3.0)])
    assert (ratio.value, cpu_s_per_s) == pytest.approx((0.98, 0.005))


def test_shares_are_of_all_clusters() -> None:
    rehearsal = benchmark("calibrate_rehearsal")
    outcomes = {label: Counter(accepted=3, rejected=1) for label in rehearsal.FRESH}
    cluster = rehearsal.Rehearsed(5, ["n1", "n2"], ["n2", "n3"], outcomes, Counter())
    shares = {names: (share.count, share.runs) for names, share in rehearsal.shares([cluster, cluster]).items()}
    assert (shares["bad", "left out"], shares["good", "left out"]) == ((2, 4), (2, 36))
    assert shares["healthy", "rejected"] == (2, 8)
