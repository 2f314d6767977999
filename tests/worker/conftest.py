"""Process groups that one process can have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """As ranks have: threads of several test processes on few cores wait for each other."""
    torch.set_num_threads(1)


@pytest.fixture
def gloo_of_one(tmp_path: Path) -> Iterator[None]:
    """A real process group with this process as its only rank."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'rendezvous'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def fake_gang_of_eight() -> Iterator[None]:
    """Process groups as the first of eight ranks has them, without the others: nothing communicates."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    yield
    dist.destroy_process_group()


@pytest.fixture
def scalar_kernels() -> Iterator[None]:
    """torch.compile that tries no vector instructions and starts no processes, which costs more than its kernels."""
    from torch._inductor import config

    with config.patch({"compile_threads": 1, "cpp.vec_isa_ok": False}):
        yield
