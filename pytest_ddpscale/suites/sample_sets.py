"""The images that a training run is given: MNIST's files, a folder of images, or images made in memory."""

from __future__ import annotations

from pathlib import Path

from pytest_ddpscale.datasets.dataset_record import DATASET_FILE, read_dataset_record
from pytest_ddpscale.datasets.idx_file import TRAIN_FILES, VALIDATION_FILES, idx_path, idx_shape
from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.plan.training_run import SampleSet

CLASSES = 10  # of images made in memory, as of MNIST
# The extensions of torchvision's ImageFolder.
_IMAGES = {".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"}


def mnist_set(folder: Path) -> SampleSet:
    """The data set by the headers of MNIST's files. Raises OptionError."""
    expected = "a folder with MNIST's four idx files, or their .gz"
    try:
        found = [[idx_shape(idx_path(folder, name)) for name in names] for names in (TRAIN_FILES, VALIDATION_FILES)]
    except (OSError, ValueError) as error:
        why = f"{folder}: {error.strerror}" if isinstance(error, OSError) else str(error)
        raise OptionError("--mnist", why, expected) from None
    for images, labels in found:
        if len(images) != 3 or labels != images[:1]:
            raise OptionError("--mnist", f"{folder} has images of sizes {images} and labels of {labels}", expected)
    (train, _), (validation, _) = found
    return SampleSet("mnist", "mnist", train[0], validation[0], CLASSES, str(folder.resolve()))


def folder_set(folder: Path) -> SampleSet:
    """The data set in a folder, by make-dataset's record or else by its files. Raises OptionError."""
    path = folder.expanduser().absolute()
    try:
        record = read_dataset_record(path)
    except (OSError, ValueError) as error:
        raise OptionError("--folder", f"{path / DATASET_FILE}: {error}", "a record from make-dataset") from None
    if record is not None and {"train", "val"} <= record.images.keys():
        train, validation, classes = record.images["train"], record.images["val"], record.classes
    else:
        train, validation = (
            sum(one.suffix.lower() in _IMAGES for one in (path / split).glob("*/**/*")) for split in ("train", "val")
        )
        classes = sum(one.is_dir() for one in (path / "train").iterdir()) if train else 0
    if not (train and validation and classes):
        found = f"{path} has {train} images in train/CLASS and {validation} in val/CLASS"
        raise OptionError("--folder", found, "images in both", "See `ddpscale make-dataset --help`.")
    name = record.like if record is not None and record.like else path.name
    return SampleSet("folder", name, train, validation, classes, str(path))


def made_set(train_samples: int) -> SampleSet:
    """Images made in memory, with an eighth as many for validation, at least one."""
    return SampleSet("made", f"made-{train_samples}", train_samples, max(1, train_samples // 8), CLASSES)
