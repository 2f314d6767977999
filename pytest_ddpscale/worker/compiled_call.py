"""torch.compile as a program that trains one batch size has it, in a process that trains many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

# More batch sizes, under DDP and without, than the arms of a study have.
_VERSIONS = 64


def compiled(call: Callable[..., Any], mode: str | None = None) -> Any:
    """A model compiled for each batch size by itself.

    Left to itself, torch gives the second batch size of a function kernels that take any size and may be slower. After
    eight versions of a function (``recompile_limit``) it runs the function uncompiled, which only a warning in the log
    tells. Either would lower the efficiency of arms that are measured later.

    Args:
        call: a module, under DDP or not.
        mode: of torch.compile; None for its default.
    """
    config: Any = torch._dynamo.config
    limit = "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"  # its name before torch 2.7
    setattr(config, limit, max(_VERSIONS, getattr(config, limit)))
    return torch.compile(call, mode=mode, dynamic=False)


def forget_compiled() -> None:
    """Free what was compiled, so that the next study of this process begins as a new process would."""
    torch.compiler.reset()
