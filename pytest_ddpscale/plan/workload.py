"""The training job of one rank: what every family of models has, its family's options, and its data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Literal

from pytest_ddpscale.families.family import Family, refuse_beyond
from pytest_ddpscale.plan.words import Precision

Split = Literal["train", "val"]
MOST_LOADER_WORKERS = 256  # per rank; more than a node has cores for
MOST_PREFETCH = 1024
BYTES_PER_GRADIENT = 4  # autocast keeps parameters and gradients in fp32
# Beyond any GPU's memory or any data set.
_MOST = {"batch_size": 10**6, "global_batch_size": 10**8}
_NESTED = {"family", "kind"}


@dataclass(frozen=True)
class ImageFolderData:
    """A folder of samples by class, and how each rank reads it.

    Attributes:
        folder: absolute path, the same on every node, with a folder ``train`` and, for validation, ``val``, each with a
            folder for every class, as torchvision's ImageFolder reads them.
        workers: processes of each rank that read and decode; 0 reads in the rank's own process.
        prefetch: batches that each worker prefetches.
        pin_memory: whether batches go through pinned memory, from which a GPU copies while it computes.
    """

    folder: str
    workers: int = 4
    prefetch: int = 2
    pin_memory: bool = True

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


@dataclass(frozen=True)
class Workload:
    """One training job, as a single rank sees it.

    Attributes:
        name: its name in thresholds, tests and reports, for example ``resnet152-fp16``.
        family: the model and the options that only its family has.
        precision: ``fp32``; ``fp16`` (autocast with GradScaler); ``bf16`` (autocast).
        batch_size: per-GPU batch, in samples. Weak scaling keeps it fixed.
        global_batch_size: the batch that strong scaling divides among the ranks, in samples.
        compile: whether ``torch.compile`` is applied after DistributedDataParallel.
        optimizer: ``sgd`` is torch.optim.SGD with momentum 0.9.
        data: ``synthetic`` for random samples generated on the device, else a folder of samples.
    """

    name: str
    family: Family
    precision: Precision
    batch_size: int
    global_batch_size: int | None = None
    compile: bool = False
    optimizer: Literal["sgd"] = "sgd"
    data: Data = "synthetic"

    def __post_init__(self) -> None:
        refuse_beyond(self, _MOST)

    @property
    def settings(self) -> dict[str, Any]:
        """All options by name, its family's among them, as a thresholds file has them."""
        both = vars(self) | vars(self.family)
        return {
            name: both[name]
            for name in dict.fromkeys((*self.family.settings_order, *both))
            if name in both.keys() - _NESTED
        }

    def differences(self, other: Workload) -> dict[str, tuple[Any, Any]]:
        """Both values of each setting that differs, by name; None where a family has no such setting."""
        return _differences(self.settings, other.settings)

    @property
    def kernels(self) -> dict[str, Any]:
        """What decides which kernels run for a sample, by name.

        Batch size is deliberately not among it, because generations are compared each at its own largest batch.
        """
        wanted, settings = ("model", "precision", *self.family.of_kernels), self.settings
        return {name: settings[name] for name in wanted} | {"data_kind": self.data_kind}

    @property
    def data_kind(self) -> str:
        """``synthetic`` or ``folder``."""
        return "synthetic" if self.data == "synthetic" else "folder"


def incomparable_fields(one: Workload, other: Workload) -> list[str]:
    """Names of the settings that forbid comparing the throughput of two SKUs."""
    return list(_differences(one.kernels, other.kernels))


def _differences(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {name: (ours.get(name), theirs.get(name)) for name in ours | theirs if ours.get(name) != theirs.get(name)}
