"""Batches of samples from a folder, for ranks that train together, read ahead by loader workers.

Uses torch's DistributedSampler and DataLoader, like users do; see `ddpscale suite input-pipeline` and
docs/suites.md.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import warnings
from collections.abc import Iterator, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.distributed import DistStoreError
from torch.utils.data import DataLoader, DistributedSampler

from pytest_ddpscale.datasets.image_samples import HeldImages, ImageSamples, read_samples
from pytest_ddpscale.families.family import Family
from pytest_ddpscale.plan.workload import ImageFolderData, Split
from pytest_ddpscale.util.orphans import die_with_parent
from pytest_ddpscale.worker.control import Control

_LOOK_S = 5.0  # between looks at whether a loader worker died


class DeviceBatch(NamedTuple):
    """A batch on the device."""

    inputs: torch.Tensor
    targets: torch.Tensor

    def fetch(self) -> DeviceBatch:
        """Itself, for a training step."""
        return self


def open_samples(data: ImageFolderData, split: Split, family: Family, control: Control, key: str) -> ImageSamples:
    """The samples of a split, the same on every rank. All ranks of the gang call this at the same time.

    The first rank of each node reads the folder before the others, which then find it in the node's caches.

    Args:
        key: unique for each call.

    Raises:
        ValueError: the folder is invalid, here or on the node's first rank.
        RuntimeError: the node's first rank did not read it in time, or this rank sees other samples than rank 0.
    """
    first = control.rank - control.local_rank

    def hear(rank: int) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = control.hear(f"{key}/{rank}")
        except DistStoreError:
            raise RuntimeError(f"{data.folder}: rank {rank} did not read it in time") from None
        if "error" in answer:
            raise ValueError(f"rank {rank} could not read the {family.samples}: {answer['error']}")
        return answer

    if control.rank != first:
        hear(first)
    try:
        samples = read_samples(data.folder, split, family)
    except ValueError as error:
        if control.rank == first:
            control.say(f"{key}/{first}", {"error": str(error)})
        raise
    if control.rank == first:
        control.say(f"{key}/{first}", {"digest": samples.digest, "samples": len(samples)})
    theirs = hear(0)
    if theirs["digest"] != samples.digest:
        raise RuntimeError(
            f"{samples.root}: rank {control.rank} sees {len(samples)} {family.samples}, which differ from the "
            f"{theirs['samples']} of rank 0; expected the same files under the same names on every node"
        )
    return samples


@dataclass(frozen=True)
class Shard:
    """One rank's part of the samples, and how it goes through them.

    Attributes:
        rank: among the ranks that share the samples, from 0.
        world_size: number of these ranks.
        batch_size: samples per batch and rank.
        is_training: whether each epoch has its own order, and leaves out samples that do not fill a batch on every
            rank; else it has some twice, and the last batch is smaller.
        seed: of that order, the same on all ranks.
    """

    rank: int
    world_size: int
    batch_size: int
    is_training: bool = True
    seed: int = 0


class ShardBatches:
    """The batches of one rank, numbered through all epochs; a batch sampler for DataLoader.

    torch's DistributedSampler shuffles again in each epoch. If samples do not divide evenly, it leaves some out (in
    training: those at the end of the epoch's order, so different ones each time), or has some twice. In training every
    world size has the same samples in the same global batch.

    Attributes:
        per_epoch: number of batches of an epoch, the same on every rank.
        first, count: range of the batches to yield.
    """

    def __init__(self, samples: Sized, shard: Shard) -> None:
        options: dict[str, Any] = {"shuffle": shard.is_training, "seed": shard.seed, "drop_last": shard.is_training}
        self._sampler = DistributedSampler(samples, shard.world_size, shard.rank, **options)  # type: ignore[arg-type, var-annotated]
        self._batch_size, count = shard.batch_size, len(self._sampler)
        self._samples = count // shard.batch_size * shard.batch_size if shard.is_training else count
        self._epoch = -1
        self._indices: list[int] = []
        self.per_epoch = -(-self._samples // shard.batch_size)
        self.first, self.count = 0, 0

    def __iter__(self) -> Iterator[list[int]]:
        for number in range(self.first, self.first + self.count):
            epoch, at = divmod(number, self.per_epoch)
            if epoch != self._epoch:
                self._sampler.set_epoch(epoch)
                self._epoch, self._indices = epoch, list(self._sampler)[: self._samples]
            yield self._indices[at * self._batch_size : (at + 1) * self._batch_size]


class SampleLoader:
    """One rank's batches. All ranks that share the samples construct one, with the same settings.

    It is a `pytest_ddpscale.worker.training.Batch` with new samples for each pass, read block by block. Loader workers
    read ahead during all timed steps, as in the middle of an epoch, so a block loads more batches than it trains. The
    surplus is thrown away: no worker reads while another arm is timed, and no block begins with batches that were read
    outside of timed steps.

    Loader workers start with the first batch and stay until `close`. They are forked from a clean server process,
    because a fork of the rank would hold its locks, and its sockets even after the rank died.

    Attributes:
        waited_s: seconds that the rank was blocked in `next`, for each batch since the latest `epoch` or `stretch`
            began.

    Args:
        data: how samples are read; None if they are in memory.
        family: of the model.
        cores: of loader workers; empty for those of the rank.
        timeout_s: the longest wait for a batch of a loader worker.

    Raises:
        ValueError: there are too few samples for a batch on each rank.
    """

    def __init__(
        self, samples: ImageSamples | HeldImages, data: ImageFolderData | None, shard: Shard, family: Family,
        device: torch.device, *, cores: tuple[int, ...] = (), timeout_s: float = 120.0,
    ) -> None:  # fmt: skip
        self.waited_s: list[float] = []
        self._device, self._root = device, str(samples.root)
        self._finish, self._timeout_s = family.finisher(device), timeout_s
        self._batches = ShardBatches(samples, shard)
        if not self._batches.per_epoch:
            batch_size, ranks = shard.batch_size, shard.world_size
            needed = f"at least {ranks * batch_size}, a batch of {batch_size} for each rank"
            raise ValueError(f"{self._root}: {len(samples)} {family.samples} for {ranks} ranks; expected {needed}")
        workers, prefetch = (data.workers, data.prefetch) if data else (0, 0)
        self._ahead = workers * prefetch
        self._next_number = self._passes = 0
        self._coming: Iterator[DeviceBatch] = iter(())
        options: dict[str, Any] = {}
        if workers:
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload([type(samples).__module__, __name__])
            options = {
                "multiprocessing_context": context, "prefetch_factor": prefetch, "persistent_workers": True,
                "worker_init_fn": partial(_begin_worker, cores), "timeout": min(timeout_s, _LOOK_S),
            }  # fmt: skip
        # They have other cores than the rank, of whose cores torch would warn.
        warnings.filterwarnings("ignore", "This DataLoader will create")
        self._loader: DataLoader[Any] | None = DataLoader(
            samples, batch_sampler=self._batches, num_workers=workers, collate_fn=tuple,
            pin_memory=data is not None and data.pin_memory and device.type == "cuda", **options,
        )  # fmt: skip

    def __len__(self) -> int:
        """Number of batches of an epoch, the same on every rank."""
        return self._batches.per_epoch

    def epoch(self, number: int) -> Iterator[DeviceBatch]:
        """All batches of an epoch.

        Raises:
            RuntimeError: a sample is broken, or a loader worker died or took too long.
        """
        return self.stretch(number * len(self), len(self))

    def stretch(self, first: int, count: int) -> Iterator[DeviceBatch]:
        """`count` batches from number `first` on, numbered through all epochs. Raises like `epoch`."""
        assert self._loader is not None, "the loader is closed"
        self._batches.first, self._batches.count = first, count
        self.waited_s = []
        with self._named():
            batches = iter(self._loader)
        for _ in range(count):
            began_s = time.perf_counter()
            with self._named():
                inputs, targets, problem = self._next(batches, began_s + self._timeout_s)
            self.waited_s.append(time.perf_counter() - began_s)
            if problem:
                raise RuntimeError(problem)
            inputs = self._finish(inputs.to(self._device, non_blocking=True))
            yield DeviceBatch(inputs, targets.to(self._device, non_blocking=True))

    def begin(self, passes: int) -> None:
        """Start reading for a block with this number of forward passes."""
        self._passes, count = passes, passes + self._ahead
        self._coming = self.stretch(self._next_number, count)
        self._next_number += count

    def fetch(self) -> DeviceBatch:
        """The next batch. Raises like `epoch`."""
        return next(self._coming)

    def end(self) -> list[float]:
        """Wait until loader workers are idle. Returns the seconds waited in each pass. Raises like `epoch`."""
        waited_s = self.waited_s[: self._passes]
        for _ in self._coming:
            pass
        return waited_s

    def close(self) -> None:
        """End the loader workers."""
        self._coming, self._loader = iter(()), None

    def _next(self, batches: Iterator[Any], deadline_s: float) -> Any:
        """The next batch. Only at the end of a wait of its own does torch see whether a worker died."""
        while True:
            try:
                return next(batches)
            except RuntimeError as error:
                if "timed out" not in str(error):
                    raise
                if time.perf_counter() > deadline_s:
                    raise RuntimeError(f"no batch came within {self._timeout_s:g} s") from error

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Add the folder to the error of a loader worker that died or took too long."""
        try:
            yield
        except RuntimeError as error:  # "DataLoader worker (pid(s) 7) exited unexpectedly"
            raise RuntimeError(f"loading {self._root}: {str(error).splitlines()[0]}") from error
        except (OSError, EOFError) as error:  # while it sent a batch
            raise RuntimeError(f"loading {self._root}: a loader worker died ({error})") from error


def _begin_worker(cores: tuple[int, ...], number: int) -> None:
    """Start of a loader worker: on all cores given, while its rank may be bound to one; it ends with the rank.

    The rank handles Ctrl-C.
    """
    die_with_parent()  # the parent is the fork server, which lives as long as any of its forks
    threading.Thread(target=_end_with_rank, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)


def _end_with_rank() -> None:
    rank = multiprocessing.parent_process()
    if rank is not None:
        rank.join()  # returns however it ends
        os._exit(1)
