"""Every arm that was measured has a row that says where its time went."""

from __future__ import annotations

from dataclasses import replace

from pytest_ddpscale.families.image import ImageFamily
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.report.where_time_goes import breakdown
from pytest_ddpscale.run.evidence import Evidence
from tests.builders.measurements import Measurement
from tests.builders.rounds import columns_of

WORKLOAD = Workload("r", ImageFamily("resnet18"), "fp16", 4)
ALONE, EACH, DDP = ARMS = Arm("alone", 1, 4), Arm("each", 2, 4), Arm("ddp", 2, 4)
PLAN = Plan("a100", "cuda", (Study("weak", WORKLOAD, ARMS, 5, 1.0, 1.0),))


def measured(arm: Arm, rank: int, step_ms: float, memory_gib: float = 1.0, skipped: int = 0) -> Measurement:
    steps = (step_ms / 1000,) * 4
    return Measurement(
        "weak/r", arm.name, 0, rank, rank, "n", f"GPU-{rank}", 4, 4, sum(steps), 0.0, steps,
        waited_s=4 * (0.002 + 0.001 * rank) if arm is DDP else None,
        peak_memory_bytes=int(memory_gib * 2**30), skipped_steps=skipped,
    )  # fmt: skip


def told(*blocks: Measurement, plan: Plan = PLAN, flops: float = 25e9) -> list[tuple[object, ...]]:
    return [*breakdown(Evidence(plan, columns_of(blocks), {}, flops_per_sample={"weak/r": flops})).rows]  # type: ignore[list-item]


def test_an_arm_has_the_pace_of_its_slowest_rank_the_steps_of_all_and_the_most_memory_and_waits() -> None:
    blocks = [measured(DDP, 0, 10.0, 2.0, 1), measured(DDP, 1, 20.0, 1.5, 1)]
    blocks += [measured(EACH, 1, 20.0), measured(EACH, 0, 10.0), measured(ALONE, 0, 10.0)]
    nothing = "–", "1.00", "–"
    assert told(*blocks) == [
        ("weak/r", "alone", "1", "400.0", "10", *["10.0"] * 5, *nothing),
        ("weak/r", "each@2", "1", "200.0", "5", "15.0", *["20.0"] * 4, *nothing),
        ("weak/r", "ddp@2", "1", "200.0", "5", "15.0", *["20.0"] * 4, "3.0", "2.00", "2"),
    ]
    assert told(measured(ALONE, 0, 10.0), flops=0.0)[0][4] == "–"


def test_an_arm_with_a_rank_missing_has_no_row_and_all_nodes_of_a_row_count() -> None:
    assert told(measured(DDP, 0, 10.0)) == []
    both = [replace(measured(EACH, rank % 2, 10.0 if rank < 2 else 40.0), rank=rank, host="nm"[rank // 2])
            for rank in range(4)]  # fmt: skip
    assert told(*both, plan=replace(PLAN, nodes=2, ranks_per_node=2))[0][3] == "100.0"
