"""Images as ranks have them: read from a folder by class, with torchvision's ImageFolder as users do, or held in their
device's memory: made ones that can be learnt, and MNIST's.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import zlib
from pathlib import Path
from typing import get_args

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch.nn import functional
from torch.utils.data import Dataset
from torchvision.datasets import ImageFolder
from torchvision.transforms.functional import center_crop, pil_to_tensor, resize

from pytest_ddpscale.families.family import Family
from pytest_ddpscale.plan.training_run import TrainingRun
from pytest_ddpscale.plan.workload import Split
from pytest_ddpscale.util.regular_file import read_regular

# Made images: a pattern of the class with this many tiles per side, plus noise with this standard deviation.
TILES = 8
NOISE = 2.5
_SEED = 0  # of made images, the same for all seeds of training
_MNIST_MEAN, _MNIST_SD = 0.1307, 0.3081  # of the training images, from torchvision's examples
Loaded = tuple[torch.Tensor, torch.Tensor, str]


class ImageSamples(Dataset[Loaded]):
    """One split of a folder, in torchvision's order. Pixels stay bytes, a quarter of the size of floats.

    Attributes:
        root: the split's folder.
        classes: number of classes.
        digest: of all names, in order; equal on all ranks that see the same images.
    """

    def __init__(self, folder: ImageFolder, image_size: int) -> None:
        self.root, self.classes, self._image_size = Path(folder.root), len(folder.classes), image_size
        # Arrays, because a million strings would be pickled, and later copied page by page, for each loader worker.
        self._paths = np.array([os.fsencode(os.path.relpath(path, folder.root)) for path, _ in folder.samples])
        self._labels = np.array(folder.targets, np.int64)
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
        ValueError: the folder or the split is missing, a class is empty, or there are more classes than the model has;
            the message names the path.
    """
    root = Path(folder, split)
    try:
        images = ImageFolder(str(root))
    except OSError as error:
        hint = f"a folder {split} with a folder of images for each class, on every node"
        raise ValueError(f"{root}: {_reason(error)}; expected {hint}") from None
    classes = len(images.classes)
    if classes > family.num_classes:
        found = f"{classes} classes, but the workload has num_classes {family.num_classes}"
        raise ValueError(f"{root}: {found}; expected at most as many")
    return ImageSamples(images, family.image_size)


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error).splitlines()[0]


class HeldImages(Dataset[Loaded]):
    """One split of a run's images, on a device; a batch is scaled up to the run's image size.

    Args:
        images: float32 (count, channels, height, width).
        labels: int64 (count,).
    """

    root = Path("memory")

    def __init__(self, images: torch.Tensor, labels: torch.Tensor, image_size: int) -> None:
        self._images, self._labels, self._image_size = images, labels, image_size

    def __len__(self) -> int:
        return len(self._labels)

    def __getitems__(self, indices: list[int]) -> Loaded:
        """Images, float32 (batch, channels, size, size), and labels, int64 (batch,)."""
        return functional.interpolate(self._images[indices], self._image_size), self._labels[indices], ""


def read_mnist(folder: Path, split: Split) -> list[npt.NDArray[np.uint8]]:
    """Images, (count, 28, 28), and labels, (count,), from MNIST's idx files or their .gz. Raises ValueError.

    An idx file has a header with the shape, then one byte per value (yann.lecun.com/exdb/mnist).
    """
    arrays = []
    for kind, header in (("images-idx3-ubyte", 16), ("labels-idx1-ubyte", 8)):
        path = folder / f"{'t10k' if split == 'val' else split}-{kind}"
        path = path if path.exists() else path.with_name(f"{path.name}.gz")
        try:
            data = read_regular(path)
            arrays.append(np.frombuffer(gzip.decompress(data) if path.suffix else data, np.uint8, offset=header))
        except (OSError, EOFError, ValueError, zlib.error) as error:
            raise ValueError(f"{path}: {_reason(error)}; expected one of MNIST's four idx files") from None
    images, labels = arrays
    if images.size != labels.size * 28**2:
        found = f"{images.size} pixels for {labels.size} labels of {split}"
        raise ValueError(f"{folder}: {found}; expected 784 for each, as in MNIST's four idx files")
    return [images.reshape(-1, 28, 28), labels]


def held_images(run: TrainingRun, device: torch.device) -> list[HeldImages]:
    """Images to train and to validate: made ones, or MNIST's. Raises ValueError if a file is missing or invalid."""
    samples, family, parts = run.samples, run.workload.family, list[tuple[torch.Tensor, torch.Tensor]]()
    if samples.kind == "mnist":
        for split in get_args(Split):
            pixels, numbers = map(torch.tensor, read_mnist(Path(samples.path), split))
            normal = ((pixels / 255 - _MNIST_MEAN) / _MNIST_SD).unsqueeze(1)
            parts.append((normal.expand(-1, family.channels, -1, -1), numbers.long()))
    else:
        generator = torch.Generator().manual_seed(_SEED)
        # Each class has a pattern, and each image its own noise.
        patterns = torch.randn(samples.classes, family.channels, TILES, TILES, generator=generator)
        for count in (samples.train_samples, samples.validation_samples):
            labels = torch.randint(samples.classes, (count,), generator=generator)
            noise = torch.randn(count, *patterns.shape[1:], generator=generator)
            # Scaled to unit variance, like normalised images.
            parts.append(((patterns[labels] + NOISE * noise) / (1 + NOISE**2) ** 0.5, labels))
    return [HeldImages(images.to(device), labels.to(device), family.image_size) for images, labels in parts]
