"""Memory that is not there is told in words; other failures stay what they are."""

from __future__ import annotations

import pytest
import torch

from pytest_ddpscale.worker.probes.work import CannotProbeError, memory_permitting, refuse_more_than_is_free

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8.00 GiB."),
        RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported later"),  # pinned host memory
    ],
)
def test_a_gpu_without_memory_cannot_probe(error: RuntimeError) -> None:
    with (
        pytest.raises(CannotProbeError, match=r"not enough memory for a message: CUDA .*out of memory") as found,
        memory_permitting("a message"),
    ):
        raise error
    assert "\n" not in str(found.value)


def test_other_failures_are_not_called_a_lack_of_memory() -> None:
    with pytest.raises(RuntimeError, match="illegal memory access"), memory_permitting("a message"):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")


def test_what_all_ranks_of_a_host_need_together_has_to_be_there() -> None:
    refuse_more_than_is_free(2**20, sharers=2, device=CPU)
    with pytest.raises(
        CannotProbeError, match=r"64 ranks on this host need 1048576 MiB each; .* Choose a smaller size"
    ):
        refuse_more_than_is_free(2**40, sharers=64, device=CPU)


def test_gpus_say_themselves_how_much_they_have() -> None:
    refuse_more_than_is_free(2**60, sharers=8, device=torch.device("cuda"))
