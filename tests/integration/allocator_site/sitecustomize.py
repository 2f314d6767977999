"""A stand-in for an allocator that runs out: on rank 1 only, and in the middle of training under DDP.

With this folder on PYTHONPATH that rank's training step raises what torch's allocator raises, once the images of a
batch take more than TORCH_STAND_IN_BYTES. All others of its gang are in a collective by then, and wait for it.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Any

TRAINING = "pytest_ddpscale.worker.training"
FULL_RANK = "1"


def limit(training: Any, most_bytes: int) -> None:
    """Have steps under DDP run out of memory."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    step = training.Trainer.__call__

    def limited(trainer: Any) -> None:
        images = trainer._batches[0].images
        if images.nbytes > most_bytes and isinstance(trainer._model, DistributedDataParallel):
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {images.nbytes} bytes (stand-in).")
        step(trainer)

    training.Trainer.__call__ = limited


class LimitedImport:
    """Changes the module as it is imported, which is long after this one."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        """Of that module alone."""
        if name != TRAINING:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        loader: Any = spec.loader
        execute = loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            limit(module, int(os.environ["TORCH_STAND_IN_BYTES"]))

        loader.exec_module = exec_module
        return spec


# torchrun sets LOCAL_RANK for ranks alone.
if os.environ.get("LOCAL_RANK") == FULL_RANK and "TORCH_STAND_IN_BYTES" in os.environ:
    sys.meta_path.insert(0, LimitedImport())
