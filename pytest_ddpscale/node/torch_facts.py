"""Build facts of the installed torch, read in a separate process, because importing it takes seconds or fails."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec

import msgspec

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.node.limited_command import Command
from pytest_ddpscale.run.strict_json import Record

LIMIT_S = 45.0  # allows for a shared disk that many nodes read at once
# Touches no GPU: the flags do not initialise CUDA, unlike torch.cuda.get_arch_list() of older versions.
_PROGRAM = """
import gc
gc.disable()
import json, torch
found = {"torch": torch.__version__, "cuda": torch.version.cuda, "nccl": None, "arch_list": []}
try:
    found["arch_list"] = (torch._C._cuda_getArchFlags() or "").split()
except Exception:
    found["arch_list"] = torch.cuda.get_arch_list()
try:
    found["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
except Exception:
    pass
print("\\n" + json.dumps(found))
"""
# Initialises CUDA, unlike the above, but no GPU: cuda-compat lets an older driver run a newer CUDA, which only a try
# can tell.
_COUNT = "import torch; print(f'\\n{torch.cuda.device_count() if torch.cuda.is_available() else 0}')"
COUNT_LIMIT_S = 20.0


class TorchFacts(Record, frozen=True):
    """One installation of torch.

    Attributes:
        torch: its version; None if unknown.
        cuda: version of CUDA that it was built with; None for a CPU build.
        nccl: version of its NCCL; None without one.
        arch_list: GPU architectures that it has kernels for.
        problem: why it cannot be imported; empty if it can.
    """

    torch: str | None = None
    cuda: str | None = None
    nccl: str | None = None
    arch_list: tuple[str, ...] = ()
    problem: str = ""


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


def ask_torch(python: Sequence[str] = (sys.executable,), limit_s: float = LIMIT_S) -> Callable[[], TorchFacts]:
    """Start reading the facts in the background.

    Args:
        python: command that starts the interpreter whose torch is read.

    Returns:
        A function that waits for the facts.
    """
    command = Command([*python, "-c", _PROGRAM], limit_s)

    def answer() -> TorchFacts:
        output, problem = command.output()
        return TorchFacts(problem=problem) if problem else _facts(output)

    return answer


def usable_gpus(python: Sequence[str] = (sys.executable,), limit_s: float = COUNT_LIMIT_S) -> int | None:
    """Number of GPUs that torch can use, all hidden ones left out; None without an answer."""
    output, _ = Command([*python, "-c", _COUNT], limit_s).output()
    last = output.strip().splitlines()[-1:]
    return int(last[0]) if last and last[0].isdecimal() else None


def _facts(output: str) -> TorchFacts:
    try:  # output of torch or of a site may precede the last line
        return msgspec.json.decode(output.strip().splitlines()[-1], type=TorchFacts)
    except (IndexError, msgspec.MsgspecError):
        return TorchFacts(problem=f"printed no valid facts: {output.strip()[-200:]!r}")
