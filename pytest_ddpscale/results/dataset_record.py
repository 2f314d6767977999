"""What `ddpscale make-dataset` says of a folder that it wrote: written last, so that it is there if all images are."""

from __future__ import annotations

from pathlib import Path

import msgspec

from pytest_ddpscale.results.strict_json import Positive, Record, decode

DATASET_FILE = "dataset.json"


class DatasetRecord(Record, frozen=True, kw_only=True):
    """A folder of images.

    Attributes:
        images: of each split, by its name.
        classes: of each split as many.
        image_size: height and width of each image, in pixels.
        seed: that they were drawn from.
        like: the data set whose sizes it has; empty if none.
    """

    images: dict[str, Positive]
    classes: Positive
    image_size: Positive
    seed: int = 0
    like: str = ""


def read_dataset_record(folder: Path) -> DatasetRecord | None:
    """What is said of a folder; None of one that others made.

    Raises:
        ValueError: the file is none of ours.
        OSError: it cannot be read.
    """
    try:
        line = (folder / DATASET_FILE).read_bytes()
    except FileNotFoundError:
        return None
    return decode(msgspec.json.Decoder(DatasetRecord), line)
