"""Ranks are numbered by the nodes' places in the allocation, and measure only what was planned for them."""

from __future__ import annotations

from datetime import timedelta

import pytest
from torch.distributed import TCPStore

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.worker.control import connect, rank_of
from pytest_ddpscale.worker.rank import refuse_other_layout
from tests.builders.trained import study

TIMEOUT = timedelta(seconds=5)
# What torchrun and the agent say on the last of three nodes.
SECOND_RANK = {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "DDPSCALE_NODE_INDEX": "2", "DDPSCALE_NODES": "3"}
SPREAD = Arm("ddp", 4, 2, "spread")


def test_ranks_are_numbered_by_their_nodes_places_in_the_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=TIMEOUT)
    for name, value in (SECOND_RANK | {"RANK": "1", "DDPSCALE_STORE": f"127.0.0.1:{server.port}"}).items():
        monkeypatch.setenv(name, value)
    control = connect(TIMEOUT)
    assert (control.rank, control.local_rank, control.layout) == (5, 1, Layout(3, 2))


def test_a_rank_that_has_not_joined_yet_knows_its_number_if_its_agent_says_it() -> None:
    assert rank_of(SECOND_RANK) == 5
    assert rank_of({"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}) == -1


def test_a_gang_of_fewer_nodes_measures_what_each_does_by_itself() -> None:
    refuse_other_layout(study(Arm("alone", 1, 2), Arm("ddp", 4, 2), Arm("ddp", 8, 2)), Layout(3, 4), Layout(2, 4))


def test_a_gang_of_fewer_nodes_does_not_spread_ranks_otherwise_than_planned() -> None:
    with pytest.raises(RuntimeError, match="planned for 3 nodes of 4 ranks; this gang has 2 of 4"):
        refuse_other_layout(study(SPREAD), Layout(3, 4), Layout(2, 4))
    refuse_other_layout(study(SPREAD), Layout(4, 4), Layout(5, 4))


def test_an_arm_that_fitted_a_node_is_not_measured_across_nodes() -> None:
    with pytest.raises(RuntimeError, match="ddp@4 of weak/tiny is planned for 2 nodes of 4 ranks"):
        refuse_other_layout(study(Arm("ddp", 4, 2)), Layout(2, 4), Layout(4, 2))
