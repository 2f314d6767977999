"""Groups as a rank makes them: connected by their members only, and ended by the gang's timeout."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from pytest_ddpscale.worker.control import communicator_options, new_group, process_group_class
from tests.builders.trained import CPU, TIMEOUT

CPU_0 = torch.device("cpu", 0)
CAN_BE_LAZY = dist.is_nccl_available() and hasattr(dist.ProcessGroupNCCL.Options, "lazy_init")


def test_a_group_has_the_timeout_it_is_given_and_not_the_backends_own(gloo_of_one: None) -> None:
    """NCCL's own of 10 minutes ends ranks that wait for a slow one before anybody could say which."""
    group = new_group((0,), timedelta(seconds=4711))
    assert group is not None
    assert group._get_backend(CPU).options._timeout == timedelta(seconds=4711)


def test_the_backend_is_known_by_its_class(gloo_of_one: None) -> None:
    assert process_group_class(CPU) == "ProcessGroupGloo"


@pytest.mark.skipif(not CAN_BE_LAZY, reason="this torch has no NCCL, or one that connects nobody before the first use")
def test_a_rank_outside_a_group_takes_no_part_in_connecting_it(
    fake_gang_of_eight: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From torch 2.15 on it would: NCCL's default group is bound to a device, and so all others are split from it."""
    monkeypatch.setattr(dist, "get_backend", lambda: "nccl")
    monkeypatch.setattr(dist.group.WORLD, "bound_device_id", CPU_0)
    assert new_group((2, 3), TIMEOUT) is None


def test_only_nccl_is_asked_to_wait_with_its_communicators() -> None:
    assert communicator_options("gloo") is None
    if CAN_BE_LAZY:
        assert communicator_options("nccl").lazy_init
