"""FLOPs of an image: torch's counter against published counts of multiply-adds."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from pytest_ddpscale.worker.model import _convolution_backward_flops, flops_per_sample, workload_flops_record
from pytest_ddpscale.worker.training import build_model
from tests.builders.trained import CPU, TINY, TRANSFORMER, study
from tests.builders.workloads import with_settings

AT_224 = with_settings(TINY, image_size=224, num_classes=1000)


@pytest.mark.parametrize(
    ("name", "forward_gmac", "tolerance"),
    [
        # "GFLOPS" of torchvision's table of models are multiply-adds of one forward pass.
        ("resnet50", 4.09, 0.02),
        ("vit_b_16", 17.56, 0.01),
        # First layers, whose input wants no gradient, weigh more here.
        ("efficientnet_b0", 0.39, 0.04),
    ],
)
def test_forward_and_backward_cost_three_times_the_published_forward_pass(
    name: str, forward_gmac: float, tolerance: float
) -> None:
    workload = with_settings(AT_224, model=name)
    flops = flops_per_sample(build_model(workload, CPU), workload)
    assert flops == pytest.approx(3 * 2 * forward_gmac * 1e9, rel=tolerance)


def test_attention_is_counted() -> None:
    """2 layers, each with scores and values of 197 tokens in 64 dimensions, once forward and twice backward."""
    workload = with_settings(TRANSFORMER, image_size=224)
    short = with_settings(workload, image_size=112)
    tokens, short_tokens = 197, 50
    difference = flops_per_sample(build_model(workload, CPU), workload)
    difference -= flops_per_sample(build_model(short, CPU), short) * tokens / short_tokens
    attention = 2 * 3 * 2 * 2 * 64 * (tokens**2 - short_tokens**2 * tokens / short_tokens)
    assert difference == pytest.approx(attention, rel=0.05)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_convolutions_without_groups_are_counted_as_torch_does(transposed: bool, bias: bool) -> None:
    convolution = (nn.ConvTranspose2d if transposed else nn.Conv2d)(6, 10, 3, stride=2, padding=1, bias=bias)
    image = torch.randn(4, 6, 15, 15, requires_grad=True)
    formulas = {torch.ops.aten.convolution_backward: _convolution_backward_flops}
    counts = []
    for mapping in (None, formulas):
        with FlopCounterMode(display=False, custom_mapping=mapping) as counter:
            convolution(image).sum().backward()
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0


def test_counting_leaves_the_model_where_it_was_and_without_gradients() -> None:
    model = build_model(TINY, CPU)
    flops_per_sample(model, TINY)
    assert all(parameter.device == CPU and parameter.grad is None for parameter in model.parameters())
    counted = [buffer for name, buffer in model.named_buffers() if name.endswith("num_batches_tracked")]
    assert sum(counted) == 0 < len(counted)


def test_the_record_has_the_operations_of_an_image() -> None:
    workload = with_settings(TINY, model="resnet18")
    record = workload_flops_record(study(workload=workload), build_model(workload, CPU))
    assert record is not None
    assert record.flops_per_sample == pytest.approx(3 * 2 * 0.037e9, rel=0.03)
    assert record.study == "weak/tiny"
