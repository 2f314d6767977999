"""Distribution of images over ranks and batches."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from dataclasses import dataclass
from typing import Any

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
        self._batch_size = batch_size
        self._samples = len(self._sampler) // batch_size * batch_size if drop_last else len(self._sampler)
        self._epoch = -1
        self._indices: list[int] = []
        self.per_epoch = -(-self._samples // batch_size)
        self.first, self.count = 0, 0

    def __iter__(self) -> Iterator[list[int]]:
        for number in range(self.first, self.first + self.count):
            epoch, at = divmod(number, self.per_epoch)
            if epoch != self._epoch:
                self._sampler.set_epoch(epoch)
                self._epoch, self._indices = epoch, list(self._sampler)[: self._samples]
            yield self._indices[at * self._batch_size : (at + 1) * self._batch_size]
