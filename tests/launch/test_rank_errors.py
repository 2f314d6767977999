"""Which ranks an error of their own GPU ended, and what their partners say of it."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_ddpscale.launch.gang_failure import cuda_error_in, describe, gpu_errors
from pytest_ddpscale.report.words.reasons import say
from pytest_ddpscale.run.place import Place
from tests.builders.launches import News
from tests.rows import rows

# As torch 2.14 and NCCL 2.28 say them.
LAUNCH_FAILURE = (
    "CUDA error: unspecified launch failure\nSearch for `cudaErrorLaunchFailure' in "
    "https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more information."
)
WATCHDOG = (
    "terminate called after throwing an instance of 'c10::DistBackendError'",
    "  what():  [PG ID 0 PG GUID 0(default_pg) Rank 1] Process group watchdog thread terminated with exception: "
    "CUDA error: an illegal memory access was encountered",
)
PARTNER = "NCCL error in: ProcessGroupNCCL.cpp:3690, remote process exited or there was a network error, NCCL 2.28.9"


@rows(
    ("text", "whose"),
    [
        (LAUNCH_FAILURE, "device"),
        ("CUDA error: unknown error\nSearch for `cudaErrorUnknown'", "device"),
        ("CUDA error: operation not supported on global/shared address space", "device"),
        ("unhandled cuda error\nLast error:\nCuda failure 'uncorrectable ECC error encountered'", "device"),
        ("CUDA error: device-side assert triggered", "program"),
        ("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", "program"),
        ("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx(handle …)`", "program"),
        ("unhandled cuda error\nLast error:\nCuda failure 700 'an illegal memory access was encountered'", "program"),
        ("CUDA out of memory. Tried to allocate 2.00 GiB", "too little memory"),
        ("CUDA error: CUDA-capable device(s) is/are busy or unavailable", "nvidia-smi -c 0"),
        ("CUDA error: operation not supported", "lacks a feature"),
        ("CUDA error: operation not permitted when stream is capturing", "CUDA graph"),
        ("CUDA error: capturing stream has unjoined work", "CUDA graph"),
        ("CUDA error: unspecified launch failure, in a captured graph", "device"),
        ("Cuda failure 1 'invalid argument'\nCuda failure 214 'uncorrectable ECC error encountered'", "device"),
        (PARTNER, "none"),
        ("list index out of range", "none"),
        ("unknown error", "none"),
    ],
)  # fmt: skip
def test_the_error_of_a_gpu_is_told_from_those_of_a_program_and_of_a_machine(text: str, whose: str) -> None:
    found = cuda_error_in(text)
    if found is None or found.cause:
        assert whose in (found.cause if found else "none")
    else:
        assert whose == ("program" if found.is_program else "device")


@pytest.fixture
def gang() -> News:
    return News("n1", "n2")


def test_partners_that_lost_their_communicator_are_not_among_them(gang: News) -> None:
    gang.failed(2, "DistBackendError", PARTNER)
    gang.failed(1, "AcceleratorError", LAUNCH_FAILURE, device="GPU-7", gpu_index=7)
    gang.say("words", 1, words={"local_rank": 0, "lines": WATCHDOG})
    gang.exit(1, [0, 1, 102, True])
    (found,) = gpu_errors(gang.roll)
    assert found.place == Place("n1", 1, "GPU-7", 7)
    assert (found.study, found.arm) == ("weak/r", "ddp@2")


def test_a_rank_that_the_watchdog_aborts_has_its_error_in_its_last_words(gang: News) -> None:
    gang.gone(3)
    gang.failed(0, "DistBackendError", PARTNER)
    gang.say("words", 1, words={"local_rank": 1, "lines": WATCHDOG})
    gang.say("words", 0, words={"local_rank": 1, "lines": WATCHDOG})  # of a rank that torchrun ended
    gang.exit(0, [0, 1, 100, True])
    gang.exit(1, [1, -6, 103, True], [0, 1, 102, False])
    (found,) = gpu_errors(gang.roll)
    assert found.place == Place("n2", 1)
    assert found.error == "CUDA error: an illegal memory access was encountered"


def test_the_first_line_names_the_gpu_and_what_to_do(gang: News) -> None:
    gang.failed(1, "AcceleratorError", LAUNCH_FAILURE, device="GPU-7", gpu_index=7)
    first, second = say(describe(gang.roll, 1, [])).splitlines()[:2]
    assert first == (
        "rank 1 on n1, GPU 7 (GPU-7, local rank 1), failed in timed block (study weak/r, arm ddp@2, round 3): "
        "AcceleratorError: CUDA error: unspecified launch failure; look for an Xid: `dmesg | grep -i xid` on n1"
    )
    assert second.startswith("Search for")


@rows(
    ("readings", "told"),
    [
        ({"processes": [{"pid": 4711, "name": "python", "memory_bytes": 70 * 2**30}]}, "process 4711 (python)"),
        ({"memory_used_bytes": 70 * 2**30}, "no process visible here"),
        ({"memory_used_bytes": 2**29}, ""),
    ],
)
def test_of_a_gpu_without_memory_left_what_others_held_is_told(readings: dict[str, Any], told: str) -> None:
    gang, gpu = News("n1"), {"index": 7, "uuid": "", "name": "", "pci_bus_id": "", "pci_device_id": "", **readings}
    gang.say("survey", 0, survey={"host": "n1", "unix_s": 1.0, "gpus": [gpu, gpu | {"local_rank": 1}]})
    gang.failed(1, "OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB", device="GPU-7", gpu_index=7)
    said = say(describe(gang.roll, 1, [])).partition("OutOfMemoryError: ")[2].partition("CUDA")[0]
    assert said == (f"70.0 GiB of GPU 7 were in use before the run ({told}); " if told else "")
    assert not gpu_errors(gang.roll)
