"""Fixtures for tests against a real Slurm: ``lab``, healthy at the start of every test that asks for it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.slurm_lab.lab import SlurmLab
from tests.slurm_lab.needs import why_not

NODES = 6


def require_lab() -> None:
    """Skip where no lab can run, saying what would enable it; fail instead when ``DDPSCALE_LAB=required``."""
    skip_or_fail(why_not())


def skip_or_fail(reason: str | None) -> None:
    """As `require_lab`, for any reason why something of the labs cannot run here; None where it can."""
    if reason is None:
        return
    if os.environ.get("DDPSCALE_LAB") == "required":
        pytest.fail(f"DDPSCALE_LAB=required, but {reason}", pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def slurm_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmLab]:
    """The session's one cluster, in whatever state the last test left it: ask for ``lab`` instead."""
    require_lab()
    with SlurmLab(tmp_path_factory.mktemp("slurm-lab"), nodes=NODES) as lab:
        yield lab


@pytest.fixture
def lab(slurm_lab: SlurmLab) -> Iterator[SlurmLab]:
    """A Slurm cluster of six idle, healthy nodes, ``n1`` … ``n6``; healed after the test, every job cancelled."""
    yield slurm_lab
    slurm_lab.heal()
