"""Named ranges of a training step for profilers; no effect without one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeAlias

import torch
from torch.profiler import record_function

Ranges: TypeAlias = Callable[[str], AbstractContextManager[Any]]
_NOTHING = nullcontext()  # reusable


def profiler_range(name: str) -> AbstractContextManager[Any]:
    """A range of torch.profiler while it records: at other times `record_function` takes 10 µs or more."""
    return record_function(name) if torch.autograd._profiler_enabled() else _NOTHING


@contextmanager
def nvtx_range(name: str) -> Iterator[None]:
    """An NVTX range for nsys as well, in timed rounds too."""
    with profiler_range(name), torch.cuda.nvtx.range(name):
        yield
