"""Ranks are numbered by the nodes' places in the allocation, and measure only what was planned for them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from torch.distributed import TCPStore

from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.study import Arm
from pytest_ddpscale.worker.control import connect
from pytest_ddpscale.worker.gang import refuse_other_layout
from tests.worker.sample import study

TIMEOUT = timedelta(seconds=5)
# What torchrun says on its second node.
TORCHRUN = {"RANK": "5", "WORLD_SIZE": "6", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
SPREAD = Arm("ddp", 4, 2, "spread")


@pytest.fixture
def torchrun(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """The environment of a rank whose torchrun hosts the store."""
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=TIMEOUT)
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(server.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    for name in ("DDPSCALE_NODE_INDEX", "DDPSCALE_NODES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in (TORCHRUN | place).items():
        monkeypatch.setenv(name, value)
    yield monkeypatch
    del server


def test_without_an_agent_the_rank_is_torchruns(torchrun: pytest.MonkeyPatch) -> None:
    control = connect(TIMEOUT)
    assert (control.rank, control.local_rank, control.layout) == (5, 1, Layout(3, 2))


def test_with_an_agent_the_rank_is_that_of_the_nodes_place_in_the_allocation(torchrun: pytest.MonkeyPatch) -> None:
    torchrun.setenv("DDPSCALE_NODE_INDEX", "0")
    torchrun.setenv("DDPSCALE_NODES", "3")
    control = connect(TIMEOUT)
    assert (control.rank, control.local_rank, control.layout) == (1, 1, Layout(3, 2))


def test_nodes_that_torchrun_did_not_wait_for_are_missed(torchrun: pytest.MonkeyPatch) -> None:
    torchrun.setenv("DDPSCALE_NODES", "4")
    with pytest.raises(RuntimeError, match="torchrun joined 6 ranks; 4 nodes of 2 are 8"):
        connect(TIMEOUT)


def test_a_gang_of_fewer_nodes_measures_what_each_does_by_itself() -> None:
    refuse_other_layout(study(Arm("alone", 1, 2), Arm("ddp", 4, 2), Arm("ddp", 8, 2)), Layout(3, 4), Layout(2, 4))


def test_a_gang_of_fewer_nodes_does_not_spread_ranks_otherwise_than_planned() -> None:
    with pytest.raises(RuntimeError, match="planned for 3 nodes of 4 ranks; this gang has 2 of 4"):
        refuse_other_layout(study(SPREAD), Layout(3, 4), Layout(2, 4))
    refuse_other_layout(study(SPREAD), Layout(4, 4), Layout(5, 4))


def test_an_arm_that_fitted_a_node_is_not_measured_across_nodes() -> None:
    with pytest.raises(RuntimeError, match="ddp@4 of weak/tiny is planned for 2 nodes of 4 ranks"):
        refuse_other_layout(study(Arm("ddp", 4, 2)), Layout(2, 4), Layout(4, 2))
