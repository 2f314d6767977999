"""A stand-in for an allocator that runs out: on rank 1 only, and in the middle of training under DDP.

With this folder on PYTHONPATH that rank's training step raises what torch's allocator raises, once the inputs of a
batch take more than TORCH_STAND_IN_BYTES. All others of its gang are in a collective by then, and wait for it.
"""

from __future__ import annotations

import os

FULL_RANK = "1"


def limit(most_bytes: int) -> None:
    """Have steps under DDP run out of memory."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    from pytest_ddpscale.worker.training import Trainer

    step = Trainer.__call__

    def limited(self: Trainer) -> None:
        inputs = self._batches[0].fetch().inputs
        if inputs.nbytes > most_bytes and isinstance(self._model, DistributedDataParallel):
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {inputs.nbytes} bytes (stand-in).")
        step(self)

    Trainer.__call__ = limited  # type: ignore[assignment, method-assign]


# Set for ranks alone.
if os.environ.get("LOCAL_RANK") == FULL_RANK and "TORCH_STAND_IN_BYTES" in os.environ:
    limit(int(os.environ["TORCH_STAND_IN_BYTES"]))
