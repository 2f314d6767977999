"""A whole run's images from a folder, through the loader that `ddpscale suite input-pipeline` measures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pytest_ddpscale.plan.training_run import TrainingRun
from pytest_ddpscale.plan.workload import ImageFolderData
from pytest_ddpscale.worker.image_loader import ImageLoader, LoaderSettings, open_samples
from pytest_ddpscale.worker.rank_context import RankContext
from pytest_ddpscale.worker.sample_source import Labelled
from pytest_ddpscale.worker.sharding import Shard


class FolderSource:
    """A `SampleSource` from a folder; all ranks construct it at the same time.

    Raises:
        ValueError, RuntimeError: the folder differs from the plan, or between nodes.
    """

    def __init__(self, run: TrainingRun, context: RankContext) -> None:
        self._run, self._context = run, context
        self._shard = Shard(context.control.rank, context.control.world_size)
        self._training = self._loader("train")
        self._validation = self._loader("val")

    def training(self, epoch: int) -> Iterator[Labelled]:
        """This rank's batches."""
        return self._training.epoch(epoch)

    def validation(self, epoch: int) -> Iterator[Labelled]:
        """This rank's images, without the duplicates by which the sampler gives all ranks equally many."""
        left = len(range(self._shard.rank, self._run.samples.validation_samples, self._shard.world_size))
        for images, labels in self._validation.epoch(epoch):
            if left:
                yield images[:left], labels[:left]
            left = max(0, left - len(labels))

    def close(self) -> None:
        """End the loader workers."""
        self._training.close()
        self._validation.close()

    def _loader(self, split: Literal["train", "val"]) -> ImageLoader:
        run, context, key = self._run, self._context, f"{self._run.id}/{split}"
        data = ImageFolderData(run.samples.path, workers=run.loader_workers)
        samples = open_samples(data, split, run.workload.family.image_size, context.control, key)
        planned = run.samples.train_samples if split == "train" else run.samples.validation_samples
        if (len(samples), samples.classes) != (planned, run.samples.classes):
            raise ValueError(
                f"{samples.root}: {len(samples)} images of {samples.classes} classes; expected {planned} of "
                f"{run.samples.classes}, as when the run was planned"
            )
        is_training = split == "train"
        settings = LoaderSettings(
            data, run.workload.batch_size, drop_last=is_training, shuffle=is_training, seed=run.seed,
            channels_last=run.workload.family.memory_format == "channels_last", cores=context.loader_cores,
        )  # fmt: skip
        return ImageLoader(samples, self._shard, settings, context.device.torch_device)
