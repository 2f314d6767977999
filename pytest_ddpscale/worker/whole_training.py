"""One rank's part in a whole training run: epochs over a data set, validation, and the time of each span."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from pytest_ddpscale.plan.training_run import CLASSIFIER, TrainingRun, loss_reached
from pytest_ddpscale.plan.workload import ImageFolderData, Split
from pytest_ddpscale.run.records import EndReason, RankEpoch, RankTrained, TrainedEpoch, TrainedRun
from pytest_ddpscale.util.idx_file import TRAIN_FILES, VALIDATION_FILES, idx_path, read_idx
from pytest_ddpscale.worker.context import RankContext
from pytest_ddpscale.worker.images import ImageLoader, Labelled, Shard, ShardBatches, open_samples
from pytest_ddpscale.worker.model import checksum
from pytest_ddpscale.worker.replica import StepCounter
from pytest_ddpscale.worker.training import autocast, build_model, compiled, compute_fp32_in_full, new_scaler

COMPILE, TRAINING, WAITING = "compile_s", "training_s", "waiting_s"
VALIDATION, VALIDATION_WAITING = "validation_s", "validation_waiting_s"
# Generated images: a pattern of the class with this many tiles per side, plus noise with this standard deviation.
TILES = 8
NOISE = 2.5
_MNIST_MEAN, _MNIST_SD = 0.1307, 0.3081  # of the training images, from torchvision's examples
_NO_LABEL = -1  # label of padding: not a class, so it is never classified correctly


class SpanClock:
    """Adds up named spans, in seconds.

    Time between two spans belongs to none; it shows as unexplained in a comparison with an outer clock.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._open = ""

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Count the time within this context for a span. Raises RuntimeError within another span."""
        if self._open:
            raise RuntimeError(f"{name} begins within {self._open}; spans of one clock do not overlap")
        self._open, began = name, time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began
            self._open = ""

    def taken(self) -> dict[str, float]:
        """Return the sums so far and reset them."""
        seconds, self.seconds = self.seconds, {}
        return seconds


class WholeTraining:
    """Carries out a run; all ranks of the gang do so at the same time."""

    def __init__(self, run: TrainingRun, context: RankContext) -> None:
        if run.layout != context.control.layout:
            found = context.control.layout
            raise RuntimeError(
                f"{run.id} is planned for {run.nodes} nodes of {run.ranks_per_node} ranks; "
                f"this gang has {found.nodes} of {found.ranks_per_node}"
            )
        self._run, self._context = run, context
        self._spans = SpanClock()
        self._losses: list[float] = []  # of all iterations so far
        self._start_up_s = 0.0
        self._compiles = run.compile_mode != "no"

    def run(self) -> tuple[EndReason, str]:
        """Train all epochs, or until the loss is reached. Returns the reason of the end, and an error message."""
        context = self._context
        self._prepare()
        context.control.decided(f"{self._run.id}/ready", lambda: True)
        self._start_up_s = max(0.0, time.time() - context.launched_unix_s)  # assumes that both clocks agree
        for epoch in range(self._run.epochs):
            if context.control.decided(f"{self._run.id}/{epoch}/over", lambda: context.is_out_of_time):
                return "budget", ""
            if problem := self._epoch(epoch):
                return "error", problem
            threshold = self._run.loss_threshold
            if threshold is not None and loss_reached(self._losses, threshold) is not None:
                self._tell_end()
                return "decided", ""
        self._tell_end()
        return "rounds", ""

    def _prepare(self) -> None:
        run, device = self._run, self._context.device
        self._say("preparation")
        device.check(run.workload.precision)
        torch.backends.cudnn.benchmark = run.workload.family.cudnn_benchmark
        compute_fp32_in_full()
        make = _folder_images if run.samples.kind == "folder" else _held_images
        self._training: ImageLoader | HeldImages
        self._validation: ImageLoader | HeldImages
        self._training, self._validation = make(run, self._context)
        self._model = _model_of(run, device.torch_device)
        torch.manual_seed(run.seed + 1 + self._context.control.rank)  # dropout differs between ranks, like data
        ids = [device.torch_device.index] if device.torch_device.type == "cuda" else None
        wrapped = DistributedDataParallel(self._model, device_ids=ids)
        self._call: Any = wrapped
        self._infer: Any = self._model
        if self._compiles:
            self._call = compiled(wrapped, run.compile_mode)
            self._infer = compiled(self._model, run.compile_mode)
        optimizers: dict[str, Callable[..., torch.optim.Optimizer]] = {
            "sgd": partial(torch.optim.SGD, momentum=0.9), "adam": torch.optim.Adam, "adamw": torch.optim.AdamW
        }  # fmt: skip
        self._optimizer = optimizers[run.optimizer](self._model.parameters(), lr=run.learning_rate)
        self._steps = StepCounter(self._optimizer)
        self._scaler = new_scaler(run.workload, device.torch_device)
        self._criterion = nn.CrossEntropyLoss()

    def _epoch(self, epoch: int) -> str:
        """Train and validate. Returns an error message if the loss is not finite, else an empty string."""
        control = self._context.control
        self._context.progress.round = epoch
        self._say("training")
        losses, trained = self._train(epoch)
        broken = next((i for i, loss in enumerate(losses) if not math.isfinite(loss)), None)
        if broken is not None:
            return (
                f"the loss is {losses[broken]} in iteration {broken + 1} of epoch {epoch + 1}: training with "
                f"{self._run.optimizer} at a learning rate of {self._run.learning_rate:g} does not converge; lower it"
            )
        self._losses += losses
        self._say("validation")
        validated, correct = self._validate(epoch)
        spans = {COMPILE: 0.0, VALIDATION: 0.0, VALIDATION_WAITING: 0.0, **self._spans.taken()}
        part = RankEpoch(rank=control.rank, trained=trained, validated=validated, correct=correct, **spans)

        told = partial(TrainedEpoch, study=self._run.id, gang=self._context.gang, epoch=epoch, losses=tuple(losses))
        self._say("gathering")
        self._context.record(f"{self._run.id}/{epoch}", part, RankEpoch, told)
        return ""

    def _train(self, epoch: int) -> tuple[list[float], int]:
        """Train one epoch. Returns the loss of each iteration, mean over ranks, and the images this rank trained."""
        self._call.train()
        batches, losses, trained = self._training.epoch(epoch), [], 0
        for iteration in range(self._run.iterations):
            images, labels = self._awaited(batches, WAITING)
            first = self._compiles and epoch == iteration == 0
            with self._spans(COMPILE if first else TRAINING):
                losses.append(self._step(images, labels))
                if first:
                    self._await_device()
            trained += len(labels)
            self._context.progress.count_step()
        with self._spans(TRAINING):
            mean = torch.stack(losses).float()
            dist.all_reduce(mean)
            return (mean / self._run.world_size).tolist(), trained  # waits for the device

    def _step(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        self._optimizer.zero_grad(set_to_none=True)
        with autocast(self._run.workload, images.device):
            loss: torch.Tensor = self._criterion(self._call(images), labels)
        if self._scaler is None:
            loss.backward()
            self._optimizer.step()
        else:
            self._scaler.scale(loss).backward()
            self._scaler.step(self._optimizer)
            self._scaler.update()
        return loss.detach()

    def _validate(self, epoch: int) -> tuple[int, int]:
        """Return the number of images that this rank validated, and how many of them were classified correctly."""
        self._infer.eval()
        with self._spans(VALIDATION):
            # Rank 0's statistics of batch normalisation, like a checkpoint: all ranks validate one model.
            for buffer in self._model.buffers() if self._run.world_size > 1 else ():
                dist.broadcast(buffer, src=0)
        batches, batch_size = self._validated(epoch), self._run.workload.batch_size
        correct = torch.zeros((), dtype=torch.int64, device=self._context.device.torch_device)
        validated, first = 0, self._compiles and epoch == 0
        while (batch := self._awaited(batches, VALIDATION_WAITING, ends=True)) is not None:
            images, labels = padded(batch, batch_size) if self._compiles else batch
            if first:  # once more than needed, so that images and seconds of validation belong together
                with self._spans(COMPILE), torch.no_grad(), autocast(self._run.workload, images.device):
                    self._infer(images)
                    self._await_device()
                first = False
            with self._spans(VALIDATION), torch.no_grad(), autocast(self._run.workload, images.device):
                correct += (self._infer(images).argmax(dim=1) == labels).sum()
            validated += len(batch[1])
            self._context.progress.count_step()
        with self._spans(VALIDATION):
            return validated, int(correct)  # waits for the device

    def _awaited(self, batches: Iterator[Labelled], span: str, *, ends: bool = False) -> Any:
        """The next batch; after the last one None if `ends`, else RuntimeError."""
        with self._spans(span):
            batch = next(batches, None)
        if batch is None and not ends:
            raise RuntimeError(f"the data ended before {self._run.iterations} iterations of this epoch")
        return batch

    def _validated(self, epoch: int) -> Iterator[Labelled]:
        """This rank's images, without the duplicates by which the sampler gives all ranks equally many."""
        left = len(range(self._context.control.rank, self._run.samples.validation_samples, self._run.world_size))
        for images, labels in self._validation.epoch(epoch):
            if left:
                yield images[:left], labels[:left]
            left = max(0, left - len(labels))

    def _tell_end(self) -> None:
        self._training.close()
        self._validation.close()
        control, device = self._context.control, self._context.device.torch_device
        is_gpu = device.type == "cuda"
        part = RankTrained(
            rank=control.rank,
            allocated_bytes=torch.cuda.max_memory_allocated(device) if is_gpu else None,
            reserved_bytes=torch.cuda.max_memory_reserved(device) if is_gpu else None,
            parameters_checksum=checksum(self._model.parameters()),
            skipped_steps=len(self._losses) - self._steps.taken,
        )
        counts = [(one.numel(), one.requires_grad) for one in self._model.parameters()]
        told = partial(
            TrainedRun, study=self._run.id, gang=self._context.gang, start_up_s=self._start_up_s,
            parameters=sum(count for count, _ in counts),
            trainable_parameters=sum(count for count, trains in counts if trains),
        )  # fmt: skip
        self._context.record(f"{self._run.id}/end", part, RankTrained, told)

    def _await_device(self) -> None:
        if self._context.device.torch_device.type == "cuda":
            torch.cuda.synchronize()

    def _say(self, phase: str) -> None:
        self._context.progress.arm = f"ddp@{self._run.world_size}"
        self._context.progress.phase = phase


def padded(batch: Labelled, size: int) -> Labelled:
    """A batch padded to a size with images that never count as correct, because another size would recompile."""
    images, labels = batch
    missing = size - len(labels)
    if not missing:
        return batch
    more = images.new_zeros(missing, *images.shape[1:])
    return torch.cat([images, more]), torch.cat([labels, labels.new_full((missing,), _NO_LABEL)])


def _shard_of(run: TrainingRun, context: RankContext, *, is_training: bool) -> Shard:
    return Shard(context.control.rank, run.world_size, run.workload.batch_size, is_training, run.seed)


def _folder_images(run: TrainingRun, context: RankContext) -> tuple[ImageLoader, ImageLoader]:
    """Images to train and to validate from a folder, through the loader that `ddpscale suite input-pipeline` measures.

    Raises:
        ValueError, RuntimeError: the folder differs from the plan, or between nodes.
    """
    family, data = run.workload.family, ImageFolderData(run.samples.path, workers=run.loader_workers)

    def loader(split: Split, planned: int) -> ImageLoader:
        samples = open_samples(data, split, family.image_size, context.control, f"{run.id}/{split}")
        if (len(samples), samples.classes) != (planned, run.samples.classes):
            raise ValueError(
                f"{samples.root}: {len(samples)} images of {samples.classes} classes; expected {planned} of "
                f"{run.samples.classes}, as when the run was planned"
            )
        return ImageLoader(
            samples, data, _shard_of(run, context, is_training=split == "train"), context.device.torch_device,
            channels_last=family.memory_format == "channels_last", cores=context.loader_cores,
        )  # fmt: skip

    return loader("train", run.samples.train_samples), loader("val", run.samples.validation_samples)


class HeldImages:
    """Small images that every rank holds in its device's memory; a batch is scaled up to the run's image size."""

    def __init__(self, run: TrainingRun, context: RankContext, held: Labelled, *, is_training: bool) -> None:
        self._family, self._device = run.workload.family, context.device.torch_device
        self._images, self._labels = (one.to(self._device) for one in held)
        self._batches = ShardBatches(self._labels, _shard_of(run, context, is_training=is_training))

    def epoch(self, number: int) -> Iterator[Labelled]:
        """This rank's batches: images, float32 (batch, channels, size, size), and labels, int64 (batch,)."""
        family, self._batches.count = self._family, self._batches.per_epoch
        self._batches.first = number * self._batches.count
        for indices in self._batches:
            which = torch.tensor(indices).to(self._device)
            images, size = self._images[which], family.image_size
            if images.shape[-1] != size:
                images = functional.interpolate(images, size=(size, size), mode="nearest")
            images = images.expand(-1, channels_of(family.model), -1, -1)
            if family.memory_format == "channels_last":
                images = images.contiguous(memory_format=torch.channels_last)
            yield images, self._labels[which]

    def close(self) -> None:
        """Do nothing: no resources are open."""


def _held_images(run: TrainingRun, context: RankContext) -> tuple[HeldImages, HeldImages]:
    """Images to train and to validate. Raises OSError or ValueError if a file is missing or invalid."""
    training, validation = (made_samples if run.samples.kind == "made" else mnist_samples)(run)
    held = HeldImages(run, context, training, is_training=True)
    return held, HeldImages(run, context, validation, is_training=False)


def made_samples(run: TrainingRun) -> tuple[Labelled, Labelled]:
    """Images that can be learnt: each class has a pattern, and each image its own noise."""
    samples, generator = run.samples, torch.Generator().manual_seed(run.seed)
    patterns = torch.randn(samples.classes, channels_of(run.workload.family.model), TILES, TILES, generator=generator)

    def drawn(count: int) -> Labelled:
        labels = torch.randint(samples.classes, (count,), generator=generator)
        noise = torch.randn(count, *patterns.shape[1:], generator=generator)
        # Scaled to unit variance, like normalised images.
        return (patterns[labels] + NOISE * noise) / (1 + NOISE**2) ** 0.5, labels

    return drawn(samples.train_samples), drawn(samples.validation_samples)


def mnist_samples(run: TrainingRun) -> tuple[Labelled, Labelled]:
    """MNIST's images, normalised."""

    def read(names: tuple[str, str]) -> Labelled:
        paths = (idx_path(Path(run.samples.path), name) for name in names)
        images, labels = (torch.from_numpy(read_idx(path).copy()) for path in paths)
        return ((images.float() / 255 - _MNIST_MEAN) / _MNIST_SD).unsqueeze(1), labels.long()

    return read(TRAIN_FILES), read(VALIDATION_FILES)


def channels_of(model: str) -> int:
    """Channels of a model's images: 3 for torchvision's models, 1 for classifiers."""
    return 1 if model.startswith(CLASSIFIER) else 3


def _model_of(run: TrainingRun, device: torch.device) -> nn.Module:
    """The untrained model, the same on every rank; classifiers: three linear layers, see docs/how-to/convergence.md."""
    family, model = run.workload.family, run.workload.family.model
    if not model.startswith(CLASSIFIER):
        return build_model(run.workload, device, run.seed)
    torch.manual_seed(run.seed)
    pixels, hidden = channels_of(model) * family.image_size**2, int(model.removeprefix(CLASSIFIER))
    layers = (
        nn.Flatten(), nn.Linear(pixels, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(),
        nn.Linear(hidden, family.num_classes),
    )  # fmt: skip
    return nn.Sequential(*layers).to(device)
