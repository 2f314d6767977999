"""Two simulated runs of one machine, and of machines that differ by what is known."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from pytest_ddpscale.compare.comparing import ComparedRequirement, compare_runs
from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.history.past_run import PastRun
from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.report.words.reasons import worded
from pytest_ddpscale.run.evidence import evidence_of
from pytest_ddpscale.run.run_json import RunRecord
from pytest_ddpscale.run.verdicts import Judgement, Verdict
from pytest_ddpscale.simulate.measuring import SimulatedRun
from pytest_ddpscale.simulate.options import parse_faults
from pytest_ddpscale.simulate.writing import host_name, records
from pytest_ddpscale.thresholds.cases import training_cases
from tests.approved import assert_approved
from tests.builders.clusters import a100
from tests.builders.json_types import run_record
from tests.builders.judged import ValueChange
from tests.builders.workloads import with_settings
from tests.rows import rows

CONFIDENCE, SLOW = 0.95, "slow-gpu:3:1.1"


def about(sku: str) -> RunRecord:
    return run_record(sku=sku, status="simulated", simulated=True)


@cache
def run(seed: int, *faults: str, gpus: int = 8, rounds: int = 16) -> PastRun:
    """A simulated run of A100s, judged."""
    cluster = a100(gpus)
    plan = cluster.plan(rounds, short_blocks=True)
    simulated = SimulatedRun(plan, cluster.performance, parse_faults(faults, plan.layout), seed)
    evidence = evidence_of(plan, None, list(records(simulated, cluster)))
    verdicts = tuple(worded(judge(case, evidence, CONFIDENCE)) for case in training_cases(cluster.cases))
    judgement = Judgement(cluster.sku, "incomplete", "simulated", verdicts, simulated=True)
    digest, hosts = f"{seed} {faults} {gpus} {rounds}", {host_name(node): () for node in range(plan.nodes)}
    return PastRun(f"run-{seed}", about(cluster.sku), evidence, digest, hosts, {}, judgement)


def of_another_baseline(base: PastRun) -> PastRun:
    """The same run, whose single GPUs were trained without DDP."""
    verdicts = tuple(
        replace(verdict, one_gpu="alone" if verdict.one_gpu else None) for verdict in base.judgement.verdicts
    )
    return replace(base, judgement=replace(base.judgement, verdicts=verdicts))


def other(base: PastRun, sku: str = "", **changes: Any) -> PastRun:
    """The same run of another workload, or SKU."""
    plan = base.evidence.plan
    studies = tuple(replace(study, workload=with_settings(study.workload, **changes)) for study in plan.studies)
    evidence = replace(base.evidence, plan=replace(plan, studies=studies))
    return replace(base, evidence=evidence, record=about(sku or base.record.sku))


def told(name: str, a: PastRun, b: PastRun) -> Iterator[str]:
    found = compare_runs(a, b, CONFIDENCE)
    yield f"{name}: {found.worse_by(0.05)} worse by 5 %, {found.worse_by(0.2)} by 20 %, lost {[*found.lost]}"
    yield from (f"  {line}" for line in found.lines())


def test_runs_are_compared_by_the_values_of_their_verdicts() -> None:
    """GPUs take turns, so a slow one makes worse what waits for it, and not what one GPU does."""
    sound, slow, two_nodes = run(1), run(3, SLOW), run(1, "slow-gpu:3:1.03", gpus=16)
    pairs = {
        "one machine": (sound, run(2)),
        "a rank that is 10 % slow": (sound, slow),
        "after its repair": (slow, sound),
        "a rank that computes wrongly": (sound, run(3, "corrupt-rank:3")),
        "a rank that is missing from round 5 on": (sound, run(2, "missing-rank:3:5")),
        "two nodes with a slow rank each": (two_nodes, run(2, "slow-gpu:11:1.1", gpus=16)),
        "a node of two": (run(1, gpus=16), run(2)),
        "four GPUs": (sound, run(2, gpus=4)),
        "another baseline of one GPU": (sound, of_another_baseline(run(2))),
        "another SKU, compiled": (sound, other(run(2), "v100", compile=True)),
    }
    said = [line for name, of in pairs.items() for line in told(name, *of)]
    assert_approved("comparisons.txt", "\n".join(said) + "\n")


def test_what_cannot_be_compared_is_a_sentence() -> None:
    for a, b, confidence, said in (
        (run(1), run(2), 0.99, "--confidence: found 0.99; the verdicts have 0.95; expected 0.95"),
        (run(1, rounds=1), run(2, rounds=1), CONFIDENCE, "A: inconclusive: 1 rounds; expected at least 8"),
        (run(1), run(1), CONFIDENCE, "the same measurements"),
        (run(1), other(run(2), image_size=32), CONFIDENCE, "image_size 224 in A, 32 in B"),
    ):
        with pytest.raises(OptionError) as refused:
            compare_runs(a, b, confidence)
        assert said in str(refused.value)


@rows(
    ("low", "high", "is_shown", "is_worse"),
    [
        (-0.1, 0.1, False, False), (0.0005, 0.01, False, False), (0.002, 0.01, True, False),
        (-0.01, -0.002, True, False), (-0.01, -0.0005, False, False), (3.9, 9.0, True, False), (4.1, 9.0, True, True),
    ],
)  # fmt: skip
def test_a_change_is_shown_beyond_a_thousandth_and_a_share_of_a_difference_in_ms_is_of_the_first_value(
    low: float, high: float, is_shown: bool, is_worse: bool
) -> None:
    of_80 = Verdict("communication_time[r]", "communication_time", "r", 2, "warn", {"at_most": 90.0}, "passed", 80.0)
    change = ValueChange((low + high) / 2, low, high)
    assert (change.is_shown, ComparedRequirement(of_80, of_80, change).is_worse_by(0.05)) == (is_shown, is_worse)
