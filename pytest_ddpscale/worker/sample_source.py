"""Images and labels of a whole training run, in a seeded random order, divided among the ranks.

Every world size trains the same images in the same order: iteration i has the i-th global batch of an epoch's
permutation, of which each rank takes its part. Validation gives every image to exactly one rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import torch
from torch.nn import functional

from pytest_ddpscale.plan.training_run import CLASSIFIER, TrainingRun
from pytest_ddpscale.util.idx_file import TRAIN_FILES, VALIDATION_FILES, idx_path, read_idx

Labelled = tuple[torch.Tensor, torch.Tensor]
# Generated images: a pattern of the class with this many tiles per side, plus noise with this standard deviation.
TILES = 8
NOISE = 2.5
_MNIST_MEAN, _MNIST_SD = 0.1307, 0.3081  # of the training images, from torchvision's examples


class SampleSource(Protocol):
    """Data of a rank: images, float32 (batch, channels, size, size), and labels, int64 (batch,), on its device."""

    def training(self, epoch: int) -> Iterator[Labelled]:
        """This rank's batches of an epoch, as many as the run has iterations."""

    def validation(self, epoch: int) -> Iterator[Labelled]:
        """This rank's validation images, after that epoch; the last batch may be smaller."""

    def close(self) -> None:
        """Free resources."""


def epoch_order(samples: int, seed: int, epoch: int) -> torch.Tensor:
    """The permutation of an epoch, int64 (samples,): the same on every rank and at every world size."""
    return torch.randperm(samples, generator=torch.Generator().manual_seed(1_000_003 * seed + epoch))


def training_indices(run: TrainingRun, epoch: int, rank: int) -> Iterator[torch.Tensor]:
    """Indices of the images that a rank trains in each iteration, int64 (batch,)."""
    order, per_rank = epoch_order(run.samples.train_samples, run.seed, epoch), run.workload.batch_size
    for first in range(0, run.epoch_samples, run.global_batch):
        yield order[first + rank * per_rank : first + (rank + 1) * per_rank]


def validation_indices(run: TrainingRun, rank: int) -> Iterator[torch.Tensor]:
    """Indices of the images that a rank validates, batch by batch: every k-th, so ranks differ by at most one image."""
    return iter(torch.arange(rank, run.samples.validation_samples, run.world_size).split(run.workload.batch_size))


def channels_of(model: str) -> int:
    """Channels of a model's images: 3 for torchvision's models, 1 for classifiers."""
    return 1 if model.startswith(CLASSIFIER) else 3


class HeldSamples:
    """Small samples that every rank holds in its device's memory; a batch is scaled up to the run's image size.

    Args:
        images: for training and validation, float32 (samples, channels, height, width).
        labels: for training and validation, int64 (samples,).
    """

    def __init__(
        self, run: TrainingRun, rank: int, device: torch.device,
        images: tuple[torch.Tensor, torch.Tensor], labels: tuple[torch.Tensor, torch.Tensor],
    ) -> None:  # fmt: skip
        self._run, self._rank, self._device = run, rank, device
        self._images = tuple(one.to(device) for one in images)
        self._labels = tuple(one.to(device) for one in labels)

    def training(self, epoch: int) -> Iterator[Labelled]:
        """See `SampleSource`."""
        return (self._batch(0, which) for which in training_indices(self._run, epoch, self._rank))

    def validation(self, epoch: int) -> Iterator[Labelled]:
        """See `SampleSource`; the same after each epoch."""
        return (self._batch(1, which) for which in validation_indices(self._run, self._rank))

    def close(self) -> None:
        """Do nothing: no resources are open."""

    def _batch(self, part: int, which: torch.Tensor) -> Labelled:
        which = which.to(self._device)
        family = self._run.workload.family
        images, size = self._images[part][which], family.image_size
        if images.shape[-1] != size:
            images = functional.interpolate(images, size=(size, size), mode="nearest")
        images = images.expand(-1, channels_of(family.model), -1, -1)
        if family.memory_format == "channels_last":
            images = images.contiguous(memory_format=torch.channels_last)
        return images, self._labels[part][which]


def made_samples(run: TrainingRun, rank: int, device: torch.device) -> HeldSamples:
    """Images that can be learnt: each class has a pattern, and each image its own noise."""
    samples, generator = run.samples, torch.Generator().manual_seed(run.seed)
    patterns = torch.randn(samples.classes, channels_of(run.workload.family.model), TILES, TILES, generator=generator)

    def drawn(count: int) -> Labelled:
        labels = torch.randint(samples.classes, (count,), generator=generator)
        noise = torch.randn(count, *patterns.shape[1:], generator=generator)
        # Scaled to unit variance, like normalised images.
        return (patterns[labels] + NOISE * noise) / (1 + NOISE**2) ** 0.5, labels

    training, validation = drawn(samples.train_samples), drawn(samples.validation_samples)
    return HeldSamples(run, rank, device, (training[0], validation[0]), (training[1], validation[1]))


def mnist_samples(run: TrainingRun, rank: int, device: torch.device) -> HeldSamples:
    """MNIST's images, normalised. Raises OSError or ValueError if a file is missing or invalid."""
    folder = Path(run.samples.path)

    def read(names: tuple[str, str]) -> Labelled:
        images, labels = (torch.from_numpy(read_idx(idx_path(folder, name)).copy()) for name in names)
        return ((images.float() / 255 - _MNIST_MEAN) / _MNIST_SD).unsqueeze(1), labels.long()

    training, validation = read(TRAIN_FILES), read(VALIDATION_FILES)
    return HeldSamples(run, rank, device, (training[0], validation[0]), (training[1], validation[1]))
