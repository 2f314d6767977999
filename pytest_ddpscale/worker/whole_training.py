"""One rank's part in a whole training run: epochs over a data set, validation, and the time of each span."""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from pytest_ddpscale.datasets.image_samples import HeldImages, ImageSamples, held_images
from pytest_ddpscale.plan.training_run import TrainingRun, loss_reached
from pytest_ddpscale.plan.workload import ImageFolderData, Split
from pytest_ddpscale.run.records import Checkpoint, EndReason, RankEpoch, RankTrained, TrainedEpoch, TrainedRun
from pytest_ddpscale.util.owned_folder import owned_folder
from pytest_ddpscale.worker.context import RankContext
from pytest_ddpscale.worker.loading import DeviceBatch, SampleLoader, Shard, open_samples
from pytest_ddpscale.worker.model import build_model, checksum
from pytest_ddpscale.worker.replica import StepCounter
from pytest_ddpscale.worker.training import Trainer, autocast, compiled, compiled_anew, compute_fp32_in_full, new_scaler

COMPILE, TRAINING, WAITING = "compile_s", "training_s", "waiting_s"
VALIDATION, VALIDATION_WAITING = "validation_s", "validation_waiting_s"
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
            layout = context.control.layout
            raise RuntimeError(
                f"{run.id} is planned for {run.nodes} nodes of {run.ranks_per_node} ranks; "
                f"this gang has {layout.nodes} of {layout.ranks_per_node}"
            )
        self._run, self._context = run, context
        self._spans = SpanClock()
        self._losses: list[float] = []  # of all iterations so far
        self._start_up_s = 0.0
        self._compiles = run.compile_mode != "no"

    def run(self) -> tuple[EndReason, str]:
        """Train all epochs, or until the loss is reached. Returns the reason of the end, and an error message."""
        with compiled_anew() if self._compiles else nullcontext():
            return self._trained()

    def _trained(self) -> tuple[EndReason, str]:
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
        self._training, self._validation = _loaders(run, self._context)
        self._model = build_model(run.workload, device.torch_device, run.seed)
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
        scaler = new_scaler(run.workload, device.torch_device)
        self._trainer = Trainer(self._call, self._optimizer, (), run.workload, scaler)
        self._context.wait_for_first_poll()

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

        record = partial(TrainedEpoch, study=self._run.id, gang=self._context.gang, epoch=epoch, losses=tuple(losses))
        self._say("gathering")
        self._context.record(f"{self._run.id}/{epoch}", part, RankEpoch, record)
        return ""

    def _train(self, epoch: int) -> tuple[list[float], int]:
        """Train one epoch. Returns the loss of each iteration, mean over ranks, and the samples this rank trained."""
        self._call.train()
        batches, losses, trained = self._training.epoch(epoch), [], 0
        for iteration in range(self._run.iterations):
            fed = self._awaited(batches, WAITING)
            first = self._compiles and epoch == iteration == 0
            with self._spans(COMPILE if first else TRAINING):
                self._trainer(fed)
                losses.append(self._trainer.loss)
                if first:
                    self._context.device.synchronize()
            trained += len(fed.targets)
            self._context.progress.count_step()
        with self._spans(TRAINING):
            mean = torch.stack(losses).float()
            dist.all_reduce(mean)
            return (mean / self._run.world_size).tolist(), trained  # waits for the device

    def _validate(self, epoch: int) -> tuple[int, int]:
        """Return the number of samples that this rank validated, and how many of them were classified correctly."""
        self._infer.eval()
        with self._spans(VALIDATION):
            # Rank 0's statistics of batch normalisation, like a checkpoint: all ranks validate one model.
            for buffer in self._model.buffers() if self._run.world_size > 1 else ():
                dist.broadcast(buffer, src=0)
        batches, batch_size = self._validated(epoch), self._run.workload.batch_size
        correct = torch.zeros((), dtype=torch.int64, device=self._context.device.torch_device)
        validated, first = 0, self._compiles and epoch == 0
        while (batch := self._awaited(batches, VALIDATION_WAITING, ends=True)) is not None:
            inputs, targets = padded(batch, batch_size) if self._compiles else batch
            if first:  # once more than needed, so that samples and seconds of validation belong together
                with self._spans(COMPILE), torch.no_grad(), autocast(self._run.workload, inputs.device):
                    self._infer(inputs)
                    self._context.device.synchronize()
                first = False
            with self._spans(VALIDATION), torch.no_grad(), autocast(self._run.workload, inputs.device):
                correct += (self._infer(inputs).argmax(dim=1) == targets).sum()
            validated += len(batch[1])
            self._context.progress.count_step()
        with self._spans(VALIDATION):
            return validated, int(correct)  # waits for the device

    def _awaited(self, batches: Iterator[DeviceBatch], span: str, *, ends: bool = False) -> Any:
        """The next batch; after the last one None if `ends`, else RuntimeError."""
        with self._spans(span):
            batch = next(batches, None)
        if batch is None and not ends:
            raise RuntimeError(f"the data ended before {self._run.iterations} iterations of this epoch")
        return batch

    def _validated(self, epoch: int) -> Iterator[DeviceBatch]:
        """This rank's samples, without the duplicates by which the sampler gives all ranks equally many."""
        left = len(range(self._context.control.rank, self._run.samples.validation_samples, self._run.world_size))
        for inputs, targets in self._validation.epoch(epoch):
            if left:
                yield DeviceBatch(inputs[:left], targets[:left])
            left = max(0, left - len(targets))

    def _tell_end(self) -> None:
        self._training.close()
        self._validation.close()
        context, device, checkpoint = self._context, self._context.device.torch_device, None
        is_gpu, mine = device.type == "cuda", checksum(self._model.parameters())
        peaks = torch.cuda.max_memory_allocated, torch.cuda.max_memory_reserved
        allocated, reserved = (peak(device) if is_gpu else None for peak in peaks)
        if self._run.loss_threshold is None:
            self._say("checkpoint")
            checkpoint = context.control.decided(f"{self._run.id}/checkpoint", lambda: self._checkpoint(mine))
        part = RankTrained(
            rank=context.control.rank, allocated_bytes=allocated, reserved_bytes=reserved,
            energy_j=context.sampler.energy_j() if context.sampler else None,
            parameters_checksum=mine, skipped_steps=len(self._losses) - self._steps.taken,
        )  # fmt: skip
        counts = [(parameter.numel(), parameter.requires_grad) for parameter in self._model.parameters()]
        record = partial(
            TrainedRun, study=self._run.id, gang=context.gang, start_up_s=self._start_up_s,
            checkpoint=checkpoint and Checkpoint(**checkpoint), parameters=sum(count for count, _ in counts),
            trainable_parameters=sum(count for count, trains in counts if trains),
        )  # fmt: skip
        self._say("gathering")
        context.record(f"{self._run.id}/end", part, RankTrained, record)

    def _checkpoint(self, trained: str) -> dict[str, Any]:
        """On rank 0: write weights and the optimizer's state into a temporary folder, and read them back, on the CPU.

        A finished training is not lost by a full disk, which torch reports as RuntimeError. The file has most likely
        stayed in the host's memory when it is read.

        Args:
            trained: checksum of the parameters.

        Returns:
            Fields of `Checkpoint`.
        """
        began_s, fields = time.perf_counter(), dict[str, Any]()
        try:
            with owned_folder("checkpoint") as folder, (folder / "checkpoint.pt").open("w+b") as file:
                torch.save({"model": self._model.state_dict(), "optimizer": self._optimizer.state_dict()}, file)
                file.flush()
                os.fsync(file.fileno())
                fields["size_bytes"] = file.tell()
                file.seek(0)
                reading_s = time.perf_counter()
                state = torch.load(file, map_location="cpu")["model"]
                fields["read_s"] = time.perf_counter() - reading_s
                if checksum(state[name] for name, _ in self._model.named_parameters()) != trained:
                    fields["problem"] = f"{folder.parent}: a checkpoint was read with other weights than written"
        except (OSError, RuntimeError) as error:
            fields["problem"] = f"{tempfile.gettempdir()}: cannot be written or read, or is full: {error}"
        return {**fields, "seconds": time.perf_counter() - began_s}

    def _say(self, phase: str) -> None:
        self._context.progress.arm = f"ddp@{self._run.world_size}"
        self._context.progress.phase = phase


def padded(batch: DeviceBatch, size: int) -> DeviceBatch:
    """A batch padded to a size with samples that never count as correct, because another size would recompile."""
    inputs, targets = batch
    missing = size - len(targets)
    if not missing:
        return batch
    more = inputs.new_zeros(missing, *inputs.shape[1:])
    return DeviceBatch(torch.cat([inputs, more]), torch.cat([targets, targets.new_full((missing,), _NO_LABEL)]))


def _loaders(run: TrainingRun, context: RankContext) -> list[SampleLoader]:
    """Of samples to train and to validate, from a folder as `ddpscale suite input-pipeline` measures it, or in memory.

    Raises:
        OSError, ValueError, RuntimeError: files are missing or invalid, or differ from the plan, or between nodes.
    """
    family, device, samples, rank = run.workload.family, context.device.torch_device, run.samples, context.control.rank
    data, sets = None, list[ImageSamples | HeldImages]()
    if samples.kind == "folder":
        data = ImageFolderData(samples.path, workers=run.loader_workers)
        planned_of: dict[Split, int] = {"train": samples.train_samples, "val": samples.validation_samples}
        for split, planned in planned_of.items():
            source = open_samples(data, split, family, context.control, f"{run.id}/{split}")
            if (len(source), source.classes) != (planned, samples.classes):
                raise ValueError(
                    f"{source.root}: {len(source)} {family.samples} of {source.classes} classes; expected {planned} of "
                    f"{samples.classes}, as when the run was planned"
                )
            sets.append(source)
    else:
        sets += held_images(run, device)
    return [
        SampleLoader(
            samples, data, Shard(rank, run.world_size, run.workload.batch_size, is_training, run.seed), family, device,
            cores=context.loader_cores,
        )
        for samples, is_training in zip(sets, (True, False), strict=True)
    ]  # fmt: skip
