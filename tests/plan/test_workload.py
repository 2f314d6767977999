"""A workload is sane, survives plan.json, and knows what forbids a comparison."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given

from pytest_ddpscale.plan.image_family import ImageFamily
from pytest_ddpscale.plan.metric_catalogue import METRICS
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.plan.workload import Workload, incomparable_fields
from tests.builders.json_types import as_json
from tests.builders.plans import WORKLOADS
from tests.builders.workloads import with_settings
from tests.rows import rows

WORKLOAD = Workload("r", ImageFamily("resnet18"), "fp32", 8, global_batch_size=16)


@given(WORKLOADS)
def test_a_workload_survives_json(workload: Workload) -> None:
    assert msgspec.convert(as_json(workload), Workload) == workload


@rows("field", ["batch_size", "image_size", "num_classes", "global_batch_size"])
@rows("number", [0, -1])
def test_a_size_below_one_is_refused(field: str, number: int) -> None:
    with pytest.raises(ValueError, match=f"^{field} is {number}; expected at least 1"):
        with_settings(WORKLOAD, **{field: number})


def test_generations_are_comparable_at_different_batches_and_names() -> None:
    other = replace(with_settings(WORKLOAD, num_classes=10), name="s", batch_size=512, global_batch_size=None)
    assert incomparable_fields(WORKLOAD, other) == []


def test_other_kernels_are_not_comparable() -> None:
    other = replace(
        with_settings(WORKLOAD, model="resnet34", image_size=64, memory_format="contiguous"), precision="bf16"
    )
    assert incomparable_fields(WORKLOAD, other) == ["model", "precision", "image_size", "memory_format"]


def test_a_family_names_its_samples_once() -> None:
    class Tokens(ImageFamily):
        unit, samples = "tok", "tokens"

    text = replace(WORKLOAD, name="t", family=Tokens("gpt"))
    plan = Plan("a", "cpu", tuple(Study("weak", one, (), 5, 1.0, 1.0) for one in (WORKLOAD, text, WORKLOAD)))
    assert (plan.unit, plan.samples) == ("img or tok", "images or tokens")
    names = ("throughput_per_gpu", "images_per_joule", "busbw_gbps")
    assert [METRICS[name].unit_of(text.family) for name in names] == ["tok/s", "tok/J", "GB/s"]
