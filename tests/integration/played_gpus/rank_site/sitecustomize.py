"""Ranks on played GPUs: with this folder on PYTHONPATH a rank trains on the CPU and goes by a played GPU's UUID.

Python imports a module of this name as it starts, before the worker. The GPU is NVML's, which the tests' stand-in
plays; what torch would say of it, and NCCL of its links, is played here, as neither is there:

- ``PLAYED_TORCH``: a folder with a package torch, which the survey asks instead of the installed one;
- ``PLAYED_LINK``: by what NCCL connects ranks, such as ``P2P/CUMEM``;
- ``PLAYED_ERROR``: UUID of a GPU on which every training fails, though NVML finds nothing wrong with it.
"""

from __future__ import annotations

import os
import sys


def play_gpu(link: str) -> None:
    """Have the worker open a played GPU in the place of a real one."""
    from dataclasses import replace
    from pathlib import Path
    from typing import Any

    from pytest_ddpscale.node.survey import visible_gpus
    from pytest_ddpscale.worker import device, transport
    from pytest_ddpscale.worker import rank as gang

    class PlayedGpu(device.CpuDevice):
        """Computes on the CPU; who it is NVML says, and how busy it was as well."""

        def __init__(self, local_rank: int) -> None:
            super().__init__()
            gpu = visible_gpus()[local_rank]
            self.id, self.name = gpu.uuid, gpu.name

        def time_steps(self, *steps: Any) -> device.Timing:
            if os.environ.get("PLAYED_ERROR") == self.id:
                raise RuntimeError("CUDA error: unspecified launch failure\nCUDA kernel errors might be asynchronous")
            return replace(super().time_steps(*steps), utilization=None)

    class PlayedLog(transport.TransportLog):
        """What NCCL writes of two ranks that it has connected, read as if it had been there."""

        def __init__(self, rank: int, layout: Any, backend: str, environ: Any) -> None:
            super().__init__(rank, layout, "nccl", environ)
            prefix = f"node:{os.getpid()}:{os.getpid()} [{os.environ['LOCAL_RANK']}] NCCL INFO"
            line = f"Channel 00/0 : {rank}[{rank}] -> {1 - rank}[{1 - rank}] via {link}"
            log = Path(environ["NCCL_DEBUG_FILE"])
            log.write_text(f"{prefix} Using network IB\n{prefix} {line}\n", encoding="utf-8")

    vars(gang)["TransportLog"] = PlayedLog
    vars(device)["open_device"] = lambda device_type, local_rank: PlayedGpu(local_rank)


# torchrun sets LOCAL_RANK for ranks alone; the sampler has it from its rank.
if "PLAYED_LINK" in os.environ and "LOCAL_RANK" in os.environ and "pytest_ddpscale.worker" in sys.orig_argv:
    play_gpu(os.environ["PLAYED_LINK"])
elif "PLAYED_TORCH" in os.environ and "pytest_ddpscale.node.survey" in sys.orig_argv:
    sys.path.insert(0, os.environ["PLAYED_TORCH"])
