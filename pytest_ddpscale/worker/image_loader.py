"""Batches of images from a folder, for ranks that train together, read ahead by loader workers.

Uses torchvision's ImageFolder and torch's DistributedSampler and DataLoader, like users do; see `ddpscale suite
input-pipeline` and docs/how-to/input-pipeline.md.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import multiprocessing
from torch.distributed import DistStoreError
from torch.utils.data import DataLoader

from pytest_ddpscale.plan.workload import ImageFolderData, Split
from pytest_ddpscale.worker.control import Control
from pytest_ddpscale.worker.image_samples import (
    IMAGE_TIMEOUT_S,
    ImageSamples,
    LoadedImages,
    LoaderWorker,
    LoadFailure,
    joined_images,
    read_samples,
)
from pytest_ddpscale.worker.sharding import Shard, ShardBatches

# ImageNet's statistics, used by torchvision's models, for red, green and blue pixels in 0 … 1.
_MEAN, _STDEV = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
Pair = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class LoaderSettings:
    """Settings of one loader.

    Attributes:
        data: folder, number of workers and prefetching.
        batch_size: images per batch and rank.
        drop_last: whether an epoch leaves out images that do not fill a batch on every rank; else it has some twice,
            and the last batch is smaller.
        shuffle: whether each epoch has its own order.
        seed: of that order, the same on all ranks.
        channels_last: memory format of images.
        cores: cores for loader workers; empty for those of the rank.
    """

    data: ImageFolderData
    batch_size: int
    drop_last: bool = True
    shuffle: bool = True
    seed: int = 0
    channels_last: bool = False
    cores: tuple[int, ...] = ()


class ImageLoader:
    """One rank's batches. All ranks that share the images construct one, with the same settings.

    Loader workers start with the first batch and stay until `close`. They are forked from a clean server process,
    because a fork of the rank would hold its locks, and its sockets even after the rank died.

    Attributes:
        waited_s: seconds that the rank was blocked in `next`, for each batch since the latest `epoch` or `stretch`
            began.

    Raises:
        ValueError: there are too few images for a batch on each rank.
    """

    def __init__(self, samples: ImageSamples, shard: Shard, settings: LoaderSettings, device: torch.device) -> None:
        self.waited_s: list[float] = []
        self._samples, self._settings, self._device = samples, settings, device
        one = settings
        self._batches = ShardBatches(
            samples, shard, one.batch_size, drop_last=one.drop_last, shuffle=one.shuffle, seed=one.seed
        )
        if not self._batches.per_epoch:
            needed = f"at least {shard.world_size * one.batch_size}, a batch of {one.batch_size} for each rank"
            raise ValueError(f"{samples.root}: {len(samples)} images for {shard.world_size} ranks; expected {needed}")
        self._loader: DataLoader[Any] | None = self._data_loader()
        self._scale = (255 * torch.tensor(_STDEV, device=device)).view(1, 3, 1, 1)
        self._shift = (255 * torch.tensor(_MEAN, device=device)).view(1, 3, 1, 1)

    def __len__(self) -> int:
        """Number of batches of an epoch, the same on every rank."""
        return self._batches.per_epoch

    @property
    def batches_ahead(self) -> int:
        """Number of batches that are ready or being loaded while one is trained."""
        return self._settings.data.workers * self._settings.data.prefetch

    def epoch(self, number: int) -> Iterator[Pair]:
        """All batches of an epoch: images as normalised float32, (batch, 3, image_size, image_size), and int64 labels,
        (batch,), on the device.

        Raises:
            RuntimeError: an image is broken, or a loader worker died or took too long.
        """
        return self.stretch(number * len(self), len(self))

    def stretch(self, first: int, count: int) -> Iterator[Pair]:
        """`count` batches from number `first` on, numbered through all epochs; the next stretch continues there.

        Raises:
            RuntimeError: like `epoch`.
        """
        self._batches.first, self._batches.count = first, count
        self.waited_s = []
        batches = self._begun()
        for _ in range(count):
            yield self._on_device(self._next(batches))

    def close(self) -> None:
        """End the loader workers."""
        self._loader = None

    def _begun(self) -> Iterator[Any]:
        assert self._loader is not None, "the loader is closed"
        with self._named(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about more workers than cores of the rank: they have other cores
            return iter(self._loader)

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Add the folder to the error of a loader worker that died; torch notices within 5 s."""
        try:
            yield
        except RuntimeError as error:  # "DataLoader worker (pid(s) 7) exited unexpectedly"
            raise RuntimeError(f"loading {self._samples.root}: {str(error).splitlines()[0]}") from error
        except (OSError, EOFError) as error:  # while it sent a batch
            raise RuntimeError(f"loading {self._samples.root}: a loader worker died ({error})") from error

    def _data_loader(self) -> DataLoader[Any]:
        data, options = self._settings.data, dict[str, Any]()
        if data.workers:
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload(["pytest_ddpscale.worker.image_samples"])
            options = {
                "multiprocessing_context": context, "prefetch_factor": data.prefetch, "persistent_workers": True,
                "worker_init_fn": LoaderWorker(self._settings.cores),
            }  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # as in `_begun`
            return DataLoader(
                self._samples, batch_sampler=self._batches, num_workers=data.workers, collate_fn=joined_images,
                pin_memory=data.pin_memory and self._device.type == "cuda", **options,
            )  # fmt: skip

    def _next(self, batches: Iterator[Any]) -> LoadedImages:
        began_s = time.perf_counter()
        with self._named():
            loaded = next(batches)
        self.waited_s.append(time.perf_counter() - began_s)
        if isinstance(loaded, LoadFailure):
            raise RuntimeError(loaded.message)  # noqa: TRY004 (no wrong type: a broken image)
        assert isinstance(loaded, LoadedImages)
        return loaded

    def _on_device(self, loaded: LoadedImages) -> Pair:
        images = loaded.images.to(self._device, non_blocking=True)
        if self._settings.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        return (images - self._shift) / self._scale, loaded.labels.to(self._device, non_blocking=True)


def open_samples(
    data: ImageFolderData, split: Split, image_size: int, control: Control, key: str,
    timeout_s: float = IMAGE_TIMEOUT_S,
) -> ImageSamples:  # fmt: skip
    """The images of a split, the same on every rank. All ranks of the gang call this at the same time.

    The first rank of each node reads the folder before the others, which then find it in the node's caches.

    Args:
        key: unique for each call.
        timeout_s: time limit for reading one image.

    Raises:
        ValueError: the folder is invalid, here or on the node's first rank.
        RuntimeError: the node's first rank did not read it in time, or this rank sees other images than rank 0.
    """
    first = control.rank - control.local_rank
    if control.rank != first:
        _hear(control, f"{key}/{first}", data)
    try:
        samples = read_samples(data.folder, split, image_size, timeout_s)
    except ValueError as error:
        if control.rank == first:
            control.say(f"{key}/{first}", {"error": str(error)})
        raise
    if control.rank == first:
        control.say(f"{key}/{first}", {"digest": samples.digest, "images": len(samples)})
    theirs = _hear(control, f"{key}/0", data)
    if theirs["digest"] != samples.digest:
        raise RuntimeError(
            f"{samples.root}: rank {control.rank} sees {len(samples)} images, which differ from the "
            f"{theirs['images']} of rank 0; expected the same files under the same names on every node"
        )
    return samples


def _hear(control: Control, key: str, data: ImageFolderData) -> dict[str, Any]:
    """The message of the first rank of a node about the folder."""
    rank = key.rpartition("/")[2]
    try:
        said: dict[str, Any] = control.hear(key)
    except DistStoreError:
        raise RuntimeError(f"{data.folder}: rank {rank} did not read it in time") from None
    if "error" in said:
        raise ValueError(f"rank {rank} could not read the images: {said['error']}")
    return said
