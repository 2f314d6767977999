"""Ranks of a gang that an error of their own GPU ended, by the texts of CUDA, cuDNN and cuBLAS.

What such an error does to other ranks, which NCCL tells them, is none of theirs. Whether the GPU or the software is at
fault is not decided here: see `judge.coverage`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pytest_ddpscale.launch.gang_state import GangState
from pytest_ddpscale.node.protocol import Failed
from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.records import RankGpuError

# Errors after which a context is unusable, as cudaGetErrorString says them (CUDA Runtime API, "CUDA error types"), and
# those of libraries whose kernels failed. Lack of memory, of a driver or of kernels is none of the GPU's.
_TEXTS = (
    "unspecified launch failure",  # 719
    "an illegal memory access was encountered",  # 700
    "device-side assert triggered",  # 710
    "an illegal instruction was encountered",  # 715
    "misaligned address",  # 716
    "operation not supported on global/shared address space",  # 717
    "invalid program counter",  # 718
    "hardware stack error",  # 714
    "the launch timed out and was terminated",  # 702
    "uncorrectable ECC error encountered",  # 214
    "uncorrectable NVLink error detected",  # 220
    "Invalid access of peer GPU memory over nvlink or a hardware error",  # 226
    "CUDNN_STATUS_EXECUTION_FAILED",
    "CUBLAS_STATUS_EXECUTION_FAILED",
)
_OWN_ERROR = re.compile(rf"[^\n]*?((?:CUDA|Cuda|cuDNN|cuBLAS)[^\n]*?(?:{'|'.join(map(re.escape, _TEXTS))}))")
_MOST_CHARACTERS = 120


def gpu_error_in(text: str) -> str:
    """``CUDA error: unspecified launch failure``: the error of a rank's own GPU in a text; empty if there is none."""
    found = _OWN_ERROR.search(text)
    return found[1][-_MOST_CHARACTERS:] if found else ""


def gpu_error_of(report: Failed) -> str:
    """`gpu_error_in` for a rank's report of its error."""
    return gpu_error_in(report.message)


def gpu_errors(roll: GangState) -> tuple[RankGpuError, ...]:
    """Ranks that an error of their own GPU ended: by their reports, or by their last words if they were aborted."""
    found: dict[tuple[int, int], RankGpuError] = {}
    for report in roll.failures:
        if error := gpu_error_of(report):
            where = Place(report.host, report.local_rank, report.device, report.gpu_index)
            found[report.node, report.local_rank] = RankGpuError(
                place=where, error=error, study=report.study, arm=report.arm
            )
    for place in _aborted(roll):
        words, rank = roll.last_words.get(place), roll.ranks.get(place)
        error = gpu_error_in("\n".join(words.lines)) if words else ""
        if error and place not in found:
            study, arm = (rank.study, rank.arm) if rank else (None, None)
            where = Place(roll.nodes[place[0]].host, place[1])
            found[place] = RankGpuError(place=where, error=error, study=study, arm=arm)
    return tuple(found[place] for place in sorted(found))


def _aborted(roll: GangState) -> Iterator[tuple[int, int]]:
    """Ranks that ended without a report: NCCL's watchdog aborts a rank whose GPU failed before the rank notices."""
    told = {(report.node, report.local_rank) for report in roll.failures}
    for number, node in sorted(roll.nodes.items()):
        for one in node.exit.exits if node.exit is not None else ():
            if one.exit_code != 0 and (number, one.local_rank) not in told:
                yield number, one.local_rank
