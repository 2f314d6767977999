"""Small folders of images, as torchvision's ImageFolder reads them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from pytest_ddpscale.plan.workload import ImageFolderData


def image_folder(folder: Path, images: int = 21, classes: int = 3) -> str:
    """A training split of so many random images, shared by its classes. Returns the folder's path."""
    chance = np.random.default_rng(0)
    for number in range(images):
        path = folder / "train" / f"class-{number % classes}" / f"{number:03d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(chance.integers(0, 256, (32, 32, 3), np.uint8)).save(path)
    return str(folder)


def data_of(folder: str, workers: int = 0, prefetch: int = 2) -> ImageFolderData:
    """How it is read."""
    return ImageFolderData(folder, workers, prefetch)
