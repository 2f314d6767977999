"""The description that `ddpscale make-dataset` leaves in its folder, written last: if it exists, all images do."""

from __future__ import annotations

from pathlib import Path

import msgspec

from pytest_ddpscale.run.strict_json import Positive, Record, decode
from pytest_ddpscale.util.regular_file import read_regular

DATASET_FILE = "dataset.json"


class DatasetRecord(Record):
    """A folder of images.

    Attributes:
        images: number of images by split.
        classes: number of classes, the same in each split.
        image_size: height and width of each image, in pixels.
    """

    images: dict[str, Positive]
    classes: Positive
    image_size: Positive


def read_dataset_record(folder: Path) -> DatasetRecord | None:
    """The description of a folder; None if it has none.

    Raises:
        ValueError: the file is not such a description.
        OSError: it cannot be read.
    """
    try:
        line = read_regular(folder / DATASET_FILE)
    except FileNotFoundError:
        return None
    return decode(msgspec.json.Decoder(DatasetRecord), line)
