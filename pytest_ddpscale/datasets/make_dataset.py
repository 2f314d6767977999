"""`ddpscale make-dataset`: a folder of images that a network can learn to classify.

Each class has its own waves, each image its own noise. The folder is written under a temporary name until all images
exist.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from pytest_ddpscale.datasets.dataset_record import DATASET_FILE, DatasetRecord
from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.run.record_lines import line_of
from pytest_ddpscale.settings import count_up_to
from pytest_ddpscale.util.command_parser import adder
from pytest_ddpscale.util.orphans import die_with_parent

Pixels = npt.NDArray[np.uint8]
# Images to train and to validate, classes and pixels of the data sets of a published measurement, as far as it gives
# them: Jordi Torres, "Supercomputing for AI", chapter 12. docs/how-to/input-pipeline.md says where each is from.
KNOWN_SIZES = {"micro-224": (12_288, 1_228, 200, 224), "tiny-224": (100_000, 10_000, 200, 224)}
QUALITY = 90  # of JPEG
_MOST_IMAGES = 10**8
_AT_ONCE = 500  # images that one process writes before it reports
_WAVES = 3
_NOISE = 40  # of 255: no two images are identical, and no single pixel reveals the class
_SHIFT = 8  # pixels: no pixel position reveals the class


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add, more = adder(parser), parser.add_argument
    more("folder", type=Path, metavar="FOLDER", help="folder to create; it must not exist")
    add("--images", "N", count_up_to(_MOST_IMAGES), "number of training images")
    add("--validation-images", "N", count_up_to(_MOST_IMAGES),
        "number of validation images; default: a tenth of --images")  # fmt: skip
    add("--classes", "C", count_up_to(10**6), "number of classes, at most that of validation images")
    add("--image-size", "P", count_up_to(10**4), "height and width, in pixels")
    more("--like", choices=tuple(KNOWN_SIZES), help="sizes of a published data set instead of those options")
    add("--seed", "S", _seed, "seed of all patterns and noise", 0)
    parser.set_defaults(run=_make_dataset)


def _seed(text: str) -> int:
    if not text.isdecimal() or int(text) >= 2**31:
        raise ValueError("a number from 0 to 2147483647")
    return int(text)


def _make_dataset(arguments: argparse.Namespace) -> None:
    record = dataset_record_of(arguments)
    began_s = last_shown_s = time.monotonic()

    def show(written: int, total: int) -> None:
        nonlocal last_shown_s
        if time.monotonic() - last_shown_s > 10:
            last_shown_s = time.monotonic()
            print(f"{written:,} of {total:,} images", file=sys.stderr, flush=True)

    size = write_dataset(arguments.folder, record, show)
    images = ", ".join(f"{number:,} images in {split}" for split, number in record.images.items())
    what = f"{images}, {record.classes} classes, {record.image_size} px"
    print(f"{arguments.folder}: {what}, {size / 1e6:.1f} MB, in {time.monotonic() - began_s:.0f} s")


def dataset_record_of(arguments: argparse.Namespace) -> DatasetRecord:
    """The data set that the options ask for. Raises OptionError."""
    train, validation, classes, pixels = asked = (
        arguments.images, arguments.validation_images, arguments.classes, arguments.image_size
    )  # fmt: skip
    options = ("--images", "--validation-images", "--classes", "--image-size")
    if arguments.like:
        for option, given in zip(options, asked, strict=True):
            if given is not None:
                raise OptionError("--like", f"found {option} beside it", "one or the other")
        train, validation, classes, pixels = KNOWN_SIZES[arguments.like]
    for option, given in zip(options, (train, 0, classes, pixels), strict=True):
        if given is None:
            raise OptionError(option, "not given", "a number, or --like for all sizes")
    validation = validation or max(1, train // 10)
    if classes > min(train, validation):
        found = f"found {classes} for {train} images to train on and {validation} to validate"
        raise OptionError("--classes", found, "at least one image of each class in both")
    images = {"train": train, "val": validation}
    return DatasetRecord(
        images=images, classes=classes, image_size=pixels, seed=arguments.seed, like=arguments.like or ""
    )


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
    if folder.exists():
        raise OptionError("FOLDER", f"{folder} already exists", "the name of a new folder")
    incomplete = folder.with_name(f"{folder.name}.incomplete")
    try:
        incomplete.mkdir(parents=True)
    except FileExistsError:
        found = f"{incomplete} exists: another run is writing it, or was killed while writing"
        raise OptionError("FOLDER", found, "no such folder", "Delete it if no run is writing it.") from None
    try:
        size = _write_images(incomplete, record, show)
        (incomplete / DATASET_FILE).write_bytes(line_of(record))
        incomplete.rename(folder)
    except BaseException:
        shutil.rmtree(incomplete, ignore_errors=True)
        raise
    return size


def _write_images(root: Path, record: DatasetRecord, show: Callable[[int, int], None]) -> int:
    """If images do not divide evenly, the first classes get one more each."""
    size = written = 0
    processes = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=_begin) as pool:
        jobs = {}
        for split, images in record.images.items():
            for label in range(record.classes):
                folder = root / split / f"class-{label:06d}"  # alphabetical order is label order
                folder.mkdir(parents=True)
                of_class = images // record.classes + (label < images % record.classes)
                for first in range(0, of_class, _AT_ONCE):
                    numbers = range(first, min(first + _AT_ONCE, of_class))
                    job = pool.submit(
                        write_images, folder, label, numbers, record.image_size, record.seed, is_val=split == "val"
                    )
                    jobs[job] = len(numbers)
        try:
            for done in as_completed(jobs):
                size += done.result()
                written += jobs[done]
                show(written, sum(record.images.values()))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return size


def _begin() -> None:
    """Set up a worker process: ignore Ctrl-C, which the main process handles, and end with the main process."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def write_images(folder: Path, label: int, numbers: range, image_size: int, seed: int, *, is_val: bool) -> int:
    """Write some images of a class. Returns their size in bytes. Raises OSError."""
    pattern, size = class_pattern(label, image_size, seed), 0
    for number in numbers:
        chance = np.random.default_rng((seed, label, number, is_val))
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
