"""The table of models against torchvision's own figures."""

from __future__ import annotations

import pytest

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.families.image import ImageFamily
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.simulate.models import _MODELS, model_of
from tests.builders.clusters import thresholds


def workload(model: str) -> Workload:
    return Workload("w", ImageFamily(model), "fp16", 8)


def test_parameters_and_work_are_torchvisions() -> None:
    for name in sorted(_MODELS):
        models = pytest.importorskip("torchvision").models
        meta = next(iter(models.get_model_weights(name))).meta
        assert model_of(workload(name)).parameters == meta["num_params"]
        assert model_of(workload(name)).forward_macs == pytest.approx(meta["_ops"] * 1e9)


def test_a_training_step_is_three_forward_passes_of_two_operations_each() -> None:
    resnet = model_of(workload("resnet152"))
    # torch.utils.flop_counter counts 68.85e9, because nobody needs the gradient of the images.
    assert resnet.flops_per_sample(224) == pytest.approx(68.85e9, rel=0.005)
    assert resnet.flops_per_sample(112) == pytest.approx(resnet.flops_per_sample(224) / 4)


def test_gradients_are_fp32() -> None:
    assert model_of(workload("resnet152")).gradient_bytes == pytest.approx(241e6, rel=0.002)


@pytest.mark.parametrize(("batch_size", "published_gib"), [(512, 44.11), (256, 22.44), (32, 3.54)])
def test_memory_is_near_what_was_published(batch_size: int, published_gib: float) -> None:
    assert model_of(workload("resnet152")).memory_bytes(batch_size, 224) / 2**30 == pytest.approx(
        published_gib, rel=0.05
    )


def test_every_model_of_the_thresholds_is_known() -> None:
    for sku in thresholds().thresholds.skus.values():
        for found in sku.workloads.values():
            assert model_of(found).parameters > 0


def test_an_unknown_model_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(OptionError, match=r"'swin_t' is not known.*resnet152.*--workloads"):
        model_of(workload("swin_t"))
