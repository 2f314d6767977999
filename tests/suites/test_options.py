"""Workloads that options name."""

from __future__ import annotations

import argparse

import pytest

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.settings import whole
from pytest_ddpscale.suites.inference import Inference
from pytest_ddpscale.suites.options import counts, several, workload_of
from tests.builders.clusters import thresholds

SKUS = thresholds().thresholds.skus


def test_a_workload_of_ones_own_is_trained_as_the_sku_trains_that_model() -> None:
    sku = SKUS["a100-sxm4-80gb"]
    vit = workload_of(sku, "vit_b_16", "bf16", None, "cuda")
    assert (vit.name, vit.precision) == ("vit-b-16-bf16", "bf16")
    assert (vit.family.image_size, vit.family.memory_format) == (224, "contiguous")
    other = workload_of(sku, "resnet34", "fp16", 128, "cuda")
    assert (other.name, other.family.image_size, other.family.memory_format) == ("resnet34-fp16", 128, "channels_last")
    assert workload_of(sku, "resnet34", "fp32", None, "cpu").family.memory_format == "contiguous"


def test_a_model_that_torchvision_has_not_is_refused() -> None:
    with pytest.raises(OptionError, match="--model: found 'resnet51'"):
        workload_of(SKUS["cpu"], "resnet51", "fp32", None, "cpu")


def test_lists_have_each_value_once_and_an_option_that_repeats_has_all() -> None:
    assert (several(whole(9))("3, 1,3"), counts(9)("3, 1,3")) == ([3, 1], [1, 3])
    parser = argparse.ArgumentParser()
    Inference().add_to(parser)
    assert ["a=1", "b=2"] in vars(parser.parse_args(["--ddp-note=a=1", "--ddp-note=b=2"])).values()
