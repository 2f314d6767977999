"""What DDP does with gradients in place of its all-reduce, where a variant asks for fewer bits."""

from __future__ import annotations

import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from pytest_ddpscale.plan.variant import CommunicationHook

# The steps before compress nothing; two is the fewest that torch takes, and error feedback needs them.
_STEPS_BEFORE_POWERSGD = 2


def register_hook(wrapper: DistributedDataParallel, hook: CommunicationHook, group: dist.ProcessGroup) -> None:
    """Have a wrapper communicate so, in this group. All its ranks call this before their first step.

    Raises:
        RuntimeError: PowerSGD over another backend than NCCL. Its second all-reduce of a bucket starts from a callback,
            which gloo runs in threads of its own: with several buckets ranks differ in their order.
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
