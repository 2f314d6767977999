"""Images as ranks have them: read from a folder by class, with torchvision's ImageFolder as users do, or held in their
device's memory: made ones that can be learnt, and MNIST's.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch.nn import functional
from torch.utils.data import Dataset
from torchvision.datasets import ImageFolder
from torchvision.transforms.functional import center_crop, pil_to_tensor, resize

from pytest_ddpscale.datasets.dataset_record import DATASET_FILE, read_dataset_record
from pytest_ddpscale.datasets.idx_file import TRAIN_FILES, VALIDATION_FILES, idx_path, read_idx
from pytest_ddpscale.families.family import Family
from pytest_ddpscale.families.image import ImageFamily
from pytest_ddpscale.plan.training_run import TrainingRun
from pytest_ddpscale.plan.workload import Split

Labelled = tuple[torch.Tensor, torch.Tensor]
# Made images: a pattern of the class with this many tiles per side, plus noise with this standard deviation.
TILES = 8
NOISE = 2.5
_MNIST_MEAN, _MNIST_SD = 0.1307, 0.3081  # of the training images, from torchvision's examples
Loaded = tuple[torch.Tensor, torch.Tensor, str]


class ImageSamples(Dataset[Loaded]):
    """One split of a folder, in torchvision's order. Pixels stay bytes, a quarter of the size of floats.

    Attributes:
        root: the split's folder.
        classes: number of classes.
        digest: of all names, in order; equal on all ranks that see the same images.
    """

    def __init__(self, root: Path, image_size: int, paths: Sequence[str], labels: Sequence[int], classes: int) -> None:
        self.root, self.classes, self._image_size = root, classes, image_size
        # Arrays, because a million strings would be pickled, and later copied page by page, for each loader worker.
        self._paths = np.array([os.fsencode(path) for path in paths])
        self._labels = np.array(labels, np.int64)
        self.digest = hashlib.sha256(b"\0".join(self._paths.tolist()) + self._labels.tobytes()).hexdigest()

    def __len__(self) -> int:
        return len(self._labels)

    def __getitems__(self, indices: list[int]) -> Loaded:
        """Images, uint8 (batch, 3, image_size, image_size), int64 labels (batch,), and an empty string; or else the
        image that could not be read, and why: an exception would reach the rank as a traceback."""
        images, size = [], self._image_size
        for index in indices:
            path = self.root / os.fsdecode(self._paths[index])
            try:
                with Image.open(path) as image:
                    pixels = image.convert("RGB")
            # Pillow's exceptions for broken images and files that are not images.
            except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
                return torch.empty(0), torch.empty(0), f"{path}: {_reason(error)}. Repair or delete it"
            if pixels.size != (size, size):
                pixels = center_crop(resize(pixels, [size]), [size, size])
            images.append(pil_to_tensor(pixels))
        return torch.stack(images), torch.from_numpy(self._labels[indices]), ""


def read_samples(folder: str, split: Split, family: Family) -> ImageSamples:
    """The images of one split of a folder.

    Raises:
        ValueError: the folder or the split is missing, a class is empty, or images written by `ddpscale make-dataset`
            are missing, or there are more classes than the model has; the message names the path.
    """
    assert isinstance(family, ImageFamily), "no other family has samples in folders"
    root = Path(folder, split)
    try:
        record = read_dataset_record(Path(folder))
        found = ImageFolder(str(root))
    except OSError as error:
        hint = f"a folder {split} with a folder of images for each class, on every node"
        raise ValueError(f"{root}: {_reason(error)}; expected {hint}") from None
    except ValueError as error:
        raise ValueError(f"{Path(folder, DATASET_FILE)}: {error}; expected the file from make-dataset") from None
    if record is not None and len(found.samples) != record.images.get(split):
        said = f"expected {record.images.get(split, 0)} according to {DATASET_FILE}"
        raise ValueError(f"{root}: {len(found.samples)} images; {said}. Delete the folder and make it again")
    if len(found.classes) > family.num_classes:
        classes = f"{len(found.classes)} classes, but the workload has num_classes {family.num_classes}"
        raise ValueError(f"{root}: {classes}; expected at most as many")
    paths = [os.path.relpath(path, root) for path, _ in found.samples]
    return ImageSamples(root, family.image_size, paths, found.targets, len(found.classes))


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):  # its text repeats the path
        return "is not an image that Pillow can read"
    return str(getattr(error, "strerror", None) or error).splitlines()[0]


class HeldImages(Dataset[Loaded]):
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


def held_images(run: TrainingRun, device: torch.device) -> list[HeldImages]:
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
