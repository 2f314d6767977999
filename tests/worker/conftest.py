"""A process group that one process can have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist


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
