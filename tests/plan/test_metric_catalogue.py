"""Every metric says all that is needed of it, knows the arms it takes, and nothing else knows one by its name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.families.image import ImageFamily
from pytest_ddpscale.judge.metrics import VALUE_OF
from pytest_ddpscale.plan.arm import USUAL, Arm, OneGpu
from pytest_ddpscale.plan.metric_catalogue import METRICS, Metric, RangeKind
from pytest_ddpscale.plan.operation import COLLECTIVES, KINDS
from pytest_ddpscale.plan.planner import Question
from pytest_ddpscale.plan.workload import ImageFolderData, Workload
from pytest_ddpscale.util.packaged import packaged
from tests.rows import rows
from tests.tables import assert_approved, each_block

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "pytest_ddpscale"
# Keys of records, parameters and units that are called as a metric is, and mean something else.
NAMESAKES = {
    ("simulate/machine.py", "ddp_overhead"),
    # The same: the breakdown shows them of each arm, whatever is required.
    *(
        ("report/where_time_goes.py", name) for name in (
            "peak_memory_gib", "step_time_p95", "model_flops_utilization", "device_utilization", "images_per_joule",
        )
    ),
}  # fmt: skip

of_every_metric = rows("metric", METRICS.values(), ids=METRICS)


@of_every_metric
def test_it_has_words_for_people(metric: Metric) -> None:
    assert re.fullmatch(r"[a-z][a-z0-9_]+", metric.name)
    assert metric.title[0].isupper() or metric.title[0].isdigit()
    assert metric.meaning.endswith(".")
    assert len(metric.formula) > 5
    assert len({metric.title, metric.meaning, metric.formula}) == 3


def test_no_two_have_the_same_words() -> None:
    for words in ("title", "meaning", "formula"):
        assert len({getattr(metric, words) for metric in METRICS.values()}) == len(METRICS), words


@of_every_metric
def test_what_is_plausible_is_a_range_in_which_bounds_lie(metric: Metric) -> None:
    least, most = metric.range_at(8)
    assert 0 <= least < most < float("inf")
    lowest, highest = metric.range_at(8, "credible")
    assert lowest <= least
    assert highest >= most or highest >= 1


@of_every_metric
def test_it_has_arms_and_ranks_for_which_it_means_something(metric: Metric) -> None:
    assert 1 <= metric.minimum_world_size <= (metric.maximum_world_size or metric.minimum_world_size)
    assert metric.measured != metric.baseline or metric.baseline_variant != USUAL
    assert (len(metric.probes) > 0) == (metric.subject == "probe")


@of_every_metric
def test_it_stands_wherever_a_metric_has_to(metric: Metric) -> None:
    """What is missing is named with its file: docs/adding.md, "A metric"."""
    marks = "".join(path.read_text(encoding="utf-8") for path in packaged("acceptance").glob("test_*.py"))
    is_of_training = metric.subject == "workload" and not metric.name.endswith("_uniformity")
    lines = (ROOT / "tests" / "judge" / "verdicts.txt").read_text(encoding="utf-8")
    stands = {
        "acceptance/: a test that asks for it": len(re.findall(rf'requirement\([^)]*"{metric.name}"', marks)) == 1,
        "tests/plan/metrics.txt: its name": f"\n{metric.name}\n" in TABLE.read_text(encoding="utf-8"),
        "judge/metrics.py: its function in VALUE_OF": not is_of_training or metric.name in VALUE_OF,
        "tests/judge/verdicts.txt: a line that asks for it": not is_of_training or f"{metric.name}:" in lines,
    }
    assert [where for where, does in stands.items() if not does] == [], f"add {metric.name} to these files"


def test_only_their_functions_know_them_by_name() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}
    any_name = re.compile("|".join(METRICS))  # most modules have none, and need not be parsed
    named = {
        (str(path.relative_to(PACKAGE)), node.value)
        for path, text in texts.items()
        if any_name.search(text) and path.name not in ("metric_catalogue.py", "operation.py", "metrics.py")
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and node.value in METRICS
    }
    assert named == NAMESAKES


WORKLOAD = Workload("r", ImageFamily("resnet18"), "fp32", 8, global_batch_size=16)
IMAGES = ImageFolderData("/images")
TABLE = Path(__file__).with_name("metrics.txt")


def told(name: str) -> Iterator[str]:
    """What a bound on a metric may be and shows, for 8 ranks, and the arms that it takes."""
    metric = METRICS[name]
    ranks = f"{metric.minimum_world_size} to {metric.maximum_world_size or 'all'} ranks"
    slowed = ", slowed by one rank" * metric.slowed_by_one_rank + ", accepts" * metric.carries_acceptance
    yield f"{metric.subject} of {ranks}, {metric.bound_key}, {metric.scale}{slowed}"
    kinds = get_args(RangeKind)
    yield ", ".join(f"{kind} {least:g} … {most:g}" for kind in kinds for least, most in [metric.range_at(8, kind)])
    for size in (1, 4, 16) if metric.subject == "workload" else ():
        if metric.minimum_world_size <= size <= (metric.maximum_world_size or size):
            workload = replace(WORKLOAD, data=IMAGES) if metric.reads_folder else WORKLOAD
            asked = [Question(metric, workload, size, one_gpu=one_gpu).arms for one_gpu in get_args(OneGpu)]
            said = [" ".join(f"{arm.name}:{arm.batch_size}" for arm in arms) for arms in asked]
            yield f"{size}: " + ", under DDP ".join(dict.fromkeys(said))


@each_block(TABLE)
def test_what_a_bound_is_and_takes(block: str) -> None:
    assert_approved(TABLE, block, told)


@rows("world_size", [3, 5, 32])
def test_a_global_batch_that_ranks_cannot_share_evenly_is_refused(world_size: int) -> None:
    with pytest.raises(ValueError, match=f"^global_batch_size 16 of r cannot be shared evenly by {world_size} ranks$"):
        _ = Question(METRICS["strong_scaling_speedup"], WORKLOAD, world_size).measured


@rows("arm", ["measured", "baseline"])
def test_strong_scaling_without_a_global_batch_is_refused(arm: str) -> None:
    workload = replace(WORKLOAD, global_batch_size=None)
    with pytest.raises(ValueError, match=r"^workload r has no global_batch_size, which strong scaling divides$"):
        getattr(Question(METRICS["strong_scaling_efficiency"], workload, 2), arm)


@given(st.integers(1, 64), st.integers(1, 64))
def test_ranks_of_strong_scaling_train_the_whole_global_batch(world_size: int, share: int) -> None:
    workload = replace(WORKLOAD, global_batch_size=world_size * share)
    alone, arm = Question(METRICS["strong_scaling_efficiency"], workload, world_size).arms
    assert arm.batch_size * arm.world_size == workload.global_batch_size
    assert alone == Arm("alone", 1, world_size * share)


def test_each_probe_is_measured_by_one_metric_of_as_many_ranks_as_it_takes() -> None:
    of_values = [metric for metric in METRICS.values() if not metric.compares_places]
    measured_by = {kind: metric for metric in of_values for kind in metric.probes}
    assert sorted(measured_by) == sorted(KINDS)
    assert sum(len(metric.probes) for metric in of_values) == len(measured_by)
    for kind, metric in measured_by.items():
        single = (metric.minimum_world_size, metric.maximum_world_size) == (1, 1)
        assert single == (KINDS[kind].named != "size"), kind
        assert single or metric.minimum_world_size == 2, kind
    assert {measured_by[kind].name for kind in COLLECTIVES} == {"busbw_gbps"}


def test_probes_of_alike_places_are_compared_too() -> None:
    assert METRICS["probe_uniformity"].probes == ("memory-copy", "host-to-device", "device-to-host", "send-recv")
    assert not METRICS["probe_uniformity"].tells_speed


def test_images_from_a_folder_are_compared_with_synthetic_ones_of_the_same_ranks() -> None:
    metric = METRICS["input_pipeline_efficiency"]
    synthetic, loaded = Question(metric, replace(WORKLOAD, data=IMAGES), 4).arms
    assert (synthetic.name, loaded) == ("ddp@4+data=synthetic", Arm("ddp", 4, 8))
    assert [arm.data_of(replace(WORKLOAD, data=IMAGES)) for arm in (synthetic, loaded)] == ["synthetic", IMAGES]
    with pytest.raises(ValueError, match=r"input_pipeline_efficiency needs `data: \{folder: PATH\}` in the workload r"):
        _ = Question(metric, WORKLOAD, 4).measured


@rows("metric", METRICS.values(), ids=lambda metric: metric.name)
def test_every_bound_that_judges_anything_is_possible(metric: Metric) -> None:
    low, high = metric.range_at(8, "possible")
    least, most = metric.range_at(8)
    assert low <= least
    assert most <= high
