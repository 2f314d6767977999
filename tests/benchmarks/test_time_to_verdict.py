"""The time to verdict is counted as the plan's estimate counts it, over the published matrix."""

from __future__ import annotations

import pytest

from pytest_ddpscale.plan.estimate import STARTUP_S
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS, PACES
from pytest_ddpscale.util.packaged import packaged
from tests.benchmarks.scripts import benchmark

script = benchmark("time_to_verdict")


@pytest.fixture(scope="module")
def run() -> list[object]:
    found: list[object] = script.one_run(script.published_cluster(packaged("thresholds.yaml"), None), 0)
    return found


def test_every_configuration_of_the_published_matrix_is_asked_for() -> None:
    cluster = script.published_cluster(packaged("thresholds.yaml"), None)
    plan = cluster.plan()
    arms = [(study.id, arm.world_size) for study in plan.studies for arm in study.arms if arm.kind != "each"]
    assert len(arms) == len(set(arms)) == script.PUBLISHED_CONFIGURATIONS
    assert {(study.scaling, arm.world_size) for study in plan.studies for arm in study.arms} == {
        ("weak", 1), ("weak", 2), ("weak", 4), ("weak", 8), ("strong", 1), ("strong", 8),
    }  # fmt: skip
    assert all(case.requirement.source.measured is not None for case in cluster.cases)


def test_a_sound_node_fails_nothing_and_leaves_nothing_open(run: list[object]) -> None:
    result = script.summary([run])
    assert [study["failed"] + study["open"] for study in result["studies"]] == [0] * 8
    assert sum(study["passed"] for study in result["studies"]) >= 30
    assert all(FEWEST_ROUNDS <= study["rounds"] <= PACES["cuda"].rounds for study in result["studies"])


def test_the_total_is_all_studies_and_one_start_up(run: list[object]) -> None:
    result = script.summary([run, run])
    assert result["total_s"] == pytest.approx(STARTUP_S + sum(study["seconds"] for study in result["studies"]))
    assert result["total_s"] == result["slowest_total_s"]
    assert result["published_procedure_s"] / 3600 == pytest.approx(4.4)
    assert result["total_s"] < result["published_procedure_s"] / 8


def test_the_table_compares_with_what_is_expected(run: list[object], capsys: pytest.CaptureFixture[str]) -> None:
    script.show(script.summary([run]))
    said = capsys.readouterr().out
    assert "weak/resnet152-fp16" in said
    assert "expected of decisions: at most 14 min" in said
    assert "4.4 h" in said
