"""Curves and tables have the numbers of the verdicts; without a requirement those that the judge would find."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

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
    MeasuredSize,
    Quantity,
    ScalingFact,
    TrainingJob,
    scaling_curve,
    scaling_facts,
    scaling_series,
    scaling_tables,
    sweet_spots,
)
from pytest_ddpscale.report.words.reasons import worded
from pytest_ddpscale.run.evidence import read_evidence
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.verdicts import Verdict
from pytest_ddpscale.session.open import find_source
from pytest_ddpscale.session.session import AcceptanceSession
from pytest_ddpscale.session.sources import Site
from pytest_ddpscale.settings import settings_from
from pytest_ddpscale.util.command_parser import USER_ERROR
from pytest_ddpscale.util.document import plain
from tests.approved import assert_approved
from tests.builders.judged import CONFIDENCE, evidence_of_plan, make_case, measure, plan_of
from tests.builders.judgements import (
    FAILED,
    JUDGEMENT,
    MEASUREMENTS,
    PASSED,
    PLAN,
    RESNET,
    RUN,
    STUDIES,
    WARNED,
    judgement_with,
    make_plan,
    make_study,
)
from tests.builders.measurements import Measurement
from tests.judge.runs import Run
from tests.report.page_text import page_text
from tests.report.written import page_of
from tests.rows import rows

WEAK = make_study("weak", RESNET, (1, 2))
MICRO = {1: 240.0, 2: 464.0, 4: 892.0, 8: 1668.0, 16: 3075.0, 32: 5205.0}
PUBLISHED = Path(__file__).parents[1] / "data" / "paik_a100_80gb"
Printed = pytest.CaptureFixture[str]


def block(arm: str, number: int, rank: int, block_s: float) -> Measurement:
    return Measurement("weak/resnet152-fp16", arm, number, rank, rank, "n", "cpu", 512, 10, block_s, 1.7e9)


def curve_of(plan: Plan, blocks: Sequence[Measurement], quantity: Quantity, *verdicts: Verdict) -> Curve:
    return scaling_curve(plan.studies[0], quantity, evidence_of_plan(plan, blocks), verdicts)


def values(curve: Curve) -> dict[int, float]:
    return {int(one.x): one.value for one in curve.points}


def test_an_arm_with_other_settings_is_no_point_of_the_curve() -> None:
    """Such as synthetic data in place of a folder's images."""
    other = Arm("ddp", 2, 512, variant=Variant(bucket_cap_mb=1))
    study = replace(WEAK, arms=(*WEAK.arms, other))
    blocks = [block("ddp@2", 0, rank, 5.0) for rank in (0, 1)] + [block(other.name, 0, rank, 1.0) for rank in (0, 1)]
    assert values(curve_of(make_plan(study), blocks, THROUGHPUT)) == {2: pytest.approx(512 * 10 / 5.0)}


def test_one_gpu_is_the_one_under_ddp_unless_verdicts_or_arms_say_otherwise() -> None:
    blocks = [block("alone", 0, 0, 3.0), block("ddp@1", 0, 0, 4.0), *(block("ddp@2", 0, rank, 5.0) for rank in (0, 1))]
    both, alone = (
        make_plan(replace(WEAK, arms=(*arms, Arm("ddp", 2, 512))))
        for arms in ((Arm("alone", 1, 512), Arm("ddp", 1, 512)), (Arm("alone", 1, 512),))
    )
    judged = replace(PASSED, world_size=8, one_gpu="alone")
    assert values(curve_of(both, blocks, EFFICIENCY)) == {2: pytest.approx(0.8)}
    assert values(curve_of(both, blocks, EFFICIENCY, judged))[2] == pytest.approx(0.6)
    throughput = replace(judged, metric="throughput_per_gpu", unit="img/s", world_size=1)
    of_its_bound = values(curve_of(both, blocks, EFFICIENCY, throughput))
    assert of_its_bound[2] == pytest.approx(0.6), "as its only bound says"
    assert values(curve_of(alone, blocks, EFFICIENCY)) == {2: pytest.approx(0.6)}


def test_a_round_that_lacks_a_rank_and_what_the_plan_does_not_know_are_left_out() -> None:
    stray = [replace(block("alone", 0, 0, 4.0), study="weak/other"), block("ddp@4", 0, 0, 4.0)]
    evidence = evidence_of_plan(make_plan(WEAK), [block("ddp@2", 0, 0, 4.0), *stray])
    assert scaling_curve(evidence.plan.studies[0], THROUGHPUT, evidence, ()).points == []


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
    case = make_case(metric, 0.5, world_size=size)
    one_node = plan_of([case])

    def rate(arm: Arm, number: int, rank: int) -> float:
        return 100.0 - arm.world_size - 0.3 * (number % 3) - 0.2 * rank

    evidences = [
        evidence_of_plan(one_node, measure(one_node.studies[0], 9, rate)),
        Run(f"{metric}:0.5@{size} 3x{size} slow=*1.1/{size}").judged()[1],
    ]
    for evidence, note in zip(evidences, ("", "worst node (n1)"), strict=True):
        verdict = worded(judge(case, evidence, CONFIDENCE))
        study = next(one for one in evidence.plan.studies if one.scaling == case.question.metric.scaling)
        (point,) = (one for one in scaling_curve(study, quantity, evidence, ()).points if one.x == size)
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
    strong = next(one for one in STUDIES if one.id == f"strong/{WARNED.workload}")
    evidence = evidence_of_plan(PLAN, MEASUREMENTS)
    as_efficiency = replace(
        WARNED, metric="strong_scaling_efficiency", value=0.8, bound={"at_least": 0.9}, interval=(0.7, 0.85)
    )
    for verdict, value, bound in ((WARNED, 6.42, 6.5), (as_efficiency, 6.4, 7.2)):
        curve = scaling_curve(strong, SPEEDUP, evidence, [verdict])
        assert (curve.points[-1].value, curve.bounds[0].value) == pytest.approx((value, bound))
        facts = scaling_series(evidence, [verdict], TrainingJob(1.0))[-1].facts
        assert (facts[-1].speedup, facts[-1].efficiency) == pytest.approx((value, value / 8))
    assert curve.points[-1].interval == pytest.approx((5.6, 6.8))


def test_arms_spread_over_nodes_are_no_part_of_a_curve() -> None:
    case, evidence = Run("throughput_per_gpu:90@2-spread 2x2").judged()
    verdict = worded(judge(case, evidence, CONFIDENCE))
    assert scaling_curve(evidence.plan.studies[0], THROUGHPUT, evidence, [verdict]).points == []


def test_a_bound_without_a_value_is_drawn_at_its_size() -> None:
    unmeasured = replace(FAILED, outcome="not_measured", value=None, interval=None, world_size=64)
    curve = curve_of(PLAN, MEASUREMENTS, THROUGHPUT, unmeasured)
    assert (curve.bounds[-1].x, max(values(curve))) == (64, 8)


def facts_of(job: TrainingJob) -> list[ScalingFact]:
    return scaling_facts([MeasuredSize(gpus, rate, 3.6) for gpus, rate in MICRO.items()], job)


def test_fixed_time_saturates_while_throughput_grows() -> None:
    """Times as in table 12.4 of that chapter, "saturation effects beyond 8 GPUs": 556, 439, 380, 347, 330, 328 s."""
    facts = facts_of(TrainingJob(240 * 240, 316))
    assert [round(one.train_s) for one in facts] == pytest.approx([556, 439, 380, 347, 330, 328], abs=5)
    spots = sweet_spots(facts, deadline_s=400)
    assert spots == {"deadline": 4, "efficiency": 4, "gpu_cost": None, "energy_cost": None, "saturation": 8}


def test_facts_of_costs_and_of_three_doublings() -> None:
    (one,) = scaling_facts([MeasuredSize(4, 1000.0, 3.6)], TrainingJob(3.6e6, 0, 2.0, 0.5))
    assert (one.gpu_cost, one.energy_cost) == pytest.approx((8.0, 1.8))
    leap = scaling_facts([MeasuredSize(1, 100.0), MeasuredSize(8, 112.0)], TrainingJob(1e5))
    assert (leap[1].saved_share, leap[1].saved_per_doubling) == pytest.approx((0.107, 0.037), abs=0.001)
    assert sweet_spots(leap, None)["saturation"] == 1


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A simulated run of 16 A100s: weak scaling to all of them, strong scaling inside a node."""
    path = tmp_path_factory.mktemp("run") / "run"
    simulate = ["simulate", "--gpu-sku", "a100", "--gpus", "16", "--world-sizes", "16", "--rounds", "8"]
    main([*simulate, "--workloads", "vit-b-16-fp16", "--out", str(path)])
    return str(path)


def test_the_command_says_what_was_approved(two_nodes: str, tmp_path: Path, capsys: Printed) -> None:
    """Of a simulated run, of one that somebody published, and of one size alone, which no page has a table of."""
    imported, alone, source = (tmp_path / name for name in ("imported", "alone", "source"))
    source.mkdir()
    for one in PUBLISHED.glob("1gpu_weak_*"):
        shutil.copy(one, source)
    main(["import", "paik", str(PUBLISHED), "--out", str(imported)])
    main(["import", "paik", str(source), "--out", str(alone)])
    capsys.readouterr()
    asked = ["--images=1e6", "--deadline=200", "--gpu-hour-price=2", "--kwh-price=0.2", "--fixed-s=9"]
    for arguments in ([two_nodes, *asked], [str(imported), "--deadline=1"], [str(alone)]):
        assert main(["scaling", *arguments]) == 0
    assert_approved("scaling.txt", capsys.readouterr().out)
    main(["scaling", str(imported), "--format=json"])
    weak = next(one for one in json.loads(capsys.readouterr().out) if one["study"] == "weak/resnet152-fp16")
    assert [size["gpus"] for size in weak["sizes"]] == [1, 2, 4, 8]
    assert weak["sizes"][-1]["efficiency"] == pytest.approx(0.9745, abs=1e-4)
    assert (weak["simulated"], weak["sweet_spots"]["efficiency"]) == (False, 8)
    assert scaling_tables(read_evidence(RunDirectory.open(alone)), ()) == []


def test_sizes_that_were_judged_have_the_numbers_of_their_verdicts(
    two_nodes: str, tmp_path: Path, capsys: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = shutil.copytree(two_nodes, tmp_path / "judged")
    (run / "verdicts.json").touch()
    judged = judgement_with(replace(PASSED, workload="vit-b-16-fp16", world_size=16, value=0.123))
    monkeypatch.setattr("pytest_ddpscale.report.scaling.read_judged", lambda *_: judged)
    main(["scaling", str(run)])
    assert " 12.3 %" in capsys.readouterr().out


@pytest.mark.parametrize("option", ["--images", "--fixed-s", "--deadline", "--gpu-hour-price", "--kwh-price"])
def test_nonsense_is_refused(tmp_path: Path, option: str, capsys: Printed) -> None:
    for number in ["nan", "-1", "inf", "1e308", "0"]:
        with pytest.raises(SystemExit) as ended:
            main(["scaling", str(tmp_path), f"{option}={number}"])
        assert ended.value.code == USER_ERROR
        assert f"{option}: found {float(number):g}; expected a number above 0" in capsys.readouterr().err


def test_a_directory_that_is_no_run_is_refused(tmp_path: Path) -> None:
    assert main(["scaling", str(tmp_path)]) == USER_ERROR


def test_the_page_has_the_table_in_gpu_hours_and_kwh(two_nodes: str) -> None:
    evidence = read_evidence(RunDirectory.open(Path(two_nodes)))
    (_, weak, _), _ = scaling_tables(evidence, ())
    page = page_text(page_of(JUDGEMENT, RUN, evidence))
    assert all(f"| {' | '.join(map(plain, row))} |" in page for row in (weak.titles, *weak.rows))
    assert "\nScaling, as numbers\n" not in page_text(page_of(JUDGEMENT, RUN, evidence, goes_on=True))


def test_the_json_has_the_values_of_the_verdicts(two_nodes: str, tmp_path: Path, capsys: Printed) -> None:
    judged = RunDirectory(tmp_path / "judged")
    shutil.copytree(two_nodes, judged.path)
    settings = settings_from({"ddp_judge": str(judged.path)}, {}, {})
    session = AcceptanceSession(find_source(Site(settings, Path(), Path())))
    session.source.select(session.source.cases)
    judgement = session.conclude(interrupted=False, spoiled=())
    judged.write_json(judged.verdicts_json, judgement)
    main(["scaling", str(judged.path), "--format", "json"])
    with_verdicts = json.loads(capsys.readouterr().out)
    sizes = {one["study"]: {size["gpus"]: size for size in one["sizes"]} for one in with_verdicts}
    told = {
        "throughput_per_gpu": lambda size: size["samples_per_s"] / size["gpus"],
        "weak_scaling_efficiency": lambda size: size["efficiency"],
        "strong_scaling_speedup": lambda size: size["speedup"],
    }
    found = [one for one in judgement.verdicts if one.metric in told and one.value is not None]
    assert {one.metric for one in found} == set(told)
    for one in found:
        study = f"{'strong' if one.metric.startswith('strong') else 'weak'}/{one.workload}"
        assert told[one.metric](sizes[study][one.world_size]) == pytest.approx(one.value, rel=1e-14)
