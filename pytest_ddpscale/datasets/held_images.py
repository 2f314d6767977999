"""Small images that every rank holds in its device's memory: made ones that can be learnt, and MNIST's."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.nn import functional

from pytest_ddpscale.datasets.idx_file import TRAIN_FILES, VALIDATION_FILES, idx_path, read_idx
from pytest_ddpscale.datasets.image_folder import Loaded, Samples
from pytest_ddpscale.families.image import ImageFamily
from pytest_ddpscale.plan.training_run import TrainingRun

Labelled = tuple[torch.Tensor, torch.Tensor]
# Made images: a pattern of the class with this many tiles per side, plus noise with this standard deviation.
TILES = 8
NOISE = 2.5
_MNIST_MEAN, _MNIST_SD = 0.1307, 0.3081  # of the training images, from torchvision's examples


class HeldImages(Samples):
    """One split of a run's images, on a device; a batch is scaled up to the run's image size."""

    root = Path("memory")

    def __init__(self, held: Labelled, family: ImageFamily, device: torch.device) -> None:
        self._family = family
        self._images, self._labels = (one.to(device) for one in held)

    def __len__(self) -> int:
        return len(self._labels)

    def __getitems__(self, indices: list[int]) -> Loaded:
        """Images, float32 (batch, channels, size, size), and labels, int64 (batch,)."""
        which = torch.tensor(indices).to(self._labels.device)
        images, family = self._images[which], self._family
        if images.shape[-1] != family.image_size:
            images = functional.interpolate(images, size=(family.image_size,) * 2, mode="nearest")
        return images.expand(-1, family.channels, -1, -1), self._labels[which], ""


def held_images(run: TrainingRun, device: torch.device) -> list[Samples]:
    """Images to train and to validate. Raises OSError or ValueError if a file is missing or invalid."""
    family = run.workload.family
    assert isinstance(family, ImageFamily), "no other family has samples in memory"
    found = _made(run, family.channels) if run.samples.kind == "made" else _mnist(run)
    return [HeldImages(one, family, device) for one in found]


def _made(run: TrainingRun, channels: int) -> tuple[Labelled, Labelled]:
    """Each class has a pattern, and each image its own noise."""
    samples, generator = run.samples, torch.Generator().manual_seed(run.seed)
    patterns = torch.randn(samples.classes, channels, TILES, TILES, generator=generator)

    def drawn(count: int) -> Labelled:
        labels = torch.randint(samples.classes, (count,), generator=generator)
        noise = torch.randn(count, *patterns.shape[1:], generator=generator)
        # Scaled to unit variance, like normalised images.
        return (patterns[labels] + NOISE * noise) / (1 + NOISE**2) ** 0.5, labels

    return drawn(samples.train_samples), drawn(samples.validation_samples)


def _mnist(run: TrainingRun) -> tuple[Labelled, Labelled]:
    def read(names: tuple[str, str]) -> Labelled:
        paths = (idx_path(Path(run.samples.path), name) for name in names)
        images, labels = (torch.from_numpy(read_idx(path).copy()) for path in paths)
        return ((images.float() / 255 - _MNIST_MEAN) / _MNIST_SD).unsqueeze(1), labels.long()

    return read(TRAIN_FILES), read(VALIDATION_FILES)
