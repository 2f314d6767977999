"""Curves have the numbers of the verdicts; without a requirement those that the judge would find."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.plan.arm import Arm, Variant
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.report.scaling_curves import (
    EFFICIENCY,
    PLOTS,
    SPEEDUP,
    THROUGHPUT,
    Quantity,
    ScalingCurve,
    charted_curves,
    place_notes,
    scaling_curve,
)
from pytest_ddpscale.report.words.reasons import worded
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.verdicts import Verdict
from tests.builders.judged import CONFIDENCE, evidence_of_plan, make_case, measure, plan_of
from tests.builders.judgements import (
    FAILED,
    MEASUREMENTS,
    PASSED,
    PLAN,
    RESNET,
    STUDIES,
    WARNED,
    make_measurements,
    make_plan,
    make_study,
)
from tests.builders.measurements import Measurement
from tests.judge.runs import Run
from tests.rows import rows

WEAK = make_study("weak", RESNET, (1, 2))


def block(arm: str, number: int, rank: int, block_s: float) -> Measurement:
    return Measurement("weak/resnet152-fp16", arm, number, rank, rank, "n", "cpu", 512, 10, block_s, 1.7e9)


def curve_of(plan: Plan, blocks: Sequence[Measurement], quantity: Quantity, *verdicts: Verdict) -> ScalingCurve:
    return scaling_curve(plan.studies[0], quantity, evidence_of_plan(plan, blocks), verdicts)


def test_an_arm_with_other_settings_is_no_point_of_the_curve() -> None:
    """Such as synthetic data in place of a folder's images."""
    other = Arm("ddp", 2, 512, variant=Variant(bucket_cap_mb=1))
    study = replace(WEAK, arms=(*WEAK.arms, other))
    blocks = [block("ddp@2", 0, rank, 5.0) for rank in (0, 1)] + [block(other.name, 0, rank, 1.0) for rank in (0, 1)]
    assert curve_of(make_plan(study), blocks, THROUGHPUT).values == {2: pytest.approx(512 * 10 / 5.0)}


@rows(("one_gpu", "efficiency"), [(("ddp@1",), 0.8), (("ddp@1", "alone"), 0.6)])
def test_one_gpu_is_the_one_under_ddp_where_none_was_measured_alone(
    one_gpu: tuple[str, ...], efficiency: float
) -> None:
    arms = tuple(Arm("alone" if name == "alone" else "ddp", 1, 512) for name in one_gpu)
    plan = make_plan(replace(WEAK, arms=(*arms, Arm("ddp", 2, 512))))
    blocks = [block(name, 0, 0, 3.0 if name == "alone" else 4.0) for name in one_gpu]
    blocks += [block("ddp@2", 0, rank, 5.0) for rank in (0, 1)]
    assert curve_of(plan, blocks, EFFICIENCY).values == {2: pytest.approx(efficiency)}
    # Where verdicts or the workload's other study compare with the GPU under DDP, this one does, too.
    other = replace(STUDIES[2], arms=(Arm("ddp", 1, 256), Arm("ddp", 2, 128)))
    if efficiency == 0.6:
        both = replace(plan, studies=(*plan.studies, other))
        assert curve_of(both, blocks, EFFICIENCY).values == {2: pytest.approx(0.8)}
    judged = replace(PASSED, world_size=8, one_gpu="ddp")
    assert curve_of(plan, blocks, EFFICIENCY, judged).values[2] == pytest.approx(0.8)


def test_a_round_that_lacks_a_rank_and_what_the_plan_does_not_know_are_left_out() -> None:
    stray = [replace(block("alone", 0, 0, 4.0), study="weak/other"), block("ddp@4", 0, 0, 4.0)]
    evidence = evidence_of_plan(make_plan(WEAK), [block("ddp@2", 0, 0, 4.0), *stray])
    assert charted_curves("weak", THROUGHPUT, evidence, ()) == []


def test_one_curve_per_study_in_the_order_of_the_plan() -> None:
    found = charted_curves("weak", EFFICIENCY, evidence_of_plan(PLAN, MEASUREMENTS), ())
    assert [curve.name for curve in found] == [one.workload.name for one in STUDIES if one.scaling == "weak"]
    assert [sorted(curve.values) for curve in found] == [[2, 4, 8]] * 2


def test_too_few_rounds_have_no_interval() -> None:
    curve = curve_of(make_plan(WEAK), make_measurements(WEAK, 1000.0, 0.05, rounds=5), THROUGHPUT)
    assert [point.drawn_interval for point in curve.points] == [None, None]


@rows(
    ("metric", "quantity", "size"),
    [
        ("throughput_per_gpu", THROUGHPUT, 1),
        ("throughput_per_gpu", THROUGHPUT, 4),
        ("weak_scaling_efficiency", EFFICIENCY, 4),
        ("strong_scaling_efficiency", EFFICIENCY, 4),
        ("strong_scaling_speedup", SPEEDUP, 4),
    ],
)
def test_an_estimate_is_what_a_requirement_would_have(metric: str, quantity: Quantity, size: int) -> None:
    """In value, interval and place."""
    case = make_case(metric, 0.5, world_size=size)
    one_node = plan_of([case])

    def rate(arm: Arm, number: int, rank: int) -> float:
        return 100.0 - arm.world_size - 0.3 * (number % 3) - 0.2 * rank

    evidences = [
        evidence_of_plan(one_node, measure(one_node.studies[0], 9, rate)),
        Run(f"{metric}:0.5@{size} 3x{size} slow=*1.1/{size}").judged()[1],
    ]
    for evidence in evidences:
        verdict = worded(judge(case, evidence, CONFIDENCE))
        study = next(one for one in evidence.plan.studies if one.scaling == case.question.metric.scaling)
        (point,) = (one for one in scaling_curve(study, quantity, evidence, ()).points if one.world_size == size)
        assert point.value == pytest.approx(verdict.value)
        assert point.interval == pytest.approx(verdict.interval)
        assert point.place == verdict.place
    assert point.place == "n1"


def four_nodes() -> Evidence:
    """Sizes 1 and 2 fit a node, 4 takes the first two of four, and 8 all; on n2 a GPU is slow."""
    return Run("weak_scaling_efficiency:0.9@8 4x2 slow=*1.3/5").judged()[1]


def test_each_size_tells_the_nodes_of_its_value() -> None:
    evidence = four_nodes()
    curves = [scaling_curve(evidence.plan.studies[0], quantity, evidence, ()) for quantity in (THROUGHPUT, EFFICIENCY)]
    assert [point.where for point in curves[1].points] == ["worst node (n2)", "first 2 of 4 nodes", ""]
    assert curves[1].values[4] > curves[1].values[2] == pytest.approx(curves[1].values[8], rel=0.01)
    assert place_notes(curves, "GPU") == ["1, 2 GPUs: worst node (n2)", "4 GPUs: first 2 of 4 nodes"]


def test_a_size_judged_twice_has_the_value_that_fails() -> None:
    passed = replace(PASSED, value=0.97, bound={"at_least": 0.5})
    failed = replace(PASSED, value=0.972, outcome="failed", bound={"at_least": 0.98}, place="n3")
    for verdicts in ((passed, failed), (failed, passed)):
        curve = curve_of(PLAN, MEASUREMENTS, EFFICIENCY, *verdicts)
        assert (curve.values[8], curve.points[-1].is_failed) == (0.972, True)
        assert sorted(bound.value for bound in curve.bounds) == [0.5, 0.98]


def test_speed_up_and_strong_efficiency_are_one_number() -> None:
    strong = next(one for one in STUDIES if one.id == f"strong/{WARNED.workload}")
    evidence = evidence_of_plan(PLAN, MEASUREMENTS)
    speedup, efficiency = (scaling_curve(strong, one, evidence, [WARNED]) for one in (SPEEDUP, EFFICIENCY))
    assert (speedup.values[8], efficiency.values[8]) == (6.42, 6.42 / 8)
    assert (speedup.bounds[0].value, efficiency.bounds[0].value) == (6.5, 6.5 / 8)
    assert efficiency.points[-1].interval == pytest.approx((6.38 / 8, 6.47 / 8))
    as_efficiency = replace(WARNED, metric="strong_scaling_efficiency", value=0.8, bound={"at_least": 0.9})
    assert scaling_curve(strong, SPEEDUP, evidence, [as_efficiency]).values[8] == pytest.approx(6.4)


def test_arms_spread_over_nodes_are_no_part_of_a_curve() -> None:
    case, evidence = Run("throughput_per_gpu:90@2-spread 2x2").judged()
    judged = worded(judge(case, evidence, CONFIDENCE))
    assert judged.value is not None
    assert charted_curves("weak", THROUGHPUT, evidence, [judged]) == []


def test_a_bound_without_a_value_is_drawn_at_its_size() -> None:
    unmeasured = replace(FAILED, outcome="not_measured", value=None, interval=None, world_size=64)
    curve = curve_of(PLAN, MEASUREMENTS, THROUGHPUT, unmeasured)
    assert (max(curve.xs), max(curve.values)) == (64, 8)


def test_all_charts_have_their_curves_in_the_unit_of_the_axis() -> None:
    evidence = evidence_of_plan(PLAN, MEASUREMENTS)
    ends = {(scaling, one.file): charted_curves(scaling, one, evidence, ())[0].values[8] for scaling, one in PLOTS}
    assert ends["strong", "efficiency"] == pytest.approx(100 * ends["strong", "speedup"] / 8)
    assert 90 < ends["weak", "efficiency"] < 100
