"""Images of a folder, and their assembly to batches. Loader workers import only this module."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch.utils.data import Dataset
from torchvision.datasets import ImageFolder
from torchvision.transforms.functional import center_crop, pil_to_tensor, resize

from pytest_ddpscale.plan.workload import Split
from pytest_ddpscale.run.dataset_record import DATASET_FILE, read_dataset_record
from pytest_ddpscale.util.orphans import die_with_parent

IMAGE_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class LoadFailure:
    """An image that could not be read; a value, because an exception would reach the rank as a traceback."""

    message: str


@dataclass(frozen=True)
class LoadedImages:
    """A batch from a loader worker.

    Attributes:
        images: uint8, (batch, 3, image_size, image_size).
        labels: int64, (batch,).
    """

    images: torch.Tensor
    labels: torch.Tensor

    def pin_memory(self) -> LoadedImages:
        """The same in pinned memory; DataLoader calls it."""
        return LoadedImages(self.images.pin_memory(), self.labels.pin_memory())


Sample = tuple[torch.Tensor, int] | LoadFailure


class ImageSamples(Dataset[Sample]):
    """One split of a folder, in torchvision's order. Pixels stay bytes, a quarter of the size of floats.

    Attributes:
        root: the split's folder.
        classes: number of classes.
        digest: of all names, in order; equal on all ranks that see the same images.
    """

    def __init__(
        self, root: Path, image_size: int, paths: Sequence[str], labels: Sequence[int], classes: int, timeout_s: float
    ) -> None:
        self.root = root
        self.classes = classes
        self._image_size, self._timeout_s = image_size, timeout_s
        # Arrays, because a million strings would be pickled, and later copied page by page, for each loader worker.
        self._paths = np.array([os.fsencode(path) for path in paths])
        self._labels = np.array(labels, np.int64)
        self.digest = hashlib.sha256(b"\0".join(self._paths.tolist()) + self._labels.tobytes()).hexdigest()

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> Sample:
        path = self.root / os.fsdecode(self._paths[index])
        try:
            with _within(self._timeout_s), Image.open(path) as image:
                pixels = self._sized(image.convert("RGB"))
        # Pillow's exceptions for broken images and files that are not images.
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            return LoadFailure(f"{path}: {_reason(error)}. Repair or delete it")
        return pil_to_tensor(pixels), int(self._labels[index])

    def _sized(self, image: Image.Image) -> Image.Image:
        size = self._image_size
        if image.size == (size, size):
            return image
        sized: Image.Image = center_crop(resize(image, [size]), [size, size])
        return sized


def read_samples(folder: str, split: Split, image_size: int, timeout_s: float = IMAGE_TIMEOUT_S) -> ImageSamples:
    """The images of one split of a folder.

    Args:
        timeout_s: time limit for reading one image.

    Raises:
        ValueError: the folder or the split is missing, a class is empty, or images written by `ddpscale make-dataset`
            are missing; the message names the path.
    """
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
    paths = [os.path.relpath(path, root) for path, _ in found.samples]
    return ImageSamples(root, image_size, paths, found.targets, len(found.classes), timeout_s)


def joined_images(samples: Sequence[Sample]) -> LoadedImages | LoadFailure:
    """A batch, or the first failure."""
    for sample in samples:
        if isinstance(sample, LoadFailure):
            return sample
    images, labels = zip(*samples, strict=True)
    return LoadedImages(torch.stack(images), torch.tensor(labels))


@dataclass(frozen=True)
class LoaderWorker:
    """Start of a loader worker: on all cores given, while its rank may be bound to one; it ends with the rank.

    The rank handles Ctrl-C.
    """

    cores: tuple[int, ...]

    def __call__(self, number: int) -> None:
        """Initialize worker `number` of the rank, as DataLoader's worker_init_fn."""
        die_with_parent()  # the parent is the fork server, which lives as long as any of its forks
        threading.Thread(target=_end_with_rank, daemon=True).start()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if self.cores and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, self.cores)


@contextmanager
def _within(seconds: float) -> Iterator[None]:
    """Interrupt a read from a file system that does not answer. Raises TimeoutError.

    Only the main thread can be interrupted, in which loader workers and ranks read.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, _is_late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _is_late(number: int, frame: object) -> None:
    raise TimeoutError("was not read in time; the file system may not answer")


def _end_with_rank() -> None:
    rank = multiprocessing.parent_process()
    if rank is not None:
        rank.join()  # returns however it ends
        os._exit(1)


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):  # its text repeats the path
        return "is not an image that Pillow can read"
    return str(getattr(error, "strerror", None) or error).splitlines()[0]
