"""A workload is sane, survives plan.json, and knows what forbids a comparison."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given

from pytest_ddpscale.plan.workload import Workload, incomparable_fields
from tests.builders.json_types import as_json
from tests.builders.plans import WORKLOADS
from tests.rows import rows

WORKLOAD = Workload("r", "resnet18", "fp32", 8, global_batch_size=16)


@given(WORKLOADS)
def test_a_workload_survives_json(workload: Workload) -> None:
    assert msgspec.convert(as_json(workload), Workload) == workload


@rows("field", ["batch_size", "image_size", "num_classes", "global_batch_size"])
@rows("number", [0, -1])
def test_a_size_below_one_is_refused(field: str, number: int) -> None:
    with pytest.raises(ValueError, match=f"^{field} is {number}; expected at least 1"):
        replace(WORKLOAD, **{field: number})  # type: ignore[arg-type]


def test_generations_are_comparable_at_different_batches_and_names() -> None:
    other = replace(WORKLOAD, name="s", batch_size=512, global_batch_size=None, num_classes=10)
    assert incomparable_fields(WORKLOAD, other) == []


def test_other_kernels_are_not_comparable() -> None:
    other = replace(WORKLOAD, model="resnet34", precision="bf16", image_size=64, memory_format="contiguous")
    assert incomparable_fields(WORKLOAD, other) == ["model", "precision", "image_size", "memory_format"]
