"""Requirements become cases with names that are unique, stable and say the hardware."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.metric_catalogue import METRICS
from pytest_ddpscale.plan.planner import PACES, build_plan
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.thresholds.cases import cases_for, device_type, training_cases
from pytest_ddpscale.thresholds.loading import ThresholdsFile
from tests.builders.clusters import thresholds as packaged_thresholds
from tests.rows import rows
from tests.thresholds.conftest import ONE_NODE, RATIO_LINE, VALID, WEAK, WEAK_LINE, Load, changed


@pytest.fixture
def shipped() -> ThresholdsFile:
    return packaged_thresholds()


def test_cases_come_in_the_order_of_the_file(load: Load) -> None:
    cases = cases_for(load(VALID), "new", ONE_NODE)
    assert [case.id for case in cases] == ["weak_scaling_efficiency[r-8gpu]", "generation_ratio[r-1gpu-vs-old]"]


def test_a_case_says_the_line_of_its_requirement(load: Load, tmp_path: Path) -> None:
    weak, ratio = cases_for(load(VALID), "new", ONE_NODE)
    assert weak.where == f"{tmp_path / 'thresholds.yaml'}:{WEAK_LINE}"
    assert ratio.where == f"{tmp_path / 'thresholds.yaml'}:{RATIO_LINE}"


def test_spread_ranks_are_in_the_name_and_in_the_question(load: Load) -> None:
    text = changed(WEAK, WEAK.replace("of: r", "of: r, placement: spread"))
    spread = training_cases(cases_for(load(text), "new", ONE_NODE))[0]
    assert spread.id == "weak_scaling_efficiency[r-8gpu-spread]"
    assert [arm.name for arm in spread.question.arms] == ["alone", "ddp@8-spread"]


def test_a_case_asks_its_requirements_question(load: Load) -> None:
    weak = training_cases(cases_for(load(VALID), "new", ONE_NODE))[0]
    assert (weak.question.metric, weak.question.world_size) == (METRICS["weak_scaling_efficiency"], 8)
    assert weak.question.workload == weak.workload == load(VALID).thresholds.skus["new"].workloads["r"]


def test_only_a_ratio_has_a_reference_which_is_what_was_published(load: Load) -> None:
    weak, ratio = training_cases(cases_for(load(VALID), "new", ONE_NODE))
    assert (weak.reference_samples_per_s, ratio.reference_samples_per_s) == (None, 100.0)


def test_a_case_knows_the_peak_in_its_workloads_precision(shipped: ThresholdsFile) -> None:
    peaks = {
        (case.workload.precision, case.peak_tflops)
        for case in training_cases(cases_for(shipped, "a100-sxm4-80gb", ONE_NODE))
    }
    assert peaks == {("fp16", 312.0), ("bf16", 312.0)}
    assert {case.peak_tflops for case in training_cases(cases_for(shipped, "v100-sxm2-32gb", ONE_NODE))} == {125.0}
    assert {case.peak_tflops for case in training_cases(cases_for(shipped, "cpu", ONE_NODE))} == {None}


def test_a_case_knows_what_one_gpu_alone_has_to_reach_if_anything_says_so(shipped: ThresholdsFile) -> None:
    floors = {
        case.workload.name: case.floor_samples_per_s
        for case in training_cases(cases_for(shipped, "a100-sxm4-80gb", ONE_NODE))
    }
    assert floors["resnet152-fp16"] == 1130.02
    assert {case.floor_samples_per_s for case in training_cases(cases_for(shipped, "cpu", ONE_NODE))} == {29.0}


def test_of_two_bounds_for_one_gpu_alone_the_floor_is_the_lower(load: Load) -> None:
    floor = VALID.splitlines()[13]
    text = VALID.replace(floor, changed("published: paper", "published: paper, warn: 98", floor))
    assert {case.floor_samples_per_s for case in training_cases(cases_for(load(text), "old", ONE_NODE))} == {95.0}
    assert {case.floor_samples_per_s for case in training_cases(cases_for(load(VALID), "new", ONE_NODE))} == {None}


def test_a_warning_beside_a_failure_is_told_apart_by_its_severity(load: Load) -> None:
    cases = cases_for(
        load(VALID.replace(WEAK, WEAK.replace("bound: 0.95", "bound: 0.95, warn: 0.96"))), "new", ONE_NODE
    )
    assert [case.name for case in cases] == ["r-8gpu-fail", "r-8gpu-warn", "r-1gpu-vs-old"]
    bounds = [(case.requirement.severity, case.requirement.bound) for case in cases[:2]]
    assert bounds == [("fail", 0.95), ("warn", 0.96)]


def test_on_cpu_it_is_ranks_that_are_counted(load: Load) -> None:
    file = load(changed("{name: '^New$'}", "{device: cpu}"))
    assert cases_for(file, "new", ONE_NODE)[0].name == "r-8rank"
    assert [device_type(sku) for sku in file.thresholds.skus.values()] == ["cuda", "cpu"]


def test_names_of_the_shipped_file_are_unique_within_a_sku(shipped: ThresholdsFile) -> None:
    for sku in shipped.thresholds.skus:
        ids = [case.id for case in cases_for(shipped, sku, ONE_NODE)]
        assert len(ids) == len(set(ids)), sku


def test_names_of_the_shipped_file_need_no_quoting_by_pytest(shipped: ThresholdsFile) -> None:
    for sku in shipped.thresholds.skus:
        for case in cases_for(shipped, sku, ONE_NODE):
            assert case.name.isascii()
            assert not set(case.name) & set(" []:/'\"")


IN_WORDS = changed("{8: 0.97}", "{8: 0.97, node: 0.97, 2 nodes: 0.97, all: 0.97}", WEAK).replace(
    "bound: 0.95, because: rounded down", "margin: 5 %"
)


@rows(
    ("layout", "expected"),
    [
        (Layout(1, 1), {"r-8gpu": 8}),
        (Layout(1, 4), {"r-8gpu": 8, "r-node": 4}),
        (Layout(1, 8), {"r-8gpu": 8, "r-node": 8}),
        (Layout(2, 1), {"r-8gpu": 8, "r-2nodes": 2, "r-all": 2}),
        (Layout(2, 8), {"r-8gpu": 8, "r-node": 8, "r-2nodes": 16, "r-all": 16}),
        (Layout(16, 4), {"r-8gpu": 8, "r-node": 4, "r-2nodes": 8, "r-all": 64}),
    ],
)
def test_a_world_size_in_words_is_a_number_of_ranks_where_it_is_measured_and_its_word_in_the_name(
    load: Load, layout: Layout, expected: dict[str, int]
) -> None:
    cases = training_cases(cases_for(load(VALID.replace(WEAK, IN_WORDS)), "new", layout))
    assert {case.name: case.world_size for case in cases if "-vs-" not in case.name} == expected
    assert all(case.question.world_size == case.world_size for case in cases)


def test_what_comes_to_the_same_number_of_ranks_is_measured_once(load: Load) -> None:
    cases = training_cases(cases_for(load(VALID.replace(WEAK, IN_WORDS)), "new", Layout(2, 8)))
    questions = [case.question for case in cases if "-vs-" not in case.name]
    assert len(questions) == 4
    plan = build_plan(Plan("new", "cuda", (), nodes=2, ranks_per_node=8), questions, PACES["cuda"])
    (study,) = plan.studies
    assert [arm.name for arm in study.arms] == ["alone", "ddp@8", "ddp@16", "each@16"]


@rows(
    ("beyond", "layout", "missing"),
    [
        ("", Layout(2, 4), {"r-8gpu": "needs 8 GPUs on one node; a node has 4 here"}),
        ("asked", Layout(2, 4), {"r-8gpu": ""}),
        ("dropped", Layout(2, 4), {}),
        ("missing", Layout(2, 4), {"r-8gpu": "needs 8 GPUs on one node; a node has 4 here"}),
        ("missing", Layout(2, 8), {"r-8gpu": ""}),
        ("missing", Layout(1, 4), {"r-8gpu": ""}),
    ],
)
def test_a_number_of_ranks_that_a_node_of_several_does_not_have_is_what_the_sku_says(
    load: Load, beyond: str, layout: Layout, missing: dict[str, str]
) -> None:
    said = f"\n    beyond_node: {beyond}" if beyond else ""
    cases = cases_for(load(changed("detect: {name: '^New$'}", f"detect: {{name: '^New$'}}{said}")), "new", layout)
    assert {case.name: case.missing for case in cases if case.world_size == 8} == missing


def test_no_shipped_bound_of_one_node_is_asked_across_the_network(shipped: ThresholdsFile) -> None:
    for sku, said in shipped.thresholds.skus.items():
        for case in cases_for(shipped, sku, Layout(2, 4)):
            is_of_more = isinstance(case.requirement.world_size, int) and case.requirement.world_size > 4
            if said.beyond_node != "asked":
                assert bool(case.missing) == is_of_more, (sku, case.id)
        assert said.beyond_node == ("dropped" if sku == "cpu" else "missing")
