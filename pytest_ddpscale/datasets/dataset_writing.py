"""Writes a folder of images atomically: under a temporary name until all images exist.

A network can learn to classify them: each class has its own waves, each image its own noise.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from pytest_ddpscale.datasets.dataset_record import DATASET_FILE, DatasetRecord
from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.run.record_lines import line_of

Pixels = npt.NDArray[np.uint8]
Job = tuple[str, int, range]  # some images of one class of a split: split, label, and their numbers
QUALITY = 90  # of JPEG
_AT_ONCE = 500  # images of a job
_WAVES = 3
_NOISE = 40  # of 255: no two images are identical, and no single pixel reveals the class
_SHIFT = 8  # pixels: no pixel position reveals the class


def write_dataset(folder: Path, record: DatasetRecord, show: Callable[[int, int], None]) -> int:
    """Write all images in parallel, then the record, and give the folder its name.

    Args:
        folder: must not exist; until all is written it is called NAME.incomplete.
        show: called with the number of images written and the total.

    Returns:
        Size of all images in bytes.

    Raises:
        OptionError: the folder, or an incomplete one of that name, exists.
        OSError: the disk is full, or the folder cannot be written.
    """
    incomplete = folder.with_name(f"{folder.name}.incomplete")
    if folder.exists():
        raise OptionError("FOLDER", f"{folder} already exists", "the name of a new folder")
    try:
        incomplete.mkdir(parents=True)
    except FileExistsError:
        found = f"{incomplete} exists: another run is writing it, or was killed while writing"
        raise OptionError("FOLDER", found, "no such folder", "Delete it if no run is writing it.") from None
    jobs, size, written = list(jobs_of(record)), 0, 0
    # Threads, as Pillow and NumPy let go of the interpreter's lock.
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        try:
            for job, bytes_ in zip(
                jobs, pool.map(lambda job: write_images(incomplete, job, record), jobs), strict=True
            ):
                size, written = size + bytes_, written + len(job[2])
                show(written, sum(record.images.values()))
            (incomplete / DATASET_FILE).write_bytes(line_of(record))
            incomplete.rename(folder)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            shutil.rmtree(incomplete, ignore_errors=True)
            raise
    return size


def jobs_of(record: DatasetRecord) -> Iterator[Job]:
    """All images. If they do not divide evenly, the first classes get one more each."""
    for split, images in record.images.items():
        for label in range(record.classes):
            of_class = images // record.classes + (label < images % record.classes)
            for first in range(0, of_class, _AT_ONCE):
                yield split, label, range(first, min(first + _AT_ONCE, of_class))


def write_images(root: Path, job: Job, record: DatasetRecord) -> int:
    """Write some images of a class. Returns their size in bytes. Raises OSError."""
    split, label, numbers = job
    folder, size = root / split / f"class-{label:06d}", 0  # alphabetical order is label order
    folder.mkdir(parents=True, exist_ok=True)
    pattern = class_pattern(label, record.image_size, record.seed)
    for number in numbers:
        chance = np.random.default_rng((record.seed, label, number, split == "val"))
        path = folder / f"{number:06d}.jpg"
        Image.fromarray(image_of(pattern, chance)).save(path, quality=QUALITY)
        size += path.stat().st_size
    return size


def class_pattern(label: int, image_size: int, seed: int) -> Pixels:
    """The pattern shared by images of a class: waves of random direction, length and colour, (size, size, 3)."""
    chance = np.random.default_rng((seed, label))
    down, right = np.mgrid[:image_size, :image_size] / image_size
    pattern = np.full((image_size, image_size, 3), 127.5)
    for _ in range(_WAVES):
        angle, phase = chance.uniform(0, 2 * np.pi, 2)
        length = chance.uniform(2, 12)  # waves over the image
        wave = np.sin(2 * np.pi * length * (right * np.cos(angle) + down * np.sin(angle)) + phase)
        pattern += wave[..., np.newaxis] * chance.uniform(-40, 40, 3)
    pixels: Pixels = pattern.clip(0, 255).astype(np.uint8)
    return pixels


def image_of(pattern: Pixels, chance: np.random.Generator) -> Pixels:
    """One image of a class: its pattern, shifted by a few pixels, plus noise, (size, size, 3)."""
    down, right = chance.integers(-_SHIFT, _SHIFT + 1, 2)
    moved = np.roll(pattern, (down, right), (0, 1)).astype(np.int16)
    noise = chance.integers(-_NOISE, _NOISE + 1, pattern.shape, np.int16)
    pixels: Pixels = np.clip(moved + noise, 0, 255).astype(np.uint8)
    return pixels
