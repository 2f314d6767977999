"""Hints for a GPU model that a file does not have: similar names, and never another GPU."""

from __future__ import annotations

import pytest

from pytest_ddpscale.errors import SkuError
from pytest_ddpscale.thresholds.loading import nearest_names
from tests.builders.clusters import thresholds

MEANT = {
    "a100-40gb": ["a100-sxm4-40gb", "a100-pcie-40gb"],
    "v100-32gb": ["v100-sxm2-32gb"],
    "h200-141GB": ["h200-sxm-141gb"],
    "NVIDIA A100-SXM4-40GB": ["a100-sxm4-40gb"],
    "rtx-pro-6000-pcie-server": ["rtx-pro-6000-server"],
    "rtx-pro-6000-maxq": ["rtx-pro-6000-max-q", "rtx-pro-6000"],
    "cpus": ["cpu"],
    "cpu-referense": ["cpu-reference"],
    "b200-rack8": [],
    "racks": ["Rack"],
}
NOT_MEANT = (
    # no NVIDIA GPU
    "mi300x", "AMD Instinct MI300X", "gaudi2", "tpu-v4", "foo", "gpu", "", "x", "max1550",
    # NVIDIA GPUs that the file does not have
    "gb200", "gh200", "b300", "h20", "h800", "a10", "a100x", "v100s", "l40s", "t4", "rtx-4090", "rtx-6000-ada",
    "rtx-pro-6000d", "NVIDIA GH200 480GB", "NVIDIA RTX 6000 Ada Generation",
    # another memory size or form of one that it has
    "a100-60gb", "v100-64gb", "h100-94gb", "h200-80gb", "rtx-pro-6000-84gb", "a100-1g.5gb", "h100-nvl",
    "NVIDIA H100 NVL", "h200-nvl", "v100-pcie-16gb",
)  # fmt: skip


SKUS = thresholds().thresholds.skus
KNOWN = [*SKUS, *(alias for sku in SKUS.values() for alias in sku.aliases), "b200-rack7", "Rack"]


def test_similar_names_are_suggested_the_nearest_first() -> None:
    assert {asked: nearest_names(asked, KNOWN) for asked in MEANT} == MEANT


def test_another_gpu_is_never_suggested() -> None:
    assert {asked: nearest_names(asked, KNOWN) for asked in NOT_MEANT} == {asked: [] for asked in NOT_MEANT}


def test_the_refusal_has_the_hints() -> None:
    with pytest.raises(SkuError) as raised:
        thresholds().sku_name("a100-40gb")
    assert str(raised.value).endswith("Did you mean --gpu-sku=a100-sxm4-40gb or --gpu-sku=a100-pcie-40gb?")
    with pytest.raises(SkuError) as raised:
        thresholds().sku_name("mi300x")
    assert "Did you mean" not in str(raised.value)


def test_case_does_not_matter() -> None:
    assert thresholds().sku_name("A100-SXM4-40GB") == "a100-sxm4-40gb"
    assert thresholds().sku_name("B200") == "b200"
