"""Names what a training step is doing, for profilers to show: nothing unless one listens."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch.profiler import record_function

_NOTHING = nullcontext()  # may be entered again and again


class StepRanges:
    """Ranges of torch.profiler while it records, and of NVTX, which nsys reads.

    Attributes:
        is_profiled: whether torch.profiler records this process now.

    Args:
        nvtx: whether there are NVTX ranges all the time, timed rounds included.
    """

    def __init__(self, *, nvtx: bool = False) -> None:
        self.is_profiled = False
        self._nvtx = nvtx and has_nvtx()

    def __call__(self, name: str) -> AbstractContextManager[None]:
        """A range of that name. Costs a timed step nothing that can be measured while nobody listens."""
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
    """Whether this build of torch can make NVTX ranges; says so on stderr if it cannot."""
    try:
        torch.cuda.nvtx.range_push("ddpscale")
        torch.cuda.nvtx.range_pop()
    except RuntimeError as error:
        print(f"no NVTX ranges: {error}", file=sys.stderr, flush=True)
        return False
    return True
