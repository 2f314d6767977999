"""DDP communication hooks that compress gradients, for variants that use fewer bits."""

from __future__ import annotations

import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from pytest_ddpscale.plan.arm import CommunicationHook

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
