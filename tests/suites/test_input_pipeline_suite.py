"""Loading beside synthetic data: which arms there are, which setting is recommended, and when loading is to blame."""

from __future__ import annotations

from dataclasses import replace

from pytest_ddpscale.plan.arm import Arm, Variant
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.plan.workload import ImageFolderData
from pytest_ddpscale.suites.input_pipeline_report import (
    LoadedArm,
    bottleneck,
    input_pipeline_report,
    loaded_arms,
    recommended,
)
from pytest_ddpscale.suites.input_pipeline_suite import SYNTHETIC
from pytest_ddpscale.suites.suite import MeasuredSuite
from tests.approved import assert_approved
from tests.builders.judged import WORKLOAD, Found, evidence_of_plan, make_measurement
from tests.suites.run_records import SUITE_RECORD, text_of

LOADED = replace(WORKLOAD, data=ImageFolderData("/images"))
VARIANTS = (SYNTHETIC, Variant(workers=0), Variant(workers=2, prefetch=2), Variant(workers=4, prefetch=2))
STUDY = Study("weak", LOADED, tuple(Arm("ddp", 2, 4, variant=one) for one in VARIANTS), FEWEST_ROUNDS, 1.0, 1.0)
PLAN = Plan("a100", "cuda", (STUDY,), ranks_per_node=2)


def suite_of(paces: tuple[float, ...], noise: float = 0.001, error: str = "") -> MeasuredSuite:
    """Arms at these paces, in img/s; a rank waits for data in a tenth of its time, and rank 1 in twice as much."""
    measured = [
        make_measurement(
            STUDY.id, arm, number, rank, pace * (1 + noise * ((number * 7 + at * 3) % 5 - 2)),
            waited_s=None if at == 0 else 10 * 0.1 * (1 + rank) * 4 / pace,
        )
        for number in range(STUDY.rounds)
        for at, (arm, pace) in enumerate(zip(STUDY.arms, paces, strict=False))
        for rank in range(2)
    ]  # fmt: skip
    evidence = evidence_of_plan(PLAN, measured, errors={STUDY.id: error} if error else None)
    return MeasuredSuite(evidence, SUITE_RECORD, 0.95)


def test_the_fewest_workers_that_are_as_fast_as_the_fastest_are_recommended() -> None:
    arms = loaded_arms(suite_of((100, 50, 98, 98.01)))
    assert [round(one.efficiency.value, 2) for one in arms if one.efficiency] == [0.5, 0.98, 0.98]
    found = recommended(arms)
    assert found is not None
    assert found.name == "workers=2,prefetch=2"
    assert found.is_slower_than_best is False
    assert [one.is_slower_than_best for one in arms] == [False, True, False, False]


def test_synthetic_data_is_not_recommended_though_it_is_the_fastest() -> None:
    found = recommended(loaded_arms(suite_of((100, 50, 60, 70))))
    assert found is not None
    assert found.name == "workers=4,prefetch=2"


def arm_of(workers: int, *limits: float) -> LoadedArm:
    pace, arm = Found(100.0, None), Arm("ddp", 2, 4, variant=Variant(workers=workers))
    return LoadedArm(arm, pace, Found(limits[0], limits if len(limits) == 2 else None), None, 0.1, 1.0)


def test_loading_is_to_blame_only_as_far_as_the_intervals_say() -> None:
    rows: list[tuple[list[tuple[float, ...]], str]] = [
        ([(0.951, 0.99), (0.90, 0.94)], "is not"),
        ([(0.90, 0.949), (0.91, 0.94)], "is"),
        ([(0.90, 0.949), (0.91, 0.96)], "may be"),  # another setting may keep up
        ([(0.90, 0.96)], "may be"),
        ([(0.96, 1.01)], "is not"),
        ([(0.5,)], "may be"),
        ([], "may be"),
    ]
    for efficiencies, answer in rows:
        assert bottleneck([arm_of(workers, *limits) for workers, limits in enumerate(efficiencies)]) == answer


def test_the_report_says_what_was_waited_and_what_to_set() -> None:
    report = input_pipeline_report(suite_of((100, 50, 80, 80)))
    assert report.values["is_bottleneck"] is True
    assert not report.problems
    assert_approved("suite-input-pipeline.txt", text_of(report))


def test_an_arm_that_is_missing_is_said_with_the_reason() -> None:
    report = input_pipeline_report(suite_of((100, 50), error="rank 1 on n1 failed: /images/x.jpg: is not an image"))
    assert report.problems == [
        "workers=2,prefetch=2, workers=4,prefetch=2: rank 1 on n1 failed: /images/x.jpg: is not an image"
    ]
    assert report.values["recommended"] == "workers=0"


def test_nothing_measured_is_told_too() -> None:
    report = input_pipeline_report(suite_of((), error="no room"))
    assert report.headline == "resnet18 in fp32 on folder images: no setting of the loader was measured"
    assert report.sections == []
