"""Distribution of images over ranks and batches, and a check that all ranks together load each image once."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from torch.distributed import Store
from torch.utils.data import DistributedSampler


@dataclass(frozen=True)
class Shard:
    """One rank's part of the images.

    Attributes:
        rank: among the ranks that share the images, from 0.
        world_size: number of these ranks.
    """

    rank: int = 0
    world_size: int = 1


class Digest(NamedTuple):
    """Digest of a set of images, independent of their order: their number, and the sum of their hashes."""

    images: int = 0
    hashes: int = 0

    def and_of(self, other: Digest) -> Digest:
        """The digest of both sets."""
        return Digest(self.images + other.images, self.hashes + other.hashes)


def digest_of(indices: npt.NDArray[np.int64]) -> Digest:
    """The digest of some images. Hashes have 32 bits: the sum over 2³¹ images stays below 2⁶³, the store's limit."""
    mixed = indices.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)  # splitmix64 (Steele et al., 2014)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return Digest(len(indices), int(((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(32)).sum()))


class ShardBatches:
    """The batches of one rank, numbered through all epochs; a batch sampler for DataLoader.

    torch's DistributedSampler shuffles again in each epoch. If images do not divide evenly, it leaves some out
    (`drop_last`: those at the end of the epoch's order, so different ones each time), or has some twice.

    Attributes:
        per_epoch: number of batches of an epoch, the same on every rank.
        first, count: range of the batches to yield.
    """

    def __init__(
        self, images: Sized, shard: Shard, batch_size: int, *, drop_last: bool, shuffle: bool, seed: int
    ) -> None:
        options: dict[str, Any] = {"shuffle": shuffle, "seed": seed, "drop_last": drop_last}
        self._sampler = DistributedSampler(images, shard.world_size, shard.rank, **options)  # type: ignore[arg-type, var-annotated]
        self._whole = DistributedSampler(images, 1, 0, shuffle=shuffle, seed=seed)  # type: ignore[arg-type, var-annotated]
        self._batch_size = batch_size
        self._samples = len(self._sampler) // batch_size * batch_size if drop_last else len(self._sampler)
        self._world_size = shard.world_size
        self._epoch = -1
        self._indices: list[int] = []
        self.per_epoch = -(-self._samples // batch_size)
        self.first, self.count = 0, 0

    def __iter__(self) -> Iterator[list[int]]:
        for number in range(self.first, self.first + self.count):
            epoch, at = divmod(number, self.per_epoch)
            if epoch != self._epoch:
                self._epoch, self._indices = epoch, _order(self._sampler, epoch)[: self._samples]
            yield self._indices[at * self._batch_size : (at + 1) * self._batch_size]

    def expected(self, epoch: int) -> Digest:
        """The digest of the images that all ranks together have to load in an epoch.

        Samplers take images of one order in turn: dropping leaves out its end, padding repeats its start.
        """
        order = np.array(_order(self._whole, epoch), np.int64)
        return digest_of(np.resize(order, self._samples * self._world_size))


def _order(sampler: DistributedSampler[Any], epoch: int) -> list[int]:
    sampler.set_epoch(epoch)
    return list(sampler)


class EpochCheck:
    """Sums of the images that ranks loaded in each epoch, in their store: no rank waits, and the last one compares.

    Args:
        store: shared by all ranks.
        name: unique for each loader, the same on all its ranks.
    """

    def __init__(self, store: Store, name: str, world_size: int) -> None:
        self._store, self._name, self._world_size = store, name, world_size

    def total(self, epoch: int, loaded: Digest) -> Digest | None:
        """Add a rank's part. Returns the total on the last rank, else None."""
        images, hashes, ranks = (f"{self._name}/{epoch}/{part}" for part in ("images", "hashes", "ranks"))
        self._store.add(images, loaded.images)
        self._store.add(hashes, loaded.hashes)
        if self._store.add(ranks, 1) < self._world_size:
            return None
        # Read only now, because others may have added to the first two since.
        found = Digest(self._store.add(images, 0), self._store.add(hashes, 0))
        for key in (images, hashes, ranks):
            self._store.delete_key(key)
        return found
