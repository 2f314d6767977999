"""What ended ranks: errors of their own GPUs, and of collectives, by the texts of CUDA, NCCL and gloo.

What an error of a GPU does to other ranks, which NCCL tells them, is none of theirs. Whether the GPU or the software is
at fault is not decided here: see `judge.coverage`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from pytest_ddpscale.launch.gang_state import GangState
from pytest_ddpscale.node.protocol import Failed, RankSeen
from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.records import RankGpuError

# Whose an error is, by its text as cudaGetErrorString has it (CUDA Runtime API, "CUDA error types"), or its status of a
# library. ``device``: after it the context is unusable. ``program``: a wrong kernel or a wrong batch is as likely as
# the GPU. Others are none of the GPU's: what explains them. Of two that fit at one place the first counts.
_DEVICE, _PROGRAM = "device", "program"
_CAPTURE = "a program captured a CUDA graph wrongly"
_NO_FEATURE = "the GPU, its driver or a virtual machine lacks a feature that the program uses"
OUT_OF_MEMORY = "too little memory"
_ERRORS = {
    "uncorrectable ECC error encountered": _DEVICE,  # 214
    "uncorrectable NVLink error detected": _DEVICE,  # 220
    "Invalid access of peer GPU memory over nvlink or a hardware error": _DEVICE,  # 226
    "OS call failed or operation not supported on this OS": _DEVICE,  # 304
    "the launch timed out and was terminated": _DEVICE,  # 702
    "hardware stack error": _DEVICE,  # 714
    "an illegal instruction was encountered": _DEVICE,  # 715
    "operation not supported on global/shared address space": _DEVICE,  # 717
    "invalid program counter": _DEVICE,  # 718
    "unspecified launch failure": _DEVICE,  # 719
    "unknown error": _DEVICE,  # 999
    "an illegal memory access was encountered": _PROGRAM,  # 700
    "device-side assert triggered": _PROGRAM,  # 710
    "misaligned address": _PROGRAM,  # 716
    r"CU\w+_STATUS_EXECUTION_FAILED": _PROGRAM,
    r"CU\w+_STATUS_INTERNAL_ERROR": _PROGRAM,
    r"CU\w+_STATUS_(?:ALLOC_FAILED|NOT_INITIALIZED)": OUT_OF_MEMORY,
    r"(?:operation|dependency|attempt) [^\n]*captur": _CAPTURE,  # 900 to 908
    "captur(?:e was|ing stream)": _CAPTURE,
    "invalid argument": "a program called CUDA wrongly",  # 1
    "out of memory": OUT_OF_MEMORY,  # 2
    "initialization error": "the driver does not start, or CUDA was used before a fork",  # 3
    "invalid configuration argument": "a program launched a kernel that is too large for this GPU",  # 9
    "driver version is insufficient": "install a driver for torch's CUDA, or torch for the driver's",  # 35
    "busy or unavailable": "another process has it, in compute mode Exclusive_Process: `nvidia-smi -c 0`",  # 46
    "no CUDA-capable device": "look at CUDA_VISIBLE_DEVICES, and at the container's GPUs",  # 100
    "invalid device ordinal": "fewer GPUs are visible than ranks were started: look at CUDA_VISIBLE_DEVICES",  # 101
    "no kernel image": "this torch or a library has no kernels for this GPU: install a wheel that has",  # 209
    "unsupported toolchain": "kernels are of a newer CUDA than the driver: install a newer driver",  # 222
    "operation not permitted": _NO_FEATURE,  # 800
    "operation not supported": _NO_FEATURE,  # 801
    "system not yet initialized": "start nvidia-fabricmanager, of the driver's version",  # 802
    "unsupported display driver": "libcuda and kernel module differ: reboot, or match the container's",  # 803
    "forward compatibility was attempted": "cuda-compat does not fit this GPU: take it off LD_LIBRARY_PATH",  # 804
}
_OWN_ERROR = re.compile(rf"[^\n]*?((?:CUDA|Cuda|cuDNN|cuBLAS)[^\n]*?({'|'.join(_ERRORS)}))")
_MOST_CHARACTERS = 120


class CudaError(NamedTuple):
    """An error of CUDA or one of its libraries in a text.

    Attributes:
        text: ``CUDA error: unspecified launch failure``.
        cause: what explains it; empty if its GPU may be at fault.
    """

    text: str
    is_program: bool = False
    cause: str = ""


def cuda_error_in(text: str) -> CudaError | None:
    """The first one that a GPU may be at fault for, else the first; None if there is none."""
    errors = []
    for found in _OWN_ERROR.finditer(text):
        whose = next(whose for error, whose in _ERRORS.items() if re.fullmatch(error, found[2]))
        cause = "" if whose in (_DEVICE, _PROGRAM) else whose
        errors.append(CudaError(found[1][-_MOST_CHARACTERS:], whose == _PROGRAM, cause))
    return min(errors, key=lambda one: bool(one.cause), default=None)


def gpu_errors(roll: GangState) -> tuple[RankGpuError, ...]:
    """Ranks that an error of their own GPU ended: by their reports, or by their last words if they were aborted.

    NCCL's watchdog aborts a rank whose GPU failed before the rank notices.
    """
    said: dict[tuple[int, int], tuple[Place, str, Failed | RankSeen]] = {
        (one.node, one.local_rank): (one.place, one.message, one) for one in roll.failures
    }
    for of_node, one, rank in roll.exits:
        key = rank.node, rank.local_rank
        if one.exit_code != 0 and key not in said and key in roll.last_words:
            said[key] = Place(of_node.host, rank.local_rank), "\n".join(roll.last_words[key].lines), rank
    return tuple(
        RankGpuError(place=place, error=error.text, is_program=error.is_program, study=of.study, arm=of.arm)
        for _, (place, text, of) in sorted(said.items())
        if (error := cuda_error_in(text)) and not error.cause
    )


# Errors that NCCL or gloo raised, perhaps in the watchdog that aborts a rank whose collective timed out.
OF_COLLECTIVES = re.compile(r"NCCL|\bnccl[A-Z]|[Gg]loo\b|DistBackendError|[Ww]atchdog")
_LAST_ERROR = re.compile(r"Last error:\s*(\S.*)")
# "NCCL error in: ProcessGroupNCCL.cpp:94, …, NCCL version 2.27.7" and gloo's "[…/pair.cc:547] …"
_SOURCES = re.compile(r" in: \S+:\d+(?=,)|\[\S+\.[a-z]+:\d+\] ?|, NCCL version \S+.*")
_MOST_OF_CAUSE = 160
# A connection whose messages are not answered, however often the adapter repeats them: by whom it was to be answered,
# and the adapter.
_NO_ANSWER = re.compile(
    r"Got completion from peer ([^\s<]+)\S* with (?:status=|error )(?:\w+\()?12\b.*?(?:\bhca (\S+)|$)", re.MULTILINE
)
_KINDS: Mapping[str, str] = {
    r"(/dev/shm)/.*No space left on device": r"\1 is full: `df -h \1`; a container gets more by --shm-size",
    r"(Call to \w+ failed.*Cannot allocate memory)": r"\1: raise the limit of locked memory (`ulimit -l unlimited`)",
    r"(no socket interface found)[\s\S]*\b(NCCL_SOCKET_IFNAME=\S+)": r"\1: \2 names none of this node's",
    r"(no socket interface found)": r"\1: does /etc/nccl.conf or ~/.nccl.conf set NCCL_SOCKET_IFNAME?",
    r"Unable to find address for: ?(\S+)": r"no socket interface \1: GLOO_SOCKET_IFNAME names it",
}


def cause_of(report: Failed, roll: GangState) -> str:
    """The cause that a failed collective gives: in words if its kind is known, else its last error."""
    message = report.message
    if found := _NO_ANSWER.search(message):
        host = roll.host_at(found[1])
        peer = f"{host} ({found[1]})" if host else found[1]
        return f"{peer} did not answer over {found[2] or 'an adapter'} (status 12): look at adapter, cable and switch"
    for pattern, words in _KINDS.items():
        if found := re.search(pattern, message):
            return found.expand(words)
    last = _LAST_ERROR.search(message)
    said = last[1] if last else next((line for line in message.splitlines() if line.strip()), "")
    said = _SOURCES.sub("", said).strip()
    return said if len(said) <= _MOST_OF_CAUSE else f"{said[: _MOST_OF_CAUSE - 1]}…"


def lost_connections(roll: GangState) -> tuple[RankGpuError, ...]:
    """Ranks whose adapter got no answer from another node, each with that node's address."""
    return tuple(
        RankGpuError(
            place=report.place, error=cause_of(report, roll), study=report.study, arm=report.arm, peer=found[1]
        )
        for report in roll.failures
        if (found := _NO_ANSWER.search(report.message))
    )  # fmt: skip
