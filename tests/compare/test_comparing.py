"""Two simulated runs of one machine, and of machines that differ by what is known."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from pytest_ddpscale.compare.comparing import ComparedRequirement, ComparedRun, ComparedRuns, compare_runs
from pytest_ddpscale.compare.configuration import configuration_differences
from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.report.words.reasons import worded
from pytest_ddpscale.run.evidence import evidence_of
from pytest_ddpscale.run.verdicts import Judgement, Verdict
from pytest_ddpscale.simulate.measuring import SimulatedRun
from pytest_ddpscale.simulate.options import parse_faults
from pytest_ddpscale.simulate.writing import records
from pytest_ddpscale.thresholds.cases import training_cases
from tests.builders.clusters import a100
from tests.builders.json_types import run_record
from tests.builders.judged import ValueChange
from tests.builders.workloads import with_settings

CONFIDENCE = 0.95


@cache
def run(seed: int, *faults: str, gpus: int = 8, rounds: int = 16) -> ComparedRun:
    """A simulated run of A100s, judged."""
    cluster = a100(gpus)
    plan = cluster.plan(rounds, short_blocks=True)
    simulated = SimulatedRun(plan, cluster.performance, parse_faults(faults, plan.layout), seed)
    found = list(records(simulated, cluster))
    evidence = evidence_of(plan, None, found)
    verdicts = tuple(worded(judge(case, evidence, CONFIDENCE)) for case in training_cases(cluster.cases))
    record = run_record(sku=cluster.sku, status="simulated", simulated=True)
    judgement = Judgement(cluster.sku, "incomplete", "simulated", verdicts, simulated=True)
    return ComparedRun(f"run-{seed}", record, evidence, judgement, {}, f"{seed} {faults} {gpus} {rounds}")


def compared(a: ComparedRun, b: ComparedRun) -> ComparedRuns:
    return compare_runs(a, b, CONFIDENCE)


def configuration(found: ComparedRuns) -> dict[str, tuple[str, str]]:
    return {name: (of_a, of_b) for name, of_a, of_b in configuration_differences(found.a, found.b)}


def of(found: ComparedRuns, metric: str, world_size: int) -> ComparedRequirement:
    return next(one for one in found.requirements if (one.a.metric, one.a.world_size) == (metric, world_size))


def test_two_runs_of_one_machine_show_no_difference() -> None:
    found = compared(run(1), run(2))
    assert found.requirements
    assert {one.difference for one in found.requirements} == {"no difference shown"}
    assert configuration(found) == {}


def test_a_slow_rank_makes_slower_what_waits_for_it_and_not_one_gpu() -> None:
    found = compared(run(1), run(3, "slow-gpu:3:1.1"))
    throughput = of(found, "throughput_per_gpu", 8)
    assert throughput.difference == "slower"
    assert throughput.change is not None
    assert throughput.change.low < 1 / 1.1 - 1 + 0.005 < throughput.change.high + 0.01
    assert of(found, "rank_uniformity", 8).difference == "slower"
    assert of(found, "throughput_per_gpu", 1).difference == "no difference shown"


def test_the_other_way_round_it_is_faster() -> None:
    throughput = of(compared(run(3, "slow-gpu:3:1.1"), run(1)), "throughput_per_gpu", 8)
    assert (throughput.difference, throughput.is_worse) == ("faster", False)


def test_only_what_is_surely_worse_by_more_than_a_share_is_told() -> None:
    found = compared(run(1), run(3, "slow-gpu:3:1.1"))
    names = set(found.worse_by(0.05))
    assert of(found, "throughput_per_gpu", 8).a.id in names
    assert of(found, "rank_uniformity", 8).a.id in names
    assert found.worse_by(0.2) == []
    assert compared(run(3, "slow-gpu:3:1.1"), run(1)).worse_by(0.0) == []


@pytest.mark.parametrize(("more_ms", "is_worse"), [(0.06, False), (3.9, False), (4.1, True)])
def test_a_share_of_a_difference_in_ms_is_of_the_first_value(more_ms: float, is_worse: bool) -> None:
    change = ValueChange(more_ms, more_ms, more_ms)
    verdict = Verdict("communication_time[r-2gpu]", "communication_time", "r", 2, "warn", {"at_most": 90.0}, "passed",
                      80.0)  # fmt: skip
    found = ComparedRequirement(verdict, verdict, change)
    assert found.is_worse_by(0.05) == is_worse


def test_one_rank_that_computes_wrongly_is_worse_by_any_share() -> None:
    found = compared(run(1), run(3, "corrupt-rank:3"))
    agreement = next(one for one in found.requirements if one.a.metric == "replica_agreement")
    assert agreement.change is not None
    assert -0.13 < agreement.change.size < 0
    assert agreement.a.id in found.worse_by(0.2)


def test_what_wrong_data_makes_useless_is_lost() -> None:
    found = compared(run(1), run(3, "corrupt-rank:3"))
    lost = {one.a.id for one in found.requirements if one.why_not.startswith("B: error")}
    assert lost
    assert set(found.lost) == lost


def test_what_has_too_few_rounds_now_is_lost() -> None:
    found = compared(run(1), run(2, "missing-rank:3:5"))
    throughput = of(found, "throughput_per_gpu", 8)
    assert throughput.change is None
    assert throughput.a.id in found.lost
    assert of(found, "throughput_per_gpu", 1).a.id not in found.lost


def with_launch_sd(one: ComparedRun, sd: float) -> ComparedRun:
    """The same, of places whose earlier launches differed that much, which verdicts on throughput allow for."""
    verdicts = tuple(
        replace(verdict, launch_sd=sd, interval=(verdict.value * (1 - sd), verdict.value * (1 + sd)))
        if verdict.metric == "throughput_per_gpu" and verdict.value
        else verdict
        for verdict in one.judgement.verdicts
    )
    return replace(one, judgement=replace(one.judgement, verdicts=verdicts))


def test_what_launches_are_known_to_differ_by_is_part_of_the_interval_of_throughput() -> None:
    slower = run(3, "slow-gpu:3:1.1")
    found = compared(with_launch_sd(run(1), 0.1), with_launch_sd(slower, 0.1))
    throughput, uniformity = of(found, "throughput_per_gpu", 8), of(found, "rank_uniformity", 8)
    assert (throughput.difference, throughput.knows_launches) == ("no difference shown", True)
    assert (uniformity.difference, uniformity.knows_launches) == ("slower", False)


def test_the_ratio_is_that_of_the_verdicts_values_and_their_places_are_named() -> None:
    a, b = run(1, "slow-gpu:3:1.03", gpus=16), run(2, "slow-gpu:11:1.1", gpus=16)
    found = compared(a, b)
    for one in found.requirements:
        assert one.a in a.judgement.verdicts
        assert one.b in b.judgement.verdicts
        if one.change is not None and one.a.value is not None and one.b.value is not None:
            printed = one.b.value / one.a.value - 1 if one.is_ratio else one.b.value - one.a.value
            assert one.change.size == pytest.approx(printed)
            assert one.change.low <= printed <= one.change.high
    shared = of(found, "throughput_per_gpu", 8)
    assert (shared.a.place, shared.b.place, shared.difference) == ("simulated-0", "simulated-1", "slower")


def test_verdicts_of_another_confidence_are_not_compared_at_this_one() -> None:
    with pytest.raises(OptionError, match=r"--confidence: found 0\.99; the verdicts have 0\.95; expected 0\.95"):
        compare_runs(run(1), run(2), 0.99)


def test_too_few_rounds_are_not_compared() -> None:
    with pytest.raises(OptionError, match=r"cannot be compared: .*A: 1 rounds; expected at least 8"):
        compared(run(1, rounds=1), run(2, rounds=1))


def test_one_run_is_not_compared_with_itself() -> None:
    with pytest.raises(OptionError, match="the same measurements"):
        compared(run(1), run(1))


def test_a_node_is_compared_with_the_worst_of_a_larger_run() -> None:
    found = compared(run(1, gpus=16), run(2, gpus=8))
    shared = of(found, "throughput_per_gpu", 8)
    assert shared.difference == "no difference shown"
    assert {one.a.id for one in found.requirements} <= {one.id for one in run(2).judgement.verdicts}
    assert "nodes" in configuration(found)


def other(base: ComparedRun, **changes: Any) -> ComparedRun:
    """The same run of another workload."""
    plan = base.evidence.plan
    studies = tuple(replace(one, workload=with_settings(one.workload, **changes)) for one in plan.studies)
    return replace(base, evidence=replace(base.evidence, plan=replace(plan, studies=studies)))


def test_another_batch_is_a_difference_in_configuration() -> None:
    assert configuration(compared(run(1), other(run(2), compile=True))) == {"compile": ("False", "True")}


def test_another_image_size_is_other_work() -> None:
    with pytest.raises(OptionError, match="image_size 224 in A, 32 in B"):
        compared(run(1), other(run(2), image_size=32))


def test_other_skus_are_compared_by_throughput() -> None:
    older = replace(run(2), record=run_record(sku="v100", status="simulated", simulated=True))
    found = compared(run(1), older)
    assert found.kind == "generations"
    assert {one.a.metric for one in found.requirements} == {"throughput_per_gpu"}
    assert {one.a.world_size for one in found.requirements} >= {1, 8}
