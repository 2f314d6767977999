"""What the installed torch was built for, found out in a process of its own: importing it costs seconds, or fails."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import msgspec

from pytest_ddpscale.node.limited_command import Command
from pytest_ddpscale.results.strict_json import Record

LIMIT_S = 45.0  # where it comes from a shared disk that many nodes read at once
# Nothing here touches a GPU: torch.cuda.get_arch_list() did once (it asked whether there is one), the flags do not.
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


class TorchFacts(Record, frozen=True):
    """One installation of torch.

    Attributes:
        torch: its version; None without one.
        cuda: version of CUDA that it was built with; None if it was built for CPUs.
        nccl: version of the NCCL that it uses; None without one.
        arch_list: GPU architectures that it has kernels for.
        problem: why it cannot be imported; empty if it can.
    """

    torch: str | None = None
    cuda: str | None = None
    nccl: str | None = None
    arch_list: tuple[str, ...] = ()
    problem: str = ""


def ask_torch(python: Sequence[str] = (sys.executable,), limit_s: float = LIMIT_S) -> Callable[[], TorchFacts]:
    """Begin to ask.

    Args:
        python: command that starts the interpreter whose torch is meant.

    Returns:
        What waits for the answer.
    """
    command = Command([*python, "-c", _PROGRAM], limit_s)

    def answer() -> TorchFacts:
        output, problem = command.output()
        return TorchFacts(problem=problem) if problem else _facts(output)

    return answer


def _facts(output: str) -> TorchFacts:
    try:  # before the last line may be what torch or a site prints
        return msgspec.json.decode(output.strip().splitlines()[-1], type=TorchFacts)
    except (IndexError, msgspec.MsgspecError):
        return TorchFacts(problem=f"said nothing that can be read: {output.strip()[-200:]!r}")
