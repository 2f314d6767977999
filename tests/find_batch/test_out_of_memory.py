"""How too little memory shows, and what is something else."""

from __future__ import annotations

import pytest

from pytest_ddpscale.find_batch.out_of_memory import why_out_of_memory
from pytest_ddpscale.launch.gang_state import GangEnd, RankEnd
from pytest_ddpscale.node.protocol import Failed


def failed(rank: int, type_: str, message: str = "") -> Failed:
    return Failed(node=0, host="n1", local_rank=rank, rank=rank, phase="warm-up", type=type_, message=message)


def ended(*ranks: RankEnd, oom_kills: int = 0) -> GangEnd:
    return GangEnd(1, "something", rank_ends=ranks, oom_kills=oom_kills)


def test_one_rank_that_says_so_is_enough() -> None:
    for type_, message in [
        ("OutOfMemoryError", "CUDA out of memory. Tried to allocate 20.00 MiB."),
        ("MemoryError", ""),
        ("RuntimeError", "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes."),
        ("RuntimeError", "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
        ("AcceleratorError", "CUDA error: out of memory"),
        ("RuntimeError", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        ("RuntimeError", "cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        ("RuntimeError", "FIND was unable to find an engine to execute this computation"),
        ("RuntimeError", "GET was unable to find an engine to execute this computation"),
        ("RuntimeError", "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
        ("RuntimeError", "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED"),
        ("RuntimeError", "CUDA driver error: out of memory"),
        ("RuntimeError", "Triton Error [CUDA]: out of memory"),
        ("DistBackendError", "ncclUnhandledCudaError: …\nLast error:\nCuda failure 2 'out of memory'"),
        ("DistBackendError", "ncclUnhandledCudaError: …\nLast error:\nFailed to CUDA calloc async 4194304 bytes"),
    ]:
        partner = failed(0, "DistBackendError", "Connection closed by peer [127.0.0.1]:1")
        end = GangEnd(1, "something", failures=(partner, failed(1, type_, message)))
        assert why_out_of_memory(end, 0) == f"{type_} on rank 1 in warm-up"


def test_a_killed_rank() -> None:
    for rank, oom_kills, counted, why in [
        (RankEnd("rank 1 on n1", -9), 0, 1, "the kernel ended rank 1 on n1 for lack of memory"),
        (RankEnd("rank 1 on n1", -9), 1, None, "the kernel ended rank 1 on n1 for lack of memory"),
        # The cgroup's own count is worth more than the machine's, where somebody else's processes count too.
        (RankEnd("rank 1 on n1", -9), 1, 0, "rank 1 on n1 was killed by SIGKILL"),
        (RankEnd("rank 1 on n1", None), 0, 1, "the kernel ended rank 1 on n1 for lack of memory"),
        (RankEnd("rank 1 on n1", None), 0, 0, ""),
        (RankEnd("rank 1 on n1", -11), 0, 0, ""),
        (RankEnd("rank 1 on n1", 1), 1, None, ""),
    ]:
        assert why_out_of_memory(ended(rank, oom_kills=oom_kills), counted) == why


def test_an_agent_that_the_kernel_ended() -> None:
    why = "the kernel ended a process that ranks need for lack of memory"
    assert why_out_of_memory(GangEnd(-9, "the node's agent was killed by SIGKILL"), 1) == why
    assert why_out_of_memory(GangEnd(-9, "the node's agent was killed by SIGKILL"), None) == ""


@pytest.mark.parametrize("message", ["the loss is nan", "no memory of what happened", "NCCL error: invalid usage"])
def test_other_errors_are_none_of_memory(message: str) -> None:
    assert why_out_of_memory(GangEnd(1, "x", failures=(failed(0, "RuntimeError", message),)), 0) == ""
