"""Who does a probe together."""

from __future__ import annotations

import pytest

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.worker.probes.blocks import peer_of


def test_all_devices_of_a_node_are_probed_at_once() -> None:
    assert Layout(2, 3).crews(Arm("matmul-fp32")) == ((0, 1, 2), (3, 4, 5))


def test_what_fits_a_node_is_done_on_every_node() -> None:
    assert Layout(2, 3).crews(Arm("all-reduce-1mib", 2)) == ((0, 1), (3, 4))


def test_what_is_larger_than_a_node_is_done_once() -> None:
    assert Layout(2, 3).crews(Arm("send-recv-1mib", 4)) == ((0, 1, 2, 3),)


@pytest.mark.parametrize("probe", [Arm("send-recv-1mib", 8), Arm("send-recv-1mib", 24)])
def test_a_peer_is_mutual(probe: Arm) -> None:
    layout = Layout(3, 8)
    for turn in range(layout.turns(probe)):
        peers = {rank: peer_of(rank, probe, turn, layout) for rank in range(24)}
        assert all(peer is None or peers[peer] == rank for rank, peer in peers.items())
        assert any(peer is not None for peer in peers.values())


def test_only_send_recv_takes_turns() -> None:
    layout = Layout(3, 8)
    assert [layout.turns(probe) for probe in (Arm("matmul-fp32"), Arm("all-gather-1mib", 8))] == [1, 1]
    assert [layout.turns(Arm("send-recv-1mib", ranks)) for ranks in (2, 3, 8, 16, 24)] == [1, 3, 7, 1, 3]
