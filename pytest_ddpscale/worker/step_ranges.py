"""Named ranges of a training step for profilers; no effect without one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch.profiler import record_function

_NOTHING = nullcontext()  # reusable


class StepRanges:
    """Ranges of torch.profiler while it records, and NVTX ranges for nsys.

    Attributes:
        is_profiled: whether torch.profiler records this process now.

    Args:
        nvtx: whether to make NVTX ranges all the time, including timed rounds.
    """

    def __init__(self, *, nvtx: bool = False) -> None:
        self.is_profiled = False
        self._nvtx = nvtx and has_nvtx()

    def __call__(self, name: str) -> AbstractContextManager[None]:
        """A range with this name. Without a profiler its cost in a timed step is not measurable."""
        return self._marked(name) if self.is_profiled or self._nvtx else _NOTHING

    @contextmanager
    def _marked(self, name: str) -> Iterator[None]:
        with record_function(name) if self.is_profiled else _NOTHING:
            if not self._nvtx:
                yield
                return
            torch.cuda.nvtx.range_push(name)
            try:
                yield
            finally:
                torch.cuda.nvtx.range_pop()


def has_nvtx() -> bool:
    """Whether this build of torch can make NVTX ranges; if not, a message goes to stderr."""
    try:
        torch.cuda.nvtx.range_push("ddpscale")
        torch.cuda.nvtx.range_pop()
    except RuntimeError as error:
        print(f"no NVTX ranges: {error}", file=sys.stderr, flush=True)
        return False
    return True
