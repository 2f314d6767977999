"""Ranks of a gang that an error of their own GPU ended, by the texts of CUDA, cuDNN and cuBLAS.

What such an error does to other ranks, which NCCL tells them, is none of theirs. Whether the GPU or the software is at
fault is not decided here: see `judge.coverage`.
"""

from __future__ import annotations

import re
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
