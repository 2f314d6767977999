"""Hints for a GPU model that a file does not have: the same GPU in other words, and never another GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_ddpscale.errors import SkuError
from pytest_ddpscale.thresholds.nearest_skus import MOST_HINTS, nearest_skus, read_gpu_name
from tests.builders.clusters import thresholds

A100_80, A100_40 = ["a100-sxm4-80gb", "a100-pcie-80gb"], ["a100-sxm4-40gb", "a100-pcie-40gb"]

MEANT = {
    # memory size, with and without its unit
    "a100-40gb": A100_40,
    "A100 80 GB": A100_80,
    "a100-40": A100_40,
    "v100-32gb": ["v100-sxm2-32gb"],
    "V100-16g": ["v100-sxm2-16gb"],
    "v100-32": ["v100-sxm2-32gb"],
    "h100-80gb": ["h100", "h100-pcie"],
    "h200-141GB": ["h200"],
    "b200-192gb": ["b200"],
    "a6000-48gb": ["a6000"],
    # form
    "a100-sxm": ["a100-sxm4-80gb", "a100-sxm4-40gb"],
    "a100pcie": ["a100-pcie-80gb", "a100-pcie-40gb"],
    "dgx-a100": ["a100-sxm4-80gb", "a100-sxm4-40gb"],
    "h100-sxm": ["h100", "h100-64gb"],
    "hgx-b200": ["b200"],
    "a100-smx4-80gb": A100_80,  # a slip of the finger is no form
    "tesla-v100": ["v100-sxm2-16gb", "v100-sxm2-32gb"],
    # cards for workstations and servers
    "rtxa6000": ["a6000"],
    "rtx-pro-6000-maxq": ["rtx-pro-6000-max-q"],
    "pro-6000-max-q": ["rtx-pro-6000-max-q"],
    "rtx pro 6000 workstation": ["rtx-pro-6000-workstation"],
    "rtx-pro-6000-pcie-server": ["rtx-pro-6000-server"],
    # names that NVML gives
    "NVIDIA A100-SXM4-40GB": ["a100-sxm4-40gb"],
    "nvidia a100-sxm4-40gb": ["a100-sxm4-40gb"],
    "NVIDIA A100 80GB PCIe": ["a100-pcie-80gb"],
    "Tesla V100-SXM2-32GB": ["v100-sxm2-32gb"],
    "NVIDIA H100 80GB HBM3": ["h100"],
    "NVIDIA H100 PCIe": ["h100-pcie"],
    "NVIDIA B200": ["b200"],
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": ["rtx-pro-6000-server"],
    "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition": ["rtx-pro-6000-max-q"],
    # no GPU, and spelled alike
    "cpus": ["cpu"],
    "cpu-referense": ["cpu-reference"],
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


@pytest.mark.parametrize(("asked", "meant"), MEANT.items())
def test_what_was_meant_is_suggested_the_nearest_first(asked: str, meant: list[str]) -> None:
    assert nearest_skus(asked, thresholds().thresholds.skus) == meant


@pytest.mark.parametrize("asked", NOT_MEANT)
def test_another_gpu_is_never_suggested(asked: str) -> None:
    assert nearest_skus(asked, thresholds().thresholds.skus) == []


@pytest.mark.parametrize("asked", ["rtx pro 6000", "RTXPRO6000", "RTX 6000 Pro", "rtx-pro-6000-96gb"])
def test_several_that_it_may_be_are_all_suggested(asked: str) -> None:
    editions = {"rtx-pro-6000-server", "rtx-pro-6000-workstation", "rtx-pro-6000-max-q"}
    assert set(nearest_skus(asked, thresholds().thresholds.skus)) == editions
    assert len(editions) <= MOST_HINTS


def test_a_sites_own_names_are_suggested_too() -> None:
    skus = dict(thresholds().thresholds.skus)
    skus["b200-rack7"] = replace(skus["b200"], aliases=("rack7",))
    assert nearest_skus("b200-rack8", skus) == ["b200-rack7", "b200"]
    assert nearest_skus("rack8", skus) == ["rack7"]


@pytest.mark.parametrize("sku", list(thresholds().thresholds.skus))
def test_every_gpu_is_found_by_its_own_name(sku: str) -> None:
    """What the parser reads of a name contradicts nothing of the SKU that has it."""
    found = nearest_skus(f" {sku} ", thresholds().thresholds.skus)
    assert found[:1] == [sku]


def test_what_a_name_says() -> None:
    said = read_gpu_name("NVIDIA A100-SXM4-40GB")
    assert (set(said.families), said.memory_gb, said.form) == ({"a100"}, 40.0, "sxm")
    said = read_gpu_name("RTX PRO 6000 Blackwell Max-Q Workstation Edition")
    assert (set(said.families), said.memory_gb, said.form) == ({"rtx pro 6000"}, None, "max-q")


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
