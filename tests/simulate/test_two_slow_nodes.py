"""Two slow nodes of four are told from the other two, and a sound cluster of them accuses nobody."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.report.words.reasons import worded
from pytest_ddpscale.run.block import Block
from pytest_ddpscale.simulate.measuring import SimulatedRun
from pytest_ddpscale.simulate.simulated_nodes import gang_of
from pytest_ddpscale.thresholds.cases import Case
from tests.builders.clusters import a100, faults, weak_study
from tests.builders.judged import CONFIDENCE, evidence_of_plan, make_case
from tests.builders.measurements import of_ranks

GPUS, PER_NODE = 32, 8
CLUSTER = a100(GPUS)
BATCH = weak_study(Arm("alone", 1, 512)).workload.batch_size
ARMS = (Arm("alone", 1, BATCH), Arm("ddp", GPUS, BATCH), Arm("each", GPUS, BATCH))
STUDY = Study("weak", weak_study(ARMS[0]).workload, ARMS, FEWEST_ROUNDS, 0.0, 0.0, PER_NODE)
PLAN = Plan("a100-sxm4-80gb", "cuda", (STUDY,), nodes=4, ranks_per_node=PER_NODE)
EFFICIENCY = make_case("weak_scaling_efficiency", 0.999, world_size=GPUS, workload=STUDY.workload)
UNIFORMITY = make_case("rank_uniformity", 1.03, world_size=GPUS, workload=STUDY.workload)


def slower(ranks: Sequence[int], factor: float) -> list[str]:
    return [f"slow-gpu:{rank}:{factor}" for rank in ranks]


@pytest.mark.parametrize("factor", [1.06, 1.1, 1.2])
@pytest.mark.parametrize("case", [EFFICIENCY, UNIFORMITY], ids=["weak scaling", "uniformity"])
def test_both_groups_are_named_and_nobody_is_drained(case: Case, factor: float) -> None:
    wrong = faults(*slower(range(16, 32), factor), gpus=GPUS)
    run = SimulatedRun(PLAN, CLUSTER.performance, wrong, seed=3)
    told = [record for number in range(STUDY.rounds) for record in run.measure_round(STUDY, number, ARMS)]
    measured = [one for block in told if isinstance(block, Block) for one in of_ranks(block, gang_of(PLAN))]
    verdict = worded(judge(case, evidence_of_plan(PLAN, measured), CONFIDENCE))
    assert verdict.outcome == "failed"
    assert {(c.kind, c.host, c.is_certain) for c in verdict.culprits} == {
        ("node", "simulated-2", False), ("node", "simulated-3", False),
    }  # fmt: skip
    assert "two groups of ranks: simulated-0, simulated-1 against simulated-2, simulated-3, 1." in verdict.reason
    assert "× apart even without communication" in verdict.reason
    assert not any(note.startswith("no rank is slow") for note in verdict.notes)
