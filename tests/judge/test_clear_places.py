"""Of places that clearly pass no verdict is made: that changes nothing of what all places together come to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_ddpscale.judge import judge as judging
from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.run.columns import Columns
from pytest_ddpscale.run.evidence import Evidence, read_evidence
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.simulate.measuring import SimulatedRun
from pytest_ddpscale.simulate.simulated_cluster import ClusterOptions, open_cluster
from pytest_ddpscale.simulate.writing import write_simulated_run
from tests.builders.clusters import faults, thresholds

GPUS = 80
CLUSTER = open_cluster(thresholds(), ClusterOptions("b200", GPUS, workloads=("vit-b-16-fp16",)))


def odd(evidence: Evidence) -> Evidence:
    """With a rank of which steps were skipped, one that is faster together than alone, and one that only waits."""
    arms = dict(evidence.columns.arms)
    for key, arm in arms.items():
        skipped, seconds, node = arm.reading("skipped_steps").copy(), arm.seconds.copy(), arm.ranks.numbers // 8
        skipped[:, arm.ranks.numbers == 17] = 3
        seconds[:, node == 5] *= 2 if arm.arm == "alone" else 1
        arms[key] = replace(arm, seconds=seconds, readings={**arm.readings, "skipped_steps": skipped})
    waits = {"utilization": 0.99, "power_w": 200.0, "power_limit_w": 1000.0, "idle_power_w": 150.0}
    told, is_stalled = evidence.telemetry, evidence.telemetry.rank // 8 == 7
    changes: dict[str, Any] = {n: np.where(is_stalled, new, getattr(told, n)) for n, new in waits.items()}
    told = replace(told, numbers={**told.numbers, **changes})
    return replace(evidence, columns=Columns(arms), telemetry=told)


@pytest.mark.parametrize(
    "bad",
    [
        (),
        ("slow-gpu:11:1.05", "corrupt-rank:20"),
        ("throttle:3:1.1", "slow-link:4:0.3"),
        ("missing-rank:9:8", "missing-rank:41", "slow-probe:60:memory-copy:0.7"),
        ("drift:3", "bad-gpu:12:clock"),
        tuple(f"missing-rank:{rank}:8" for rank in range(1, 72, 8)),
    ],
    ids=["healthy", "slow and corrupt", "node", "missing", "drift", "many missing"],
)
def test_verdicts_are_those_of_every_place_judged(
    bad: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = CLUSTER.plan(rounds=10, short_blocks=True)
    simulated = SimulatedRun(plan, CLUSTER.performance, faults(*bad, gpus=GPUS), seed=0)
    write_simulated_run(RunDirectory.create(tmp_path), CLUSTER, simulated)
    evidence = odd(read_evidence(RunDirectory(tmp_path)))
    found = [judge(case, evidence, 0.95) for case in CLUSTER.cases]
    monkeypatch.setattr(judging, "_clear", lambda *_: {})
    assert found == [judge(case, evidence, 0.95) for case in CLUSTER.cases]
    assert len({verdict.outcome for verdict in found}) > 1
