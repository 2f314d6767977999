"""Procedures that decide whether a node is fit: each does what the table says of it, on the same node."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_ddpscale.plan.estimate import STARTUP_S
from tests.benchmarks.scripts import benchmark

script, procedures = benchmark("compared"), benchmark("compared_procedures")
CLUSTER = script.cluster_of("0.3 %")
ONE_SHOT = "one shot, our bounds", "one shot, published - 5 %", "SuperBench's way", "DCGM's way"
OTHERS = "16 rounds, t-test", *ONE_SHOT


def node(*faults: str, seed: int = 3) -> Any:
    return procedures.Node(CLUSTER, faults, seed)


@pytest.fixture(scope="module")
def superbench() -> Any:
    return procedures.Superbench.learned([node(seed=seed) for seed in (100, 101, 102)])


def decisions(superbench: Any, *faults: str) -> dict[str, str]:
    said = procedures.all_procedures(node(*faults), superbench)
    return {procedure: outcome.decision for procedure, outcome in said.items()}


def test_everybody_accepts_a_sound_node(superbench: Any) -> None:
    assert set(decisions(superbench).values()) == {"accepted"}


def test_everybody_rejects_a_node_whose_gpus_are_all_8_per_cent_slow(superbench: Any) -> None:
    assert set(decisions(superbench, "slow-gpu:all:1.08").values()) == {"rejected"}


def test_nobody_sees_that_all_gpus_are_3_per_cent_slow(superbench: Any) -> None:
    assert set(decisions(superbench, "slow-gpu:all:1.03").values()) == {"accepted"}


def test_a_gpu_that_is_4_per_cent_slow_passes_every_floor_5_per_cent_below(superbench: Any) -> None:
    said = decisions(superbench, "slow-gpu:5:1.04")
    assert [said[name] for name in ("ddpscale", "16 rounds, t-test", "one shot, our bounds")] == ["rejected"] * 3
    assert {said[name] for name in ONE_SHOT[1:]} == {"accepted"}


def test_one_shot_takes_gpu_0_for_the_yardstick_and_misses_that_it_is_slow(superbench: Any) -> None:
    said = decisions(superbench, "slow-gpu:0:1.04")
    assert (said["ddpscale"], said["one shot, our bounds"]) == ("rejected", "accepted")


def test_a_test_of_each_gpu_by_itself_finds_a_slow_one_and_no_slow_link(superbench: Any) -> None:
    assert decisions(superbench, "slow-gpu:6:1.08")["DCGM's way"] == "rejected"
    said = decisions(superbench, "slow-link:0:0.004")
    assert said.pop("DCGM's way") == "accepted"
    assert set(said.values()) == {"rejected"}


def test_machine_time_is_that_of_what_each_measures(superbench: Any) -> None:
    said = procedures.all_procedures(node(), superbench)
    assert said["one shot, our bounds"].seconds == 4 * (STARTUP_S + 360)
    assert said["DCGM's way"].seconds == STARTUP_S + 120
    assert said["SuperBench's way"].seconds == pytest.approx(2 * (STARTUP_S + 576 * 192 / 1159.2), rel=1e-3)
    assert 120 < said["16 rounds, t-test"].seconds < 300
    assert 120 < said["ddpscale"].seconds < 400


def cell(kind: str, size: float, rejected: float) -> Any:
    return script.Cell("0.3 %", "one", kind, size, 0.0, rejected, 1.0)


def test_the_smallest_fault_found_is_that_from_which_on_all_are_found() -> None:
    kind = script.ALL_GPUS
    shares = {2: 1.0, 3: 0.5, 4: 0.95, 5: 1.0, 6: 1.0, 8: 1.0}
    assert script.smallest_found([cell(kind, size, share) for size, share in shares.items()], kind) == 4
    assert script.smallest_found([cell(kind, size, 0.9) for size in shares], kind) is None


def test_of_links_the_smallest_fault_leaves_most() -> None:
    kind = script.LINK
    shares = dict(zip(script.SIZES[kind], (0.0, 0.0, 1.0, 1.0), strict=True))
    assert script.smallest_found([cell(kind, size, share) for size, share in shares.items()], kind) == 0.5


def test_a_slow_gpu_sits_at_a_place_drawn_by_lot_and_all_are_slow_alike() -> None:
    places = {script.faults_of(script.ONE_GPU, 3, seed) for seed in range(60)}
    assert places == {(f"slow-gpu:{rank}:1.03",) for rank in range(8)}
    assert script.faults_of(script.ALL_GPUS, 3, 0) == ("slow-gpu:all:1.03",)
    assert script.faults_of(script.LINK, 0.5, 0) == ("slow-link:0:0.005",)
    assert script.faults_of("", 0.0, 0) == ()


def test_cells_are_shares_of_the_runs() -> None:
    runs = [{"one": procedures.Outcome(said, 60.0)} for said in ("accepted", "accepted", "rejected", "undecided")]
    (found,) = script.cells_of("0.3 %", "", 0.0, runs)
    assert (found.accepted, found.rejected, found.minutes) == (0.5, 0.25, 1.0)


def test_the_tables_have_a_row_for_each_procedure() -> None:
    cells = [
        script.Cell("0.3 %", name, kind, size, 0.25, 0.5, 2.0)
        for name in OTHERS
        for kind, size in [("", 0.0), *((kind, size) for kind, sizes in script.SIZES.items() for size in sizes)]
    ]
    errors, sizes = script.errors_table(cells).splitlines(), script.sizes_table(cells, script.LINK).splitlines()
    assert [line.split("  ")[0] for line in errors[1:]] == [line.split("  ")[0] for line in sizes[1:]] == list(OTHERS)
    assert "50 %" in errors[1]
    assert "2.0" in errors[1]
    assert errors[1].endswith("none")
    assert "25 / 50" in sizes[1]
