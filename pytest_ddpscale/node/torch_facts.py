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
print("\\n" + json.dumps(found), flush=True)
"""
# Initialises CUDA, unlike the above, and creates no context: NVML does not tell whether CUDA works, which is also what
# torch.cuda.device_count() asks. torch gives CUDA's error as a warning.
_COUNT = """
import warnings
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    found["gpus"] = torch._C._cuda_getDeviceCount() if torch.version.cuda else None
found["cuda_problem"] = " ".join(str(one.message).partition(" (Triggered")[0] for one in said)
print("\\n" + json.dumps(found))
"""


class TorchFacts(Record, frozen=True):
    """One installation of torch.

    Attributes:
        torch: its version; None if unknown.
        cuda: version of CUDA that it was built with; None for a CPU build.
        nccl: version of its NCCL; None without one.
        arch_list: GPU architectures that it has kernels for.
        gpus: number of GPUs that CUDA has for ranks; None without an answer.
        cuda_problem: CUDA's error, or why it did not count its GPUs; empty without one.
        problem: why it cannot be imported; empty if it can.
    """

    torch: str | None = None
    cuda: str | None = None
    nccl: str | None = None
    arch_list: tuple[str, ...] = ()
    gpus: int | None = None
    cuda_problem: str = ""
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


def ask_torch(
    python: Sequence[str] = (sys.executable,), limit_s: float = LIMIT_S, *, counts_gpus: bool = False
) -> Callable[[], TorchFacts]:
    """Start reading the facts in the background.

    Args:
        python: command that starts the interpreter whose torch is read.

    Returns:
        A function that waits for the facts.
    """
    command = Command([*python, "-c", _PROGRAM + (_COUNT if counts_gpus else "")], limit_s)

    def answer() -> TorchFacts:
        _, problem = command.output()
        printed = command.printed.decode("utf-8", errors="replace").strip()
        try:  # output of torch or of a site may precede the last line
            found = msgspec.json.decode(printed.splitlines()[-1], type=TorchFacts)
        except (IndexError, msgspec.MsgspecError):
            found = TorchFacts(problem=f"printed no valid facts: {printed[-200:]!r}")
        if problem and found.torch:  # it hung or crashed where it counts GPUs
            return msgspec.structs.replace(found, cuda_problem=problem)
        return TorchFacts(problem=problem) if problem else found

    return answer
