"""Real ranks: who is slow is named."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_ddpscale.families.image import ImageFamily
from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.launch.gang_state import Limits
from pytest_ddpscale.launch.supervisor import Supervisor
from pytest_ddpscale.plan.metric_catalogue import METRICS
from pytest_ddpscale.plan.planner import Pace, Question, build_plan
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.report.words.reasons import worded
from pytest_ddpscale.run.evidence import read_evidence
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.run_json import RunRecord, now_iso
from pytest_ddpscale.thresholds.cases import Case
from pytest_ddpscale.thresholds.model import PeerLimits, Requirement, Source
from tests.forks.launcher import forked_here

RANKS, SLOW_RANK = 2, 1
# So slow that no neighbour on the other rank's core hides it.
SLEEP_PER_WORK = "4.0"
WORKLOAD = Workload("small", ImageFamily("shufflenet_v2_x0_5", 32, "contiguous", num_classes=10), "fp32", 2)

pytestmark = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < RANKS,
    reason="a slow rank can only be told from its neighbour if each has a core; expected at least 2",
)


def test_a_rank_that_sleeps_for_most_of_each_step_is_named(tmp_path: Path) -> None:
    question = Question(METRICS["weak_scaling_efficiency"], WORKLOAD, RANKS)
    plan = build_plan(Plan("cpu", "cpu", ()), [question], Pace(rounds=8, block_s=0.15, warmup_s=0.1))
    run = RunDirectory.create(tmp_path / "run")
    run.write_json(run.plan_json, plan)
    run.write_json(run.run_json, RunRecord(sku="cpu", status="finished", started_at=now_iso()))
    site = os.pathsep.join(filter(None, [str(Path(__file__).with_name("slow_site")), os.environ.get("PYTHONPATH")]))
    fault = {"SLOW_RANK": str(SLOW_RANK), "SLOW_SHARE": SLEEP_PER_WORK, "PYTHONPATH": site}
    launch = forked_here()
    launch = replace(launch, environment={**launch.environment, **fault})
    Supervisor(launch, run, Limits(inactivity_s=120)).measure(plan)
    source = Source(measured=1.0, margin_pct=2.0, reference="equal ranks")
    line = Requirement("weak_scaling_efficiency", 1.0, source, workload=WORKLOAD.name, world_size=RANKS)
    # Two ranks on one CPU share caches, power and neighbours.
    peers = PeerLimits(computing=0.1)
    case = Case(line, 2, WORKLOAD, "small-2rank", "", floor_samples_per_s=1.0, peers=peers)
    verdict = worded(judge(case, read_evidence(run), 0.95))
    assert [culprit.place.index for culprit in verdict.culprits] == [SLOW_RANK], verdict
    assert "the time of its only peer" in verdict.culprits[0].evidence
