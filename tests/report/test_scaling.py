"""Curves and tables have the numbers of the verdicts; without a requirement those that the judge would find."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpscale.cli import main
from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.plan.arm import Arm, Variant
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.report.charts import Curve
from pytest_ddpscale.report.scaling import (
    EFFICIENCY,
    SPEEDUP,
    THROUGHPUT,
    Quantity,
    scaling_curve,
    scaling_of,
    scaling_rows,
    scaling_tables,
    sweet_spots,
    usual_arms,
)
from pytest_ddpscale.report.words.reasons import worded
from pytest_ddpscale.run.evidence import read_evidence
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.verdicts import Verdict
from pytest_ddpscale.util.document import text_lines
from tests.approved import assert_approved
from tests.builders.judged import CONFIDENCE, evidence_of_plan
from tests.builders.judgements import (
    FAILED,
    MEASUREMENTS,
    PASSED,
    PLAN,
    RESNET,
    STUDIES,
    WARNED,
    make_plan,
    make_study,
)
from tests.builders.measurements import Measurement
from tests.builders.simulated_runs import judged_run
from tests.judge.runs import Run
from tests.rows import rows

WEAK = make_study("weak", RESNET, (1, 2))
MICRO = {1: 240.0, 2: 464.0, 4: 892.0, 8: 1668.0, 16: 3075.0, 32: 5205.0}
PUBLISHED = Path(__file__).parents[1] / "data" / "paik_a100_80gb"


def block(arm: str, number: int, rank: int, block_s: float) -> Measurement:
    return Measurement("weak/resnet152-fp16", arm, number, rank, rank, "n", "cpu", 512, 10, block_s, 1.7e9)


def curve_of(plan: Plan, blocks: Sequence[Measurement], quantity: Quantity, *verdicts: Verdict) -> Curve:
    return scaling_curve(plan.studies[0], quantity, evidence_of_plan(plan, blocks), verdicts)


def values(curve: Curve) -> dict[int, float]:
    return {int(point.x): point.value for point in curve.points}


def test_a_curve_has_the_packed_arms_of_the_settings_that_the_workload_says() -> None:
    """And no other, such as one with synthetic data in place of a folder's images."""
    others = Arm("ddp", 2, 512, variant=Variant(bucket_cap_mb=1)), Arm("ddp", 2, 512, "spread"), Arm("each", 2, 512)
    assert usual_arms(replace(WEAK, arms=(*WEAK.arms, *others))) == [*WEAK.arms]
    case, evidence = Run("throughput_per_gpu:90@2-spread 2x2").judged()
    verdict = worded(judge(case, evidence, CONFIDENCE))
    assert scaling_curve(evidence.plan.studies[0], THROUGHPUT, evidence, [verdict]).points == []


BLOCKS = [block("alone", 0, 0, 3.0), block("ddp@1", 0, 0, 4.0), *(block("ddp@2", 0, rank, 5.0) for rank in (0, 1))]
AGAINST_ALONE = replace(PASSED, world_size=8, one_gpu="alone")
BOTH = ("alone", "ddp")


@rows(
    ("kinds", "verdicts", "value"),
    [
        (BOTH, [], 0.8), (("alone",), [], 0.6), (BOTH, [AGAINST_ALONE], 0.6),
        (BOTH, [replace(AGAINST_ALONE, metric="throughput_per_gpu", unit="img/s", world_size=1)], 0.6),
    ],
)  # fmt: skip
def test_one_gpu_is_the_one_under_ddp_unless_verdicts_or_arms_say_otherwise(
    kinds: Sequence[Any], verdicts: Sequence[Verdict], value: float
) -> None:
    study = replace(WEAK, arms=(*(Arm(kind, 1, 512) for kind in kinds), Arm("ddp", 2, 512)))
    assert values(curve_of(make_plan(study), BLOCKS, EFFICIENCY, *verdicts))[2] == pytest.approx(value)


def test_a_round_that_lacks_a_rank_and_what_the_plan_does_not_know_are_left_out() -> None:
    stray = replace(block("alone", 0, 0, 4.0), study="weak/other"), block("ddp@4", 0, 0, 4.0)
    assert values(curve_of(make_plan(WEAK), [block("ddp@2", 0, 0, 4.0), *stray], THROUGHPUT)) == {}


@rows(
    ("metric", "quantity", "size"),
    [
        ("throughput_per_gpu", THROUGHPUT, 1),
        ("throughput_per_gpu", THROUGHPUT, 4),
        ("weak_scaling_efficiency", EFFICIENCY, 4),
        ("strong_scaling_speedup", SPEEDUP, 4),
    ],
)
def test_an_estimate_is_what_a_requirement_would_have(metric: str, quantity: Quantity, size: int) -> None:
    """In value, interval and place."""
    for machine, note in (("noise=0.01", ""), (f"noise=0.01 3x{size} slow=*1.1/{size}", "worst node (n1)")):
        case, evidence = Run(f"{metric}:0.5@{size} {machine}").judged()
        verdict = worded(judge(case, evidence, CONFIDENCE))
        study = next(study for study in evidence.plan.studies if study.scaling == case.question.metric.scaling)
        (point,) = (point for point in scaling_curve(study, quantity, evidence, ()).points if point.x == size)
        assert point.value == pytest.approx(verdict.value)
        assert point.interval == pytest.approx(verdict.interval)
        assert point.note == note


def test_a_size_judged_twice_has_the_value_that_fails() -> None:
    passed = replace(PASSED, value=0.97, bound={"at_least": 0.5})
    failed = replace(PASSED, value=0.972, outcome="failed", bound={"at_least": 0.98}, place="n3")
    for verdicts in ((passed, failed), (failed, passed)):
        curve = curve_of(PLAN, MEASUREMENTS, EFFICIENCY, *verdicts)
        assert (values(curve)[8], curve.points[-1].is_failed) == (0.972, True)
        assert sorted(bound.value for bound in curve.bounds) == [0.5, 0.98]


def test_speed_up_and_strong_efficiency_are_one_number() -> None:
    as_efficiency = replace(
        WARNED, metric="strong_scaling_efficiency", value=0.8, bound={"at_least": 0.9}, interval=(0.7, 0.85)
    )
    for verdict, value, bound in ((WARNED, 6.42, 6.5), (as_efficiency, 6.4, 7.2)):
        curve = scaling_curve(STUDIES[3], SPEEDUP, evidence_of_plan(PLAN, MEASUREMENTS), [verdict])
        assert (curve.points[-1].value, curve.bounds[0].value) == pytest.approx((value, bound))
    assert curve.points[-1].interval == pytest.approx((5.6, 6.8))


def test_a_bound_without_a_value_is_drawn_at_its_size() -> None:
    unmeasured = replace(FAILED, outcome="not_measured", value=None, interval=None, world_size=64)
    curve = curve_of(PLAN, MEASUREMENTS, THROUGHPUT, unmeasured)
    assert (curve.bounds[-1].x, max(values(curve))) == (64, 8)


def rows_of(rates: Mapping[int, float], images: float, fixed_s: float = 0.0) -> list[dict[str, Any]]:
    """Of a training of so many images, with seconds that more GPUs do not shorten."""
    return scaling_rows(
        {"ranks": ranks, "samples_per_s": rate, "complete_s": fixed_s + images / rate} for ranks, rate in rates.items()
    )


def test_fixed_time_saturates_while_throughput_grows() -> None:
    """Times as in table 12.4 of that chapter, "saturation effects beyond 8 GPUs": 556, 439, 380, 347, 330, 328 s."""
    sizes = rows_of(MICRO, 240 * 240, 316)
    assert [round(size["complete_s"]) for size in sizes] == pytest.approx([556, 439, 380, 347, 330, 328], abs=5)
    assert [*sweet_spots(sizes, "GPU", 400)] == [
        "sweet spot for a deadline of 400 s: 4 GPUs", "sweet spot for efficiency of 90 %: 4 GPUs",
        "sweet spot for GPU-hours: 1 GPU", "saturated at 8 GPUs: a doubling saves less than 5 % of the time",
    ]  # fmt: skip


def test_costs_decide_where_they_are_known_and_a_leap_is_of_three_doublings() -> None:
    leap = rows_of({1: 100.0, 8: 112.0}, 1e5)
    assert (leap[1]["saved_share"], leap[1]["saved_per_doubling"]) == pytest.approx((0.107, 0.037), abs=0.001)
    assert leap[1]["gpu_hours"] == pytest.approx(8 * 1e5 / 112 / 3600)
    assert [*sweet_spots(leap, "GPU")][-1].startswith("saturated at 1 GPU:")
    priced = scaling_rows(
        {**one, "kwh": 3.0 - place, "price": 1.0} for place, one in enumerate(rows_of({2: 9, 4: 18}, 1))
    )
    assert [*sweet_spots(priced, "rank", 0.01)] == [
        "one rank was not measured: relative to 2 ranks",
        "sweet spot for a deadline of 0.01 s: met by no measured number of ranks",
        "sweet spot for efficiency of 90 %: 4 ranks", "sweet spot for rank-hours: 2 ranks",
        "sweet spot for energy: 4 ranks", "sweet spot for price: 2 ranks",
    ]  # fmt: skip


def test_tables_say_what_was_approved(tmp_path: Path) -> None:
    """Of a simulated run, of one that somebody published, and of one size alone, which has none."""
    simulated, imported, alone, source = (tmp_path / name for name in ("run", "imported", "alone", "source"))
    simulate = ["simulate", "--gpu-sku", "a100", "--gpus", "16", "--rounds", "8"]
    main([*simulate, "--workloads", "vit-b-16-fp16", "--out", str(simulated)])
    source.mkdir()
    for one in PUBLISHED.glob("1gpu_weak_*"):
        shutil.copy(one, source)
    main(["import", "paik", str(PUBLISHED), "--out", str(imported)])
    main(["import", "paik", str(source), "--out", str(alone)])
    tables = [scaling_tables(read_evidence(RunDirectory.open(one)), ()) for one in (simulated, imported, alone)]
    assert_approved("scaling.txt", "\n".join(text_lines(*tables[0], *tables[1])))
    assert tables[2] == []


def test_sizes_that_were_judged_have_the_numbers_of_their_verdicts(tmp_path: Path) -> None:
    """Also where they are no estimates: here a tenth less."""
    told: dict[str, Callable[[dict[str, float]], float]] = {
        "throughput_per_gpu": lambda size: size["samples_per_s"] / size["ranks"],
        "weak_scaling_efficiency": itemgetter("efficiency"),
        "strong_scaling_speedup": itemgetter("speedup"),
    }
    run, judgement = judged_run(tmp_path)
    verdicts = [
        replace(verdict, value=0.9 * verdict.value)
        for verdict in judgement.verdicts
        if verdict.metric in told and verdict.value
    ]
    assert {verdict.metric for verdict in verdicts} == {*told}
    evidence = read_evidence(run)
    sizes = {
        study.id: {size["ranks"]: size for size in scaling_of(study, evidence, verdicts)}
        for study in evidence.plan.studies
    }
    for verdict in verdicts:
        study = f"{'strong' if verdict.metric.startswith('strong') else 'weak'}/{verdict.workload}"
        assert told[verdict.metric](sizes[study][verdict.world_size]) == pytest.approx(verdict.value, rel=1e-14)
