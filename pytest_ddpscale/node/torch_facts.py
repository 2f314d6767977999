"""Build facts of the installed torch, read in a separate process, because importing it takes seconds or fails."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

import msgspec

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.node.limited_command import Command

LIMIT_S = 45.0  # allows for a shared disk that many nodes read at once
# Touches no GPU: the flags do not initialise CUDA, unlike torch.cuda.get_arch_list() of older versions.
_PROGRAM = """
import gc
gc.disable()
import json, torch
versions = {"torch": torch.__version__, "cuda": torch.version.cuda, "nccl": None}
found = {"versions": versions, "arch_list": []}
try:
    found["arch_list"] = (torch._C._cuda_getArchFlags() or "").split()
except Exception:
    found["arch_list"] = torch.cuda.get_arch_list()
try:
    versions["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
except Exception:
    pass
print("\\n" + json.dumps(found), flush=True)
"""
# Initialises CUDA, unlike the above, and creates no context: NVML does not tell whether CUDA works, which is also what
# torch.cuda.device_count() asks. torch gives CUDA's error as a warning.
_COUNT = """
import warnings
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    found["torch_gpus"] = torch._C._cuda_getDeviceCount() if torch.version.cuda else None
found["cuda_problem"] = " ".join(str(one.message).partition(" (Triggered")[0] for one in said)
print("\\n" + json.dumps(found))
"""


def refuse_missing_torch() -> None:
    """Refuse a Python without torch before anything is started with it.

    Raises:
        OptionError: torch or torchvision is not installed. Whether they work, a node's survey tells.
    """
    missing = [name for name in ("torch", "torchvision") if find_spec(name) is None]
    if missing:
        raise OptionError(
            sys.executable, f"{' and '.join(missing)} not installed", "PyTorch, in the Python that trains",
            "Install it (https://pytorch.org/get-started), or judge a run measured elsewhere with --ddp-judge=RUN_DIR.",
        )  # fmt: skip


def ask_torch(
    python: Sequence[str] = (sys.executable,), limit_s: float = LIMIT_S, *, counts_gpus: bool = False
) -> Callable[[], dict[str, Any]]:
    """Start reading the facts in the background.

    Args:
        python: command that starts the interpreter whose torch is read.

    Returns:
        A function that waits for the facts, by the names in `Survey`, with the versions of torch, its CUDA (None for a
        CPU build) and its NCCL (None without one); only ``torch_problem`` if it cannot be imported.
    """
    command = Command([*python, "-c", _PROGRAM + (_COUNT if counts_gpus else "")], limit_s)

    def answer() -> dict[str, Any]:
        _, problem = command.output()
        printed = command.printed.decode("utf-8", errors="replace").strip()
        with suppress(IndexError, msgspec.MsgspecError):  # output of torch or of a site may precede the last line
            found = msgspec.json.decode(printed.splitlines()[-1], type=dict[str, Any])
            if "versions" in found:
                return found | ({"cuda_problem": problem} if problem else {})  # it hung or crashed where it counts GPUs
        return {"torch_problem": problem or f"printed no valid facts: {printed[-200:]!r}"}

    return answer
