"""`ddpscale make-dataset`. Every command imports this module, so heavy imports stay inside functions."""

from __future__ import annotations

import argparse
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.settings import count_up_to
from pytest_ddpscale.util.command_parser import typed

if TYPE_CHECKING:
    from pytest_ddpscale.datasets.dataset_record import DatasetRecord

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

_MOST_IMAGES = 10**8
_NEEDED = ("images", "classes", "image_size")
# Images to train and to validate, and classes, of 224 pixels, of a published measurement: Jordi Torres, "Supercomputing
# for AI", chapter 12. It names its data sets but not their sizes: docs/how-to/input-pipeline.md has their origin.
KNOWN_SIZES = {"micro-224": (12_288, 1_228, 200), "tiny-224": (100_000, 10_000, 200)}


def add_make_dataset(commands: Commands) -> None:
    """`ddpscale make-dataset`."""
    command = commands.add_parser("make-dataset", help="write a folder of JPEG images to train on, by class")
    add, images = command.add_argument, typed(count_up_to(_MOST_IMAGES))
    add("folder", type=Path, metavar="FOLDER", help="folder to create; it must not exist")
    add("--images", type=images, metavar="N", help="number of training images")
    add("--validation-images", type=images, metavar="N",
        help="number of validation images; default: a tenth of --images")  # fmt: skip
    add("--classes", type=typed(count_up_to(10**6)), metavar="C",
        help="number of classes, at most that of validation images")  # fmt: skip
    add("--image-size", type=typed(count_up_to(10**4)), metavar="P", help="height and width, in pixels")
    add("--like", choices=tuple(KNOWN_SIZES), help="sizes of a published data set instead of those options")
    add("--seed", type=typed(_seed), default=0, metavar="S",
        help="seed of all patterns and noise; default: %(default)s")  # fmt: skip
    command.set_defaults(run=_make_dataset)


def _make_dataset(arguments: argparse.Namespace) -> None:
    from pytest_ddpscale.datasets.dataset_writing import write_dataset

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
    from pytest_ddpscale.datasets.dataset_record import DatasetRecord

    typed_in = vars(arguments)
    given = [name for name in (*_NEEDED, "validation_images") if typed_in[name] is not None]
    if arguments.like and given:
        raise OptionError("--like", f"found --{given[0].replace('_', '-')} beside it", "one or the other")
    missing = [name for name in _NEEDED if name not in given]
    if missing and not arguments.like:
        raise OptionError(f"--{missing[0].replace('_', '-')}", "not given", "a number, or --like for all sizes")
    if arguments.like:
        (train, validation, classes), pixels = KNOWN_SIZES[arguments.like], 224
    else:
        train, classes, pixels = (typed_in[name] for name in _NEEDED)
        validation = arguments.validation_images or max(1, train // 10)
    if classes > min(train, validation):
        found = f"found {classes} for {train} images to train on and {validation} to validate"
        raise OptionError("--classes", found, "at least one image of each class in both")
    return DatasetRecord(
        images={"train": train, "val": validation}, classes=classes, image_size=pixels, seed=arguments.seed,
        like=arguments.like or "",
    )  # fmt: skip


def _seed(text: str) -> int:
    if re.fullmatch("[0-9]{1,10}", text) is None or int(text) >= 2**31:
        raise ValueError("a number from 0 to 2147483647")
    return int(text)
