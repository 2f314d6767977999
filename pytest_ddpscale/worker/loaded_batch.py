"""Batches of an arm that trains on images from a folder, a new one for each forward pass."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.study import Study
from pytest_ddpscale.worker.image_loader import ImageLoader, LoaderSettings
from pytest_ddpscale.worker.image_samples import ImageSamples
from pytest_ddpscale.worker.sharding import Shard


class LoadedBatch:
    """A `pytest_ddpscale.worker.training.Batch` with new images for each pass, read block by block.

    Loader workers read ahead during all timed steps, as in the middle of an epoch, so a block loads more batches than
    it trains. The surplus is thrown away: no worker reads while another arm is timed, and no block begins with batches
    that were read outside of timed steps.

    Attributes:
        images: float32, (batch, 3, image_size, image_size), normalised.
        labels: int64, (batch,).
    """

    def __init__(self, loader: ImageLoader) -> None:
        self._loader = loader
        self._next_number = 0
        self._passes = 0
        self._coming: Iterator[tuple[torch.Tensor, torch.Tensor]] = iter(())
        self.images, self.labels = torch.empty(0), torch.empty(0)

    def begin(self, passes: int) -> None:
        """Start reading for a block with this number of forward passes."""
        self._passes, count = passes, passes + self._loader.batches_ahead
        self._coming = self._loader.stretch(self._next_number, count)
        self._next_number += count

    def fetch(self) -> None:
        """Take the next batch. Raises RuntimeError like `ImageLoader.stretch`."""
        self.images, self.labels = next(self._coming)

    def end(self) -> list[float]:
        """Wait until loader workers are idle. Returns the seconds waited in each pass. Raises like `fetch`."""
        waited_s = list(self._loader.waited_s)
        for _ in self._coming:
            pass
        return waited_s[: self._passes]

    def close(self) -> None:
        """End the loader workers."""
        self._coming = iter(())
        self._loader.close()


@dataclass(frozen=True)
class StudyImages:
    """Images of a study's arms.

    Attributes:
        samples: all images.
        cores: cores for loader workers; empty for those of the rank.
    """

    samples: ImageSamples
    cores: tuple[int, ...] = ()

    def batch_of(self, study: Study, arm: Arm, rank: int, layout: Layout, device: torch.device) -> LoadedBatch:
        """One rank's batches of an arm that it belongs to.

        Raises:
            ValueError: the folder has more classes than the model, or too few images.
        """
        workload, data = arm.variant.applied_to(study.workload), arm.data_of(study.workload)
        assert data != "synthetic"
        family = workload.family
        if self.samples.classes > family.num_classes:
            found = f"{self.samples.classes} classes, but {workload.name} has num_classes {family.num_classes}"
            raise ValueError(f"{self.samples.root}: {found}; expected at most as many")
        group = next(ranks for turn in range(study.turns) for ranks in layout.groups(arm, turn) if rank in ranks)
        shard = Shard(group.index(rank), len(group))
        settings = LoaderSettings(
            data, arm.variant.batch_of(arm.batch_size, rank), channels_last=family.memory_format == "channels_last",
            cores=self.cores,
        )  # fmt: skip
        return LoadedBatch(ImageLoader(self.samples, shard, settings, device))
