"""The trained model of a rank: a whole model, or a classifier on the features of a frozen one."""

from __future__ import annotations

import pickle
import re
from collections import OrderedDict
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torchvision.models import SqueezeNet

from pytest_ddpscale.plan.image_family import FEATURES, ImageFamily
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.worker.inference import take_statistics
from pytest_ddpscale.worker.seeded import reproducible
from pytest_ddpscale.worker.training import build_model

_IMAGENET_CLASSES = 1000
_STATISTICS_SEED = 20_233
# torchvision's published DenseNets use names from before torch 0.4: norm.1 instead of norm1.
_OLD_DENSENET = re.compile(r"(denselayer\d+\.(?:norm|relu|conv))\.(?=[12]\.)")


def build_trained_model(workload: Workload, device: torch.device) -> nn.Module:
    """The model of a workload, the same on every rank of one SKU.

    Raises:
        RuntimeError: the weights of frozen features cannot be read, or belong to another model.
        ValueError: raised by `build_model`.
    """
    family = workload.family
    if family.trains_all:
        return build_model(workload, device)
    features = build_model(replace(workload, family=replace(family, num_classes=_IMAGENET_CLASSES)), device)
    if family.feature_weights is not None:
        _load(features, family.feature_weights, family.model, device)
    _remove_head(features)
    if family.feature_weights is None:
        # Reproducible, because statistics affect every rank's results, which are compared bit for bit.
        with reproducible(device, _STATISTICS_SEED):
            take_statistics(features, workload, device)
    return OnFrozenFeatures(features, workload, device)


class OnFrozenFeatures(nn.Module):
    """A classifier on a frozen network, which stays in evaluation mode and gets no gradients.

    (batch, 3, image_size, image_size) → (batch, num_classes). Like in Banerjee and Shah, "Benchmarking Distributed
    Training and Inference on NVIDIA's A6000 GPUs": three linear layers with ReLU and dropout between them, or one.

    Args:
        features: (batch, 3, height, width) → (batch, features).
    """

    def __init__(self, features: nn.Module, workload: Workload, device: torch.device) -> None:
        super().__init__()
        self.features = features.requires_grad_(False)
        with device:
            self.classifier = _classifier(workload.family)
        self.train()

    def train(self, mode: bool = True) -> OnFrozenFeatures:
        """Set training mode of the classifier only, so frozen batch normalisation keeps its statistics."""
        super().train(mode)
        self.features.eval()
        return self

    def forward(self, images: torch.Tensor) -> Any:
        """Scores of the classes; activations of the features are not kept, because they need no gradients."""
        return self.classifier(self.features(images))


def _classifier(family: ImageFamily) -> nn.Module:
    width, hidden, classes = FEATURES[family.model], family.classifier_hidden, family.num_classes
    if not hidden:
        return nn.Linear(width, classes)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for place, (inputs, outputs) in enumerate(((width, hidden), (hidden, hidden)), 1):
        layers |= {f"linear{place}": nn.Linear(inputs, outputs), f"relu{place}": nn.ReLU(inplace=True)}
        layers[f"dropout{place}"] = nn.Dropout()
    layers["out"] = nn.Linear(hidden, classes)
    return nn.Sequential(layers)


def _remove_head(model: nn.Module) -> None:
    """Replace the head, so the model gives features; SqueezeNet's are a map that still has to be pooled."""
    is_map = isinstance(model, SqueezeNet)
    head = nn.AdaptiveAvgPool2d(1) if is_map else nn.Identity()
    setattr(model, "fc" if hasattr(model, "fc") else "classifier", head)


def _load(model: nn.Module, path: str, name: str, device: torch.device) -> None:
    expected = f"expected torchvision's state dict of {name}, on every node"
    try:
        state = torch.load(path, map_location=device, weights_only=True)
        model.load_state_dict({_OLD_DENSENET.sub(r"\1", key): tensor for key, tensor in state.items()})
    except OSError as error:
        raise RuntimeError(f"feature_weights {path}: {error.strerror or error}; {expected}") from error
    except (pickle.UnpicklingError, AttributeError, EOFError, ValueError, RuntimeError) as error:
        reason = str(error).strip().splitlines()
        why = reason[0] if reason else type(error).__name__
        raise RuntimeError(f"feature_weights {path}: {why}; {expected}") from error
