"""Writes a folder of images atomically: under a temporary name until all images exist."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from PIL import Image

from pytest_ddpscale.datasets.dataset_record import DATASET_FILE, DatasetRecord
from pytest_ddpscale.datasets.image_pattern import class_pattern, image_of
from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.plan.workload import Split
from pytest_ddpscale.run.record_lines import line_of
from pytest_ddpscale.util.orphans import die_with_parent

QUALITY = 90  # of JPEG
_AT_ONCE = 500  # images that one process writes before it reports


@dataclass(frozen=True)
class ImageChunk:
    """Some images of one class, the unit of work; `first` counts within its split and class."""

    split: Split
    label: int
    first: int
    count: int


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
    try:
        size = _write_images(incomplete, record, show)
        (incomplete / DATASET_FILE).write_bytes(line_of(record))
        incomplete.rename(folder)
    except BaseException:
        shutil.rmtree(incomplete, ignore_errors=True)
        raise
    return size


def _write_images(root: Path, record: DatasetRecord, show: Callable[[int, int], None]) -> int:
    chunks, total = list(chunks_of(record)), sum(record.images.values())
    for split in record.images:
        for label in range(record.classes):
            (root / split / class_name(label)).mkdir(parents=True)
    size = written = 0
    with ProcessPoolExecutor(_processes(), mp_context=get_context("spawn"), initializer=_begin) as pool:
        jobs = {pool.submit(write_chunk, root, chunk, record.image_size, record.seed): chunk for chunk in chunks}
        try:
            for done in as_completed(jobs):
                size += done.result()
                written += jobs[done].count
                show(written, total)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return size


def _begin() -> None:
    """Set up a worker process: ignore Ctrl-C, which the main process handles, and end with the main process."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _processes() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def chunks_of(record: DatasetRecord) -> Iterator[ImageChunk]:
    """All chunks. If images do not divide evenly, the first classes get one more each."""
    splits: dict[str, Split] = {"train": "train", "val": "val"}
    for name, images in record.images.items():
        for label in range(record.classes):
            of_class = images // record.classes + (label < images % record.classes)
            for first in range(0, of_class, _AT_ONCE):
                yield ImageChunk(splits[name], label, first, min(_AT_ONCE, of_class - first))


def write_chunk(root: Path, chunk: ImageChunk, image_size: int, seed: int) -> int:
    """Write the images of a chunk. Returns their size in bytes. Raises OSError."""
    pattern, size = class_pattern(chunk.label, image_size, seed), 0
    for number in range(chunk.first, chunk.first + chunk.count):
        chance = np.random.default_rng((seed, chunk.label, number, chunk.split == "val"))
        path = root / chunk.split / class_name(chunk.label) / f"{number:06d}.jpg"
        Image.fromarray(image_of(pattern, chance)).save(path, quality=QUALITY)
        size += path.stat().st_size
    return size


def class_name(label: int) -> str:
    """Name of a class's folder; alphabetical order is label order."""
    return f"class-{label:06d}"
