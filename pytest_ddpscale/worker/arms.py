"""The arms of one study, ready to be timed block by block."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import timedelta

import torch
import torch.distributed as dist

from pytest_ddpscale.families.family import Family
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.study import FEWEST_STEPS_PER_BLOCK, STEPS_BEFORE_TIMING, Study
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.worker.device import Device, Forwards, Timing
from pytest_ddpscale.worker.inference import Inference
from pytest_ddpscale.worker.loading import SampleLoader, Shard
from pytest_ddpscale.worker.model import build_model, checksum
from pytest_ddpscale.worker.replica import Replica, Replicas, align, make_groups
from pytest_ddpscale.worker.training import (
    Batch,
    Ranges,
    Trainer,
    compute_fp32_in_full,
    forget_compiled,
    new_scaler,
    profiler_range,
)

UNOBSERVED = nullcontext()


class StudyArms:
    """Model, batches and process groups of one study on this rank.

    Groups are created when the study begins and destroyed by `close`, because each NCCL communicator holds device
    memory, which near a SKU's largest batch is scarce.

    All ranks of the gang construct this object at the same time.

    Args:
        loader: a `SampleLoader` of the study's folder, but for data, shard, family and device; None if no arm reads it.

    Raises:
        RuntimeError: the gang has too few ranks, or the device cannot train in that precision.
    """

    def __init__(
        self, study: Study, device: Device, rank: int, layout: Layout, timeout: timedelta,
        ranges: Ranges = profiler_range, loader: Callable[..., SampleLoader] | None = None, gang: int = 0,
    ) -> None:  # fmt: skip
        if study.world_size > layout.world_size:
            raise RuntimeError(f"study {study.id} needs {study.world_size} ranks; this gang has {layout.world_size}")
        for precision in dict.fromkeys(arm.variant.applied_to(study.workload).precision for arm in study.arms):
            device.check(precision)
        torch.backends.cudnn.benchmark = study.workload.family.cudnn_benchmark
        compute_fp32_in_full()
        self._study = study
        self._device = device
        self._rank = rank
        self._swapped = gang % 2
        self._layout = layout
        self._ranges = ranges
        self._groups = make_groups(study.arms, layout, timeout, study.turns)
        # Untrained until the first block.
        self.model = build_model(study.workload, device.torch_device)
        self._replicas = Replicas(self.model, study.workload, device, self._groups)
        self._batches: dict[tuple[int, Family], Batch] = {}
        self._loader = loader
        self._loaded: list[SampleLoader] = []
        self._trainers: dict[str, Trainer] = {}
        self._inference = Inference(self.model, study.workload, device)

    def time_block(self, arm: Arm, steps: int, profiler: AbstractContextManager[object] = UNOBSERVED) -> Timing:
        """Time `steps` training steps, or forward passes, of an arm of this rank, after a few untimed ones.

        All ranks of the arm call this at the same time. Peak memory does not include other arms' replicas. The timing
        includes the checksum of the parameters, the number of skipped steps and, unless the arm is compiled, the time
        of the model's forward passes.

        Args:
            profiler: entered around the timed training steps; step times include its overhead.
        """
        if arm.infers:
            return self._inference.time_block(arm, self._batch(self._study.workload, arm.batch_size), steps)
        replica = self._replicas.of(arm)
        trainer = self._trainer(arm, replica)
        before, workload = steps_before_timing(self._study, arm), arm.variant.applied_to(self._study.workload)
        # Forward passes show each rank's own pace under DDP too; hooks on a compiled model never fire.
        forwards = None if workload.compile else Forwards(replica.weights.model, arm.variant.accumulation_steps)
        trainer.begin(before + steps)
        group = self._replicas.group(arm)
        if group is not None:
            align(self.model, replica.weights.optimizer, group)
        with replica.silent() if arm.kind == "no_sync" else nullcontext():
            for _ in range(before):
                trainer()
            taken_before = replica.weights.steps.taken
            with profiler, self._ranges(f"{self._study.id} {arm.name}"):
                timing = self._device.time_steps(trainer, steps, forwards)
        trainer.check_loss()
        waited_s = trainer.end()
        # Steps that the loss scaler skipped are not known where a fused optimizer's kernel skips them.
        is_unknown = workload.precision == "fp16" and arm.variant.fused_optimizer
        skipped = None if is_unknown else steps - (replica.weights.steps.taken - taken_before)
        peak_bytes = timing.peak_memory_bytes
        return replace(
            timing,
            peak_memory_bytes=None if peak_bytes is None else peak_bytes - self._replicas.idle_bytes(arm),
            skipped_steps=skipped,
            parameters_checksum=checksum(replica.weights.model.parameters()) if arm.kind == "ddp" else None,
            waited_s=tuple(waited_s[before:]) or None,
        )

    def close(self) -> None:
        """Free memory and communicators."""
        self._inference.close()
        self._trainers.clear()
        self._batches.clear()
        for loaded in self._loaded:
            loaded.close()
        # Wrappers before the groups they communicate in.
        del self._replicas, self._inference, self.model
        if any(arm.variant.applied_to(self._study.workload).compile for arm in self._study.arms):
            forget_compiled()
        # In order of creation, because destroying an NCCL communicator waits for its other members to do the same.
        for group in dict.fromkeys(self._groups.values()):
            dist.destroy_process_group(group)
        self._device.release()

    def _trainer(self, arm: Arm, replica: Replica) -> Trainer:
        if arm.name not in self._trainers:
            # Each arm has its own scaler: ranks of a DDP arm see the same gradients and so keep the same scale,
            # which gradients of other arms would change.
            workload = arm.variant.applied_to(self._study.workload)
            scaler = new_scaler(workload, self._device.torch_device)
            batches = [self._batch_of(arm, workload)] * arm.variant.accumulation_steps
            self._trainers[arm.name] = Trainer(
                replica.call, replica.weights.optimizer, batches, workload, scaler, replica.silent, self._ranges
            )
        return self._trainers[arm.name]

    def _batch_of(self, arm: Arm, workload: Workload) -> Batch | SampleLoader:
        data, count = arm.data_of(self._study.workload), arm.variant.batch_of(arm.batch_size, self._rank)
        if data == "synthetic":
            return self._batch(workload, count)
        assert self._loader is not None, "the folder was not read"
        groups = (group for turn in range(self._study.turns) for group in self._layout.groups(arm, turn))
        group = next(group for group in groups if self._rank in group)
        shard = Shard(group.index(self._rank), len(group), count)
        self._loaded.append(self._loader(data, shard, workload.family, self._device.torch_device))
        return self._loaded[-1]

    def _batch(self, workload: Workload, batch_size: int) -> Batch:
        key = batch_size, workload.family
        if key not in self._batches:
            # Ranks train on different samples, because equal gradients would not need averaging. In every other gang
            # two ranks swap them, which tells an error of a GPU from that of a batch.
            seed = 1000 * (self._rank ^ self._swapped) + batch_size
            self._batches[key] = Batch(workload, batch_size, self._device.torch_device, seed)
        return self._batches[key]


def steps_for_block(step_s: float, block_s: float, at_once: int = 1) -> int:
    """Number of steps that fill a block of `block_s` seconds, a multiple of `at_once`."""
    steps = max(FEWEST_STEPS_PER_BLOCK, math.ceil(block_s / step_s))
    return -(-steps // at_once) * at_once


def steps_before_timing(study: Study, arm: Arm) -> int:
    """Untimed steps of each block: as many as loader workers read ahead, so timed steps begin without a stock."""
    data = arm.data_of(study.workload)
    ahead = 0 if data == "synthetic" or not data.workers else data.prefetch * steps_at_once(study, arm)
    return max(STEPS_BEFORE_TIMING, ahead)


def steps_at_once(study: Study, arm: Arm) -> int:
    """Number of steps in the batches that loader workers, which start together, finish together; 1 without workers.

    Timed steps are a multiple of it; otherwise the last step would wait for batches that are not trained.
    """
    data, passes = arm.data_of(study.workload), arm.variant.accumulation_steps
    workers = 1 if data == "synthetic" else max(1, data.workers)
    return workers // math.gcd(workers, passes)
