"""Models that the simulator knows: their computation, gradients, memory and kernel launches per step."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.plan.workload import BYTES_PER_GRADIENT, Workload

# Shares of a step: the backward pass costs two forward passes and can hide communication.
BACKWARD_SHARE = 2 / 3
FORWARD_SHARE = 1 - BACKWARD_SHARE
# Efficiency above the published one that GPUs exactly alike would reach, before the wait for the slowest of noisy steps
# (0.4 points on 8 GPUs at 0.3 %). The published nodes leave room for 0 to 0.011: their clocks differ by 3 %, but how
# long they waited was not published.
UNWAITED = 0.007
_TABLE_PX = 224
# Weight, gradient, SGD's momentum and DDP's bucket, in fp32.
_STATE_BYTES_PER_PARAMETER = 16
# Published peaks of ResNet-152: 44.1 GiB at 512 images and 22.4 GiB at 256 (willgpaik/pytorch-ddp-scaling-benchmark,
# A100): 86.7 MiB an image, at 11.5 billion multiply-accumulates. ViT-B/16 needs half as much for each of them.
_ACTIVATION_BYTES_PER_MAC = 7.9e-3


@dataclass(frozen=True)
class Model:
    """One torchvision classification model.

    Attributes:
        parameters: their number, with a head of 1000 classes.
        forward_macs: multiply-accumulates of one 224 px image's forward pass.
        host_step_s: least time of a step at any batch, for Python and kernel launches.
    """

    parameters: int
    forward_macs: float
    host_step_s: float

    @property
    def gradient_bytes(self) -> int:
        """Bytes that the all-reduces of one step carry."""
        return self.parameters * BYTES_PER_GRADIENT

    def flops_per_sample(self, image_size: int) -> float:
        """FLOPs of a training step per image, 2 per multiply-accumulate; the backward pass costs two forward passes.

        The value scales with the image's area: exact for 224 px, close enough for others.
        """
        return 6 * self.forward_macs * (image_size / _TABLE_PX) ** 2

    def memory_bytes(self, batch_size: int, image_size: int) -> float:
        """Rough peak memory of a training step, in bytes."""
        activations = _ACTIVATION_BYTES_PER_MAC * self.forward_macs * (image_size / _TABLE_PX) ** 2
        return self.state_bytes + activations * batch_size

    @property
    def state_bytes(self) -> float:
        """Memory of a rank that does not depend on the batch, in bytes."""
        return _STATE_BYTES_PER_PARAMETER * self.parameters


# Parameters and multiply-accumulates: torchvision's model documentation (num_params and GFLOPS of the first listed
# weights; its "FLOPs" are multiply-accumulates). Host times: published host-bound rows take about 100 ms a step at any
# batch for ResNet-152 (A100 and V100) and about 60 ms for ViT-B/16 (V100); the others follow from their layers.
_MODELS = {
    "shufflenet_v2_x0_5": Model(1_366_792, 0.040e9, 0.015),
    "squeezenet1_1": Model(1_235_496, 0.349e9, 0.010),
    "resnet18": Model(11_689_512, 1.814e9, 0.012),
    "resnet34": Model(21_797_672, 3.664e9, 0.022),
    "resnet50": Model(25_557_032, 4.089e9, 0.033),
    "resnet101": Model(44_549_160, 7.801e9, 0.066),
    "resnet152": Model(60_192_808, 11.514e9, 0.100),
    "resnext50_32x4d": Model(25_028_904, 4.230e9, 0.033),
    "resnext101_32x8d": Model(88_791_336, 16.414e9, 0.066),
    "vit_b_16": Model(86_567_656, 17.564e9, 0.060),
    "vit_b_32": Model(88_224_232, 4.409e9, 0.060),
    "vit_l_16": Model(304_326_632, 61.555e9, 0.120),
}


def model_of(workload: Workload) -> Model:
    """The model that a workload trains.

    Raises:
        OptionError: the simulator does not know the model, or the workload trains only part of it.
    """
    if not workload.family.trains_all:
        raise OptionError(
            f"workload {workload.name}", "trains a classifier on frozen features (classifier_hidden)",
            "a workload that trains a whole model", "Name the other workloads with --workloads.",
        )  # fmt: skip
    model = _MODELS.get(workload.family.model)
    if model is None:
        raise OptionError(
            f"workload {workload.name}", f"model {workload.family.model!r} is not known to the simulator",
            f"one of {', '.join(_MODELS)}", "Name the other workloads with --workloads.",
        )  # fmt: skip
    return model
