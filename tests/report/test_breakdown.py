"""Every arm that was measured has a row that says where its time went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.image_family import ImageFamily
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.report.digits import ABSENT
from pytest_ddpscale.report.where_time_goes import breakdown
from pytest_ddpscale.run.evidence import Evidence
from tests.builders.measurements import Measurement
from tests.builders.rounds import columns_of

WORKLOAD = Workload("r", ImageFamily("resnet18"), "fp16", 4)
ARMS = (Arm("alone", 1, 4), Arm("each", 2, 4), Arm("ddp", 2, 4))
PLAN = Plan("a100", "cuda", (Study("weak", WORKLOAD, ARMS, 5, 1.0, 1.0),))


def measured(arm: Arm, rank: int, step_ms: float, memory_gib: float = 1.0, skipped: int = 0) -> Measurement:
    steps = tuple(step_ms / 1000 for _ in range(4))
    return Measurement(
        "weak/r", arm.name, 0, rank, rank, "n", f"GPU-{rank}", 4, 4, sum(steps), 0.0, steps,
        peak_memory_bytes=int(memory_gib * 2**30), skipped_steps=skipped,
    )  # fmt: skip


def told(
    measurements: Sequence[Measurement], plan: Plan = PLAN, flops_per_sample: float | None = None
) -> list[dict[str, str]]:
    flops = {"weak/r": flops_per_sample} if flops_per_sample else {}
    found = breakdown(Evidence(plan, columns_of(measurements), {}, flops_per_sample=flops))
    return [dict(zip(found.titles, map(str, cells), strict=True)) for cells in found.rows]


def row(*measurements: Measurement) -> dict[str, str]:
    (found,) = told(measurements)
    return found


def test_percentiles_are_over_the_steps_of_all_ranks() -> None:
    found = row(measured(ARMS[2], 0, 10.0), measured(ARMS[2], 1, 20.0))
    assert (found["p50 ms"], found["p99 ms"]) == ("15.0", "20.0")


def test_throughput_is_that_of_the_slowest_rank() -> None:
    assert row(measured(ARMS[1], 0, 10.0), measured(ARMS[1], 1, 20.0))["img/s per rank"] == "200.0"


def test_achieved_tflops_are_throughput_times_what_an_image_costs() -> None:
    (found,) = told([measured(ARMS[0], 0, 10.0)], flops_per_sample=25e9)
    assert found["TFLOPS per rank"] == "10"  # 400 img/s of 25 GFLOP
    assert row(measured(ARMS[0], 0, 10.0))["TFLOPS per rank"] == ABSENT


def test_memory_and_skipped_steps_are_shown() -> None:
    found = row(measured(ARMS[2], 0, 10.0, 2.0, skipped=1), measured(ARMS[2], 1, 10.0, 1.5, skipped=1))
    assert (found["Peak GiB"], found["Memory spread"], found["Skipped steps"]) == ("2.00", "25.0 %", "2")


def test_seconds_waited_for_data_are_those_of_the_rank_that_waited_most() -> None:
    waiting = [replace(measured(ARMS[2], rank, 10.0), waited_s=4 * (0.002 + 0.001 * rank)) for rank in range(2)]
    assert row(*waiting)["Waited for data, ms a step"] == "3.0"
    assert row(measured(ARMS[0], 0, 10.0))["Waited for data, ms a step"] == ABSENT


def test_an_arm_with_a_rank_missing_has_no_row() -> None:
    assert told([measured(ARMS[2], 0, 10.0)]) == []


def test_arms_come_in_the_order_of_the_plan() -> None:
    blocks = [measured(arm, rank, 5.0) for arm in reversed(ARMS) for rank in range(arm.world_size)]
    found = told(blocks)
    assert [one["Arm"] for one in found] == ["alone", "each@2", "ddp@2"]
    assert all(one["Skipped steps"] == ABSENT for one in found)


def test_all_nodes_that_trained_an_arm_at_the_same_time_are_in_its_row() -> None:
    on_second = [replace(measured(ARMS[1], rank, 40.0), rank=rank + 2, local_rank=rank, host="m") for rank in range(2)]
    blocks = [*(measured(ARMS[1], rank, 10.0) for rank in range(2)), *on_second]
    (found,) = told(blocks, replace(PLAN, nodes=2, ranks_per_node=2))
    assert found["img/s per rank"] == "100.0"
