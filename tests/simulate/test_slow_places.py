"""A GPU that is a little slow gets the same verdict wherever it sits; benchmarks/cluster_verdicts.py has the table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_ddpscale.simulate.measuring import SimulatedRun
from tests.benchmarks.scripts import benchmark
from tests.builders.clusters import a100, faults
from tests.builders.judged import CONFIDENCE

session = benchmark("simulated_session")
decide, decide_all = session.decide, session.decide_all
GPUS = 8
CLUSTER = a100(GPUS)
CASES = [case for case in CLUSTER.cases if case.id == "weak_scaling_efficiency[resnet152-fp16-8gpu]"]
PLAN = replace(CLUSTER, cases=tuple(CASES)).plan(short_blocks=True)


def outcomes(*texts: str) -> set[str]:
    wrong = faults(*texts, gpus=GPUS)
    studies = decide(SimulatedRun(PLAN, CLUSTER.performance, wrong, 3), CASES, CONFIDENCE)
    return {verdict.outcome for study in studies for verdict in study.verdicts}


@pytest.mark.parametrize("place", range(GPUS))
def test_a_gpu_that_is_8_per_cent_slow_is_rejected_at_every_place(place: int) -> None:
    assert outcomes(f"slow-gpu:{place}:1.08") == {"failed"}


@pytest.mark.parametrize("place", [0, 3, 7])
def test_a_gpu_that_is_3_per_cent_slow_is_ordinary_at_every_place(place: int) -> None:
    cluster = replace(CLUSTER, cases=tuple(CASES))
    run = SimulatedRun(PLAN, CLUSTER.performance, faults(f"slow-gpu:{place}:1.03", gpus=GPUS), 3)
    assert {verdict.outcome for verdict in decide_all(run, cluster, CONFIDENCE)} == {"passed"}


def test_a_sound_node_passes() -> None:
    assert outcomes() == {"passed"}
