"""Copies of the model on this rank: which arms share one, how much memory an idle one holds, and how those of all ranks
are made equal before a block.
"""

from __future__ import annotations

import copy
import inspect
import itertools
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import timedelta
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from pytest_ddpscale.plan.arm import USUAL, Arm, CommunicationHook, Placement, Variant
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.worker.control import new_group
from pytest_ddpscale.worker.device import Device
from pytest_ddpscale.worker.training import compiled

# Uncompressed steps before PowerSGD; torch accepts no fewer than two, which error feedback needs.
_STEPS_BEFORE_POWERSGD = 2


def register_hook(wrapper: DistributedDataParallel, hook: CommunicationHook, group: dist.ProcessGroup) -> None:
    """Register a hook on a wrapper, for this group. All its ranks call this before their first step.

    Raises:
        RuntimeError: PowerSGD with another backend than NCCL. Its second all-reduce of a bucket starts from a callback,
            which gloo runs in its own threads, so with several buckets the order differs between ranks.
    """
    if hook == "powersgd":
        if dist.get_backend(group) != "nccl":
            raise RuntimeError(f"PowerSGD needs NCCL: over {dist.get_backend(group)} ranks mix up its buckets")
        state = PowerSGDState(group, start_powerSGD_iter=_STEPS_BEFORE_POWERSGD)
        wrapper.register_comm_hook(state, powerSGD_hook)
    elif hook == "fp16":
        wrapper.register_comm_hook(group, default_hooks.fp16_compress_hook)
    else:
        wrapper.register_comm_hook(group, default_hooks.bf16_compress_hook)


# Large enough for hundreds of small tensors in one collective, small compared with a batch's activations.
_CHUNK_BYTES = 64 * 2**20


def align(model: nn.Module, optimizer: torch.optim.Optimizer, group: dist.ProcessGroup) -> None:
    """Make all replicas of a group equal bit for bit; DDP keeps them so.

    Parameters and floating-point buffers become those of the group's first rank. Momentum is set to zero on every rank
    instead of a broadcast: it may come from different data on each rank, zeros need no communication, and they do not
    change step times.

    Args:
        model: its tensors may have any strides.
        optimizer: `torch.optim.SGD` with momentum.
    """
    buffers = (buffer for buffer in model.buffers() if buffer.is_floating_point())
    with torch.no_grad():
        tensors = [tensor.detach() for tensor in (*model.parameters(), *buffers)]
        dist._broadcast_coalesced(group, tensors, _CHUNK_BYTES, 0)  # like DDP when it wraps a model
        for state in optimizer.state.values():
            state["momentum_buffer"].zero_()


# Arms in which DistributedDataParallel wraps the model.
WRAPPED_KINDS = ("no_sync", "ddp")
# Key of a rank's groups: it is in at most one group for each size, placement and stream priority.
Crew = tuple[int, Placement, bool]


_Key = tuple[str, Crew | None, Variant]
_FORWARD_SYNC = "forward_sync_buffers"


class StepCounter:
    """Counts the steps of an optimizer, because a loss scaler skips those with infinite gradients.

    It has no reference to the weights, which avoids a reference cycle: they are freed at once with their last user.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.taken = 0
        optimizer.register_step_post_hook(self._count)

    def _count(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self.taken += 1


class Weights:
    """A model, its optimizer, and the number of its steps.

    Momentum is allocated at the start, as zeros, so peak memory does not depend on which arm is first.
    """

    def __init__(self, model: nn.Module, learning_rate: float, *, fused: bool = False) -> None:
        self.model = model
        # None leaves the choice to torch, which does not fuse by default.
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.SGD(trained, lr=learning_rate, momentum=0.9, fused=fused or None)
        for parameter in trained:
            self.optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        self.steps = StepCounter(self.optimizer)


class Replica:
    """Weights, and the callable of a training step.

    Attributes:
        weights: the trained weights.
        call: the model itself, its DDP wrapper, or either compiled.
        held_bytes: device memory that this replica allocated and keeps: gradient buckets, and the weights if they are
            its own.
    """

    def __init__(self, weights: Weights, wrapper: DistributedDataParallel | None, call: Any, held_bytes: int) -> None:
        self.weights = weights
        self.call = call
        self.held_bytes = held_bytes
        self._wrapper = wrapper

    def silent(self) -> AbstractContextManager[None]:
        """A context in which DDP does not communicate."""
        return nullcontext() if self._wrapper is None else self._wrapper.no_sync()


class Replicas:
    """The replicas of one study on this rank, created on first use and kept.

    All arms share one model and one optimizer, and all arms of a group one DDP wrapper, so a further arm needs memory
    only for gradient buckets. Wrappers do not disturb each other, nor arms without one: the hooks of a reducer return
    at once if its own forward pass did not run before. A wrapper is kept because DDP builds its buckets and gathers
    statistics in its first steps.
    Under torch.compile, where a change of wrapper would recompile, each arm has its own copy. So has an arm with its
    own settings, because views of buckets or a static graph would disturb the others.

    Args:
        groups: groups of this rank, from `make_groups`.
    """

    def __init__(
        self, model: nn.Module, workload: Workload, device: Device, groups: Mapping[Crew, dist.ProcessGroup]
    ) -> None:
        self._model = model
        self._workload = workload
        self._device = device
        self._groups = groups
        self._replicas: dict[_Key, Replica] = {}

    @cached_property
    def _shared(self) -> Weights | None:
        """Weights shared by arms; created for the first training arm, because inference needs no optimizer."""
        return None if self._workload.compile else Weights(self._model, self._workload.family.learning_rate)

    def of(self, arm: Arm) -> Replica:
        """The replica of an arm. All its ranks call this at the same time, because creating a wrapper communicates."""
        key = self._key(arm)
        if key not in self._replicas:
            self._replicas[key] = self._make(arm)
        return self._replicas[key]

    def group(self, arm: Arm) -> dist.ProcessGroup | None:
        """The process group of a DDP arm whose replicas have to be aligned before a block; else None.

        A replica of its own is trained by its arm only, so it always agrees with the other ranks'.
        """
        return None if self._has_its_own(arm) or arm.kind != "ddp" else self._groups[crew(arm)]

    def idle_bytes(self, arm: Arm) -> int:
        """Device memory of other arms' replicas while this one trains; 0 if the device does not count it."""
        key = self._key(arm)
        return sum(replica.held_bytes for other, replica in self._replicas.items() if other != key)

    def _has_its_own(self, arm: Arm) -> bool:
        return self._shared is None or arm.variant.of_model != USUAL

    def _key(self, arm: Arm) -> _Key:
        if self._has_its_own(arm):
            return arm.kind, crew(arm), arm.variant.of_model
        return ("ddp", crew(arm), USUAL) if arm.kind in WRAPPED_KINDS else ("plain", None, USUAL)

    def _make(self, arm: Arm) -> Replica:
        shared = self._shared  # created before counting, because it belongs to no arm
        before_bytes = self._device.allocated_bytes()
        weights = self._own_weights(arm.variant) if shared is None or self._has_its_own(arm) else shared
        wrapper = self._wrap(weights.model, arm) if arm.kind in WRAPPED_KINDS else None
        call: Any = weights.model if wrapper is None else wrapper
        if arm.variant.applied_to(self._workload).compile:
            # After DDP, because DDP's optimizer for compiled graphs splits them at the gradient buckets.
            call = compiled(call, arm.variant.compile)
        return Replica(weights, wrapper, call, self._device.allocated_bytes() - before_bytes)

    def _own_weights(self, variant: Variant) -> Weights:
        family = variant.applied_to(self._workload).family
        model = family.laid_out(copy.deepcopy(self._model))
        return Weights(model, family.learning_rate, fused=variant.fused_optimizer)

    def _wrap(self, model: nn.Module, arm: Arm) -> DistributedDataParallel:
        device, variant = self._device.torch_device, arm.variant
        if not self._workload.family.trains_all:
            variant = replace(variant, broadcast_buffers=False)  # frozen buffers never change
        group = self._groups[crew(arm)]
        ids = [device.index] if device.type == "cuda" else None
        wrapper = DistributedDataParallel(model, device_ids=ids, process_group=group, **_ddp_arguments(variant))
        if variant.hook is not None:
            register_hook(wrapper, variant.hook, group)
        return wrapper


def _ddp_arguments(variant: Variant) -> dict[str, Any]:
    """Arguments that differ from torch's defaults, which may change with versions and which users train with."""
    names = ("bucket_cap_mb", "gradient_as_bucket_view", "static_graph", "broadcast_buffers")
    changed = {name: getattr(variant, name) for name in names if getattr(variant, name) != getattr(USUAL, name)}
    if _FORWARD_SYNC in inspect.signature(DistributedDataParallel).parameters and "broadcast_buffers" in changed:
        changed[_FORWARD_SYNC] = changed.pop("broadcast_buffers")  # its name from torch 2.15 on
    return changed


def crew(arm: Arm) -> Crew:
    """The key of the group of ranks that train an arm."""
    return arm.world_size, arm.placement, arm.variant.high_priority_stream


def make_groups(
    arms: Sequence[Arm], layout: Layout, timeout: timedelta, turns: int = 1
) -> dict[Crew, dist.ProcessGroup]:
    """The process groups of this rank for DDP arms; all ranks of the gang call this.

    Args:
        turns: number of ranks of each node that take turns at arms of one rank; each of them is a group.

    Returns:
        Groups by crew, in order of creation.
    """
    crews = {crew(arm): arm for arm in arms if arm.kind in WRAPPED_KINDS}
    made: dict[tuple[tuple[int, ...], bool], dist.ProcessGroup | None] = {}
    groups: dict[Crew, dist.ProcessGroup] = {}
    for key in sorted(crews):
        priority = key[2]
        for ranks in itertools.chain.from_iterable(layout.groups(crews[key], turn) for turn in range(turns)):
            if (ranks, priority) not in made:
                made[ranks, priority] = new_group(ranks, timeout, high_priority=priority)
            group = made[ranks, priority]
            if group is not None:
                groups[key] = group
    return groups
