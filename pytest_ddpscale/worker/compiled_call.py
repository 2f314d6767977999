"""torch.compile for a process that trains many batch sizes, with the result of a program that trains one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

# More than the arms of a study have batch sizes, with and without DDP.
_VERSIONS = 64


def compiled(call: Callable[..., Any], mode: str | None = None) -> Any:
    """Compile a model separately for each batch size.

    By default torch compiles the second batch size of a function to kernels for any size, which may be slower. After
    eight versions of a function (``recompile_limit``) it runs the function uncompiled, with only a warning in the log.
    Either would lower the efficiency of arms that are measured later.

    Args:
        call: a module, under DDP or not.
        mode: of torch.compile; None for its default.
    """
    config: Any = torch._dynamo.config
    config.recompile_limit = max(_VERSIONS, config.recompile_limit)
    return torch.compile(call, mode=mode, dynamic=False)


def forget_compiled() -> None:
    """Free compiled code, so the next study of this process starts like in a new process."""
    torch.compiler.reset()
