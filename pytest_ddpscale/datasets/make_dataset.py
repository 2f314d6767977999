"""`ddpscale make-dataset`. Every command imports this module, so heavy imports stay inside functions."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_ddpscale.datasets.known_sizes import KNOWN_SIZES
from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.settings import count_up_to, read_value

if TYPE_CHECKING:
    from pytest_ddpscale.datasets.dataset_record import DatasetRecord

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

_MOST_IMAGES = 10**8
_SIZES = ("images", "classes", "image_size", "validation_images")


def add_make_dataset(commands: Commands) -> None:
    """`ddpscale make-dataset`."""
    command = commands.add_parser("make-dataset", help="write a folder of JPEG images to train on, by class")
    add = command.add_argument
    add("folder", type=Path, metavar="FOLDER", help="folder to create; it must not exist")
    add("--images", metavar="N", help="number of training images")
    add("--validation-images", metavar="N", help="number of validation images; default: a tenth of --images")
    add("--classes", metavar="C", help="number of classes, at most that of validation images")
    add("--image-size", metavar="P", help="height and width, in pixels")
    add("--like", choices=tuple(KNOWN_SIZES), help="sizes of a published data set instead of those options")
    add("--seed", default="0", metavar="S", help="seed of all patterns and noise; default: %(default)s")
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
    if record.like:
        print(f"sizes of {record.like}: {KNOWN_SIZES[record.like].origin}")


def dataset_record_of(arguments: argparse.Namespace) -> DatasetRecord:
    """The data set that the options ask for. Raises OptionError."""
    from pytest_ddpscale.datasets.dataset_record import DatasetRecord

    seed = read_value("--seed", arguments.seed, _seed)
    given = [name for name in _SIZES if getattr(arguments, name) is not None]
    if arguments.like:
        if given:
            raise OptionError("--like", f"found --{given[0].replace('_', '-')} beside it", "one or the other")
        like = KNOWN_SIZES[arguments.like]
        images = {"train": like.train, "val": like.validation}
        return DatasetRecord(
            images=images, classes=like.classes, image_size=like.image_size, seed=seed, like=arguments.like
        )
    missing = [name for name in ("images", "classes", "image_size") if name not in given]
    if missing:
        raise OptionError(f"--{missing[0].replace('_', '-')}", "not given", "a number, or --like for all sizes")
    train = read_value("--images", arguments.images, count_up_to(_MOST_IMAGES))
    classes = read_value("--classes", arguments.classes, count_up_to(10**6))
    pixels = read_value("--image-size", arguments.image_size, count_up_to(10**4))
    validation = max(1, train // 10)
    if arguments.validation_images is not None:
        validation = read_value("--validation-images", arguments.validation_images, count_up_to(_MOST_IMAGES))
    if classes > min(train, validation):
        found = f"found {classes} for {train} images to train on and {validation} to validate"
        raise OptionError("--classes", found, "at least one image of each class in both")
    return DatasetRecord(images={"train": train, "val": validation}, classes=classes, image_size=pixels, seed=seed)


def _seed(text: str) -> int:
    number = int(text) if text.isdecimal() else -1
    if not 0 <= number < 2**31:
        raise ValueError("a number from 0 to 2147483647")
    return number
