"""Training data read from a folder of images."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath
from typing import ClassVar, Literal

MOST_LOADER_WORKERS = 256  # per rank; more than a node has cores for
MOST_PREFETCH = 1024
Split = Literal["train", "val"]


@dataclass(frozen=True)
class ImageFolderData:
    """A folder of images by class, and how each rank reads it.

    Attributes:
        folder: absolute path, the same on every node, with a folder ``train`` and, for validation, ``val``, each with a
            folder of images for every class (torchvision's ImageFolder).
        workers: processes of each rank that read and decode; 0 reads in the rank's own process.
        prefetch: batches that each worker prefetches.
        pin_memory: whether batches go through pinned memory, from which a GPU copies while it computes.
    """

    folder: str
    workers: int = 4
    prefetch: int = 2
    pin_memory: bool = True

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        if not PurePath(self.folder).is_absolute():
            raise ValueError(f"data.folder is {self.folder!r}; expected an absolute path that exists on all nodes")
        if not 0 <= self.workers <= MOST_LOADER_WORKERS:
            raise ValueError(f"data.workers is {self.workers}; expected 0 to {MOST_LOADER_WORKERS}")
        if not 1 <= self.prefetch <= MOST_PREFETCH:
            raise ValueError(f"data.prefetch is {self.prefetch}; expected 1 to {MOST_PREFETCH}")

    def __str__(self) -> str:
        return f"{self.folder} ({self.workers} loader workers per rank, prefetch {self.prefetch})"


Data = Literal["synthetic"] | ImageFolderData
