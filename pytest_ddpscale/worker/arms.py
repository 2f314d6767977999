"""The arms of one study, ready to be timed block by block."""

from __future__ import annotations

import copy
import math
import random

import torch
import torch.distributed as dist

from pytest_ddpscale.plan.study import FEWEST_STEPS_PER_BLOCK, STEPS_BEFORE_TIMING, Arm, Study
from pytest_ddpscale.worker.device import Device, Timing
from pytest_ddpscale.worker.training import Batch, Trainer, build_model, new_scaler


class StudyArms:
    """Model, batches and process groups of one study on this rank.

    Groups are made when the study begins and destroyed by `close`: each NCCL communicator holds
    device memory, which near a SKU's largest batch is missed.

    Args:
        study: what to time.
        device: where.
        rank: global rank of this process.
        world_size: ranks in the gang; all of them construct this object at the same time.
    """

    def __init__(self, study: Study, device: Device, rank: int, world_size: int) -> None:
        device.check(study.workload.precision)
        torch.backends.cudnn.benchmark = study.workload.cudnn_benchmark
        self._study = study
        self._device = device
        self._rank = rank
        self._groups = _make_groups(study, world_size)
        self._model = build_model(study.workload, device.torch_device)
        self._batches: dict[int, Batch] = {}
        self._scalers = {arm.name: new_scaler(study.workload, device.torch_device) for arm in study.arms}
        self._compiled: dict[str, Trainer] = {}

    def time_block(self, arm: Arm, steps: int) -> Timing:
        """Train `steps` timed steps of an arm this rank belongs to, after a few untimed ones."""
        trainer = self._trainer(arm)
        trainer.refill()
        for _ in range(STEPS_BEFORE_TIMING):
            trainer()
        timing = self._device.time_steps(trainer, steps)
        trainer.check_loss()
        return timing

    def close(self) -> None:
        """Free memory and communicators."""
        self._compiled.clear()
        self._batches.clear()
        del self._model
        for group in self._groups.values():
            if group is not None:
                dist.destroy_process_group(group)
        self._device.release()

    def _trainer(self, arm: Arm) -> Trainer:
        """A fresh trainer, because a DDP wrapper is cheap; a kept one where it means compiling."""
        if arm.name in self._compiled:
            return self._compiled[arm.name]
        workload = self._study.workload
        model = copy.deepcopy(self._model) if workload.compile else self._model
        group = self._groups[arm.world_size] if arm.kind == "ddp" else None
        trainer = Trainer(model, self._batch(arm.batch_size), workload, self._scalers[arm.name], group)
        if workload.compile:
            self._compiled[arm.name] = trainer
        return trainer

    def _batch(self, batch_size: int) -> Batch:
        if batch_size not in self._batches:
            # Ranks must not train on the same images: their gradients would not need averaging.
            seed = 1000 * self._rank + batch_size
            self._batches[batch_size] = Batch(self._study.workload, batch_size, self._device.torch_device, seed)
        return self._batches[batch_size]


def _make_groups(study: Study, world_size: int) -> dict[int, dist.ProcessGroup | None]:
    """One process group for each size that an arm trains in; all ranks of the gang take part."""
    sizes = sorted({arm.world_size for arm in study.arms if arm.kind == "ddp"})
    if sizes and sizes[-1] > world_size:
        raise RuntimeError(f"study {study.id} needs {sizes[-1]} ranks; this gang has {world_size}")
    groups = {size: dist.new_group(ranks=list(range(size))) for size in sizes}
    # A rank outside a group gets a placeholder for it.
    return {size: group if isinstance(group, dist.ProcessGroup) else None for size, group in groups.items()}


def steps_for_block(step_s: float, block_s: float) -> int:
    """How many steps fill a block of `block_s` seconds."""
    return max(FEWEST_STEPS_PER_BLOCK, math.ceil(block_s / step_s))


def arm_order(arms: tuple[Arm, ...], seed: int, study_id: str, round_number: int) -> list[Arm]:
    """The arms in the random order of this round, the same on every rank.

    Random, so that what comes in waves (a neighbour's job, the room's cooling) falls on no arm more
    than on another.
    """
    shuffled = list(arms)
    random.Random(f"{seed}/{study_id}/{round_number}").shuffle(shuffled)  # noqa: S311 (an order, no secret)
    return shuffled
