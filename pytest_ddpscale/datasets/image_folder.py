"""A folder of images by class, as ranks read it: torchvision's ImageFolder, like users do."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch.utils.data import Dataset
from torchvision.datasets import ImageFolder
from torchvision.transforms.functional import center_crop, pil_to_tensor, resize

from pytest_ddpscale.datasets.dataset_record import DATASET_FILE, read_dataset_record
from pytest_ddpscale.families.family import Family
from pytest_ddpscale.families.image import ImageFamily
from pytest_ddpscale.plan.workload import Split

Loaded = tuple[torch.Tensor, torch.Tensor, str]


class Samples(Dataset[Loaded]):
    """Samples of a run.

    Attributes:
        root: where they come from.
    """

    root: Path

    def __len__(self) -> int:
        raise NotImplementedError

    def __getitems__(self, indices: list[int]) -> Loaded:
        """Inputs and targets, and an empty string; or else the sample that could not be read, and why."""
        raise NotImplementedError


class ImageSamples(Samples):
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
