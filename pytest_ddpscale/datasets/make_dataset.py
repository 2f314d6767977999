"""`ddpscale make-dataset`: a folder of images that a network can learn to classify.

Each class has its own pattern, each image its own noise. The folder is written under a temporary name until all images
exist.
"""

from __future__ import annotations

import argparse
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.settings import whole
from pytest_ddpscale.util.command_parser import adder

# Training images, classes and pixels of the data sets of a published measurement, as far as it gives
# them: Jordi Torres, "Supercomputing for AI", chapter 12. docs/suites.md says where each is from.
KNOWN_SIZES = {"micro-224": (12_288, 200, 224), "tiny-224": (100_000, 200, 224)}
QUALITY = 90  # of JPEG
_MOST_IMAGES = 10**8
TILES = 8  # of a pattern, in height and width
_NOISE = 40  # of 255: no two images are identical, and no single pixel reveals the class
_SHIFT = 8  # pixels: no pixel position reveals the class


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add = adder(parser)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="folder to create; it must not exist")
    add("--images", "N", whole(_MOST_IMAGES), "number of training images; a tenth as many are written to validate")
    add("--classes", "C", whole(10**6), "number of classes, at most a tenth of --images")
    add("--image-size", "P", whole(10**4), "height and width, in pixels")
    parser.add_argument(
        "--like", choices=tuple(KNOWN_SIZES), help="sizes of a published data set, where an option does not say another"
    )
    parser.set_defaults(run=_make_dataset)


def _make_dataset(arguments: argparse.Namespace) -> None:
    sizes, began_s = (arguments.images, arguments.classes, arguments.image_size), time.monotonic()
    usual = KNOWN_SIZES[arguments.like] if arguments.like else sizes
    images, classes, pixels = (own or other for own, other in zip(sizes, usual, strict=True))
    if not (images and classes and pixels):
        raise OptionError("--images, --classes, --image-size", "not all are given", "numbers, or --like for all sizes")
    validation = max(1, images // 10)
    if classes > validation:
        raise OptionError("--classes", f"found {classes} for {validation} images to validate", "at most one for each")
    size_mb = write_dataset(arguments.folder, {"train": images, "val": validation}, classes, pixels) / 1e6
    contents = f"{images:,} images to train, {validation:,} to validate, {classes} classes, {pixels} px"
    print(f"{arguments.folder}: {contents}, {size_mb:.1f} MB, in {time.monotonic() - began_s:.0f} s")


def write_dataset(folder: Path, images: dict[str, int], classes: int, pixels: int) -> int:
    """Write all images in parallel, and give the folder its name.

    Args:
        folder: must not exist; until all is written it is called NAME.incomplete.
        images: number of images by split.
        classes: number of classes, the same in each split.
        pixels: height and width of each image.

    Returns:
        Size of all images in bytes.

    Raises:
        OptionError: the folder, or an incomplete one of that name, exists.
        OSError: the disk is full, or the folder cannot be written.
    """
    incomplete = folder.with_name(f"{folder.name}.incomplete")
    for path in (folder, incomplete):
        if path.exists():
            hint = "Delete it if no run is writing it."
            raise OptionError("FOLDER", f"{path} already exists", "the name of a new folder", hint)
    incomplete.mkdir(parents=True)
    try:
        size = _write_images(incomplete, images, classes, pixels)
        incomplete.rename(folder)
    except BaseException:
        shutil.rmtree(incomplete, ignore_errors=True)
        raise
    return size


def _write_images(root: Path, images: dict[str, int], classes: int, pixels: int) -> int:
    """If images do not divide evenly, the first classes get one more each."""
    jobs = list[tuple[Path, int, range, int]]()
    for split, count in images.items():
        for label in range(classes):
            folder = root / split / f"class-{label:06d}"  # alphabetical order is label order
            folder.mkdir(parents=True)
            jobs.append((folder, label, range(label, count, classes), pixels))
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:  # NumPy and Pillow work without the GIL
        return sum(pool.map(write_images, jobs))


def write_images(job: tuple[Path, int, range, int]) -> int:
    """Write the images of a class. Returns their size in bytes. Raises OSError.

    A job is the folder of the class, its label, the images' numbers, and their height and width in pixels. In each
    image the pattern of the class is shifted by a few pixels and has noise.
    """
    (folder, label, numbers, size), written = job, 0
    tiles = np.random.default_rng(label).integers(0, 256, (TILES, TILES, 3), np.uint8)
    pattern = np.asarray(Image.fromarray(tiles).resize((size, size)), np.int16)
    for number in numbers:
        chance = np.random.default_rng((number, folder.parent.name == "val"))
        moved = np.roll(pattern, chance.integers(-_SHIFT, _SHIFT + 1, 2), (0, 1))
        pixels = (moved + chance.integers(-_NOISE, _NOISE + 1, moved.shape)).clip(0, 255).astype(np.uint8)
        path = folder / f"{number:08d}.jpg"
        Image.fromarray(pixels).save(path, quality=QUALITY)
        written += path.stat().st_size
    return written
