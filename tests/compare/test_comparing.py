"""Two simulated runs of one machine, and of machines that differ by what is known."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from pytest_ddpscale.compare.comparing import (
    ComparedRequirement,
    ComparedRuns,
    compare_runs,
    configuration_differences,
)
from pytest_ddpscale.compare.value_change import change_between
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
from tests.builders.clusters import a100
from tests.builders.json_types import run_record
from tests.builders.judged import Estimate, ValueChange
from tests.builders.workloads import with_settings
from tests.rows import rows

CONFIDENCE, ALIKE, SLOW = 0.95, "no difference shown", "slow-gpu:3:1.1"


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


def compared(a: PastRun, b: PastRun) -> ComparedRuns:
    return compare_runs(a, b, CONFIDENCE)


def configuration(found: ComparedRuns) -> dict[str, tuple[str, str]]:
    return {name: (of_a, of_b) for name, of_a, of_b in configuration_differences(found.a, found.b)}


def of(found: ComparedRuns, metric: str, world_size: int = 8) -> ComparedRequirement:
    return next(one for one in found.requirements if (one.a.metric, one.a.world_size) == (metric, world_size))


def test_two_runs_of_one_machine_show_no_difference() -> None:
    found = compared(run(1), run(2))
    assert {one.difference for one in found.requirements} == {ALIKE}
    assert configuration(found) == {}


def test_a_slow_rank_makes_worse_what_waits_for_it_and_not_one_gpu() -> None:
    found, back = compared(run(1), run(3, SLOW)), compared(run(3, SLOW), run(1))
    throughput, uniformity = of(found, "throughput_per_gpu"), of(found, "rank_uniformity")
    assert (throughput.difference, uniformity.difference) == ("worse", "worse")
    assert throughput.change is not None
    assert throughput.change.low < 1 / 1.1 - 1 + 0.005 < throughput.change.high + 0.01
    assert of(found, "throughput_per_gpu", 1).difference == ALIKE
    assert {throughput.a.id, uniformity.a.id} <= {*found.worse_by(0.05)}
    assert found.worse_by(0.2) == back.worse_by(0.0) == []
    assert of(back, "throughput_per_gpu").difference == "better"


@rows(("more_ms", "is_worse"), [(0.06, False), (3.9, False), (4.1, True)])
def test_a_share_of_a_difference_in_ms_is_of_the_first_value(more_ms: float, is_worse: bool) -> None:
    verdict = Verdict("communication_time[r-2gpu]", "communication_time", "r", 2, "warn", {"at_most": 90.0}, "passed",
                      80.0)  # fmt: skip
    found = ComparedRequirement(verdict, verdict, ValueChange(more_ms, more_ms, more_ms))
    assert found.is_worse_by(0.05) == is_worse


def test_one_rank_that_computes_wrongly_is_worse_by_any_share_and_what_it_makes_useless_is_lost() -> None:
    found = compared(run(1), run(3, "corrupt-rank:3"))
    agreement = of(found, "replica_agreement")
    assert agreement.change is not None
    assert -0.13 < agreement.change.size < 0
    assert agreement.a.id in found.worse_by(0.2)
    lost = {one.a.id for one in found.requirements if one.why_not.startswith("B: error")}
    assert lost
    assert set(found.lost) == lost


def test_what_has_too_few_rounds_now_is_lost() -> None:
    found = compared(run(1), run(2, "missing-rank:3:5"))
    throughput = of(found, "throughput_per_gpu")
    assert throughput.change is None
    assert throughput.a.id in found.lost
    assert of(found, "throughput_per_gpu", 1).a.id not in found.lost


def test_the_change_is_that_of_the_verdicts_values_and_intervals_and_their_places_are_named() -> None:
    a, b = run(1, "slow-gpu:3:1.03", gpus=16), run(2, "slow-gpu:11:1.1", gpus=16)
    found = compared(a, b)
    for one in found.requirements:
        assert one.a in a.judgement.verdicts
        assert one.b in b.judgement.verdicts
        if one.change is not None and one.a.value is not None and one.b.value is not None:
            printed = one.b.value / one.a.value - 1 if one.is_ratio else one.b.value - one.a.value
            assert one.change.size == pytest.approx(printed)
            assert one.change.low <= printed <= one.change.high
    shared = of(found, "throughput_per_gpu")
    assert (shared.a.place, shared.b.place, shared.difference) == ("simulated-0", "simulated-1", "worse")
    one_node = compared(run(1, gpus=16), run(2))  # with the worst of a larger run
    assert of(one_node, "throughput_per_gpu").difference == ALIKE
    assert configuration(one_node)["nodes"] == ("2: simulated-[0-1]", "1: simulated-0")


def other(base: PastRun, **changes: Any) -> PastRun:
    """The same run of another workload."""
    plan = base.evidence.plan
    studies = tuple(replace(one, workload=with_settings(one.workload, **changes)) for one in plan.studies)
    return replace(base, evidence=replace(base.evidence, plan=replace(plan, studies=studies)))


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


def test_another_configuration_is_told_and_other_skus_are_compared_by_their_common_requirements() -> None:
    nodes = compared(run(1), run(2, gpus=4))
    assert {one.why_not for one in nodes.requirements if one.a.id.endswith("-node]")} == {"world size 8 in A, 4 in B"}
    found = compared(run(1), replace(other(run(2), compile=True), record=about("v100")))
    assert configuration(found) == {"SKU": (run(1).record.sku, "v100"), "compile": ("False", "True")}
    assert of(found, "throughput_per_gpu").difference == ALIKE


def test_the_interval_of_a_change_is_the_root_of_both_squares_on_each_side() -> None:
    a, b = Estimate(10.0, (10.0 - 4.0, 10.0 + 3.0)), Estimate(12.0, (12.0 - 4.0, 12.0 + 3.0))
    assert change_between(a, b, by_factors=False) == pytest.approx((2.0, 2.0 - 5.0, 2.0 + 5.0))
    change = change_between(Estimate(100.0, (98.0, 102.0)), Estimate(90.0, (89.0, 91.0)), by_factors=True)
    reach = math.hypot(math.log(90 / 89), math.log(102 / 100))
    assert change[:2] == pytest.approx((-0.1, 0.9 * math.exp(-reach) - 1))


@rows(
    ("low", "high", "is_shown"),
    [(-0.1, 0.1, False), (0.0005, 0.01, False), (0.002, 0.01, True), (-0.01, -0.002, True), (-0.01, -0.0005, False)],
)
def test_a_change_is_shown_beyond_a_tenth_of_a_per_cent(low: float, high: float, is_shown: bool) -> None:
    assert ValueChange((low + high) / 2, low, high).is_shown == is_shown
