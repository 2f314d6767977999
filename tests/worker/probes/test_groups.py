"""Who does a probe together."""

from __future__ import annotations

import pytest

from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.probe import Probe
from pytest_ddpscale.worker.probes.blocks import peer_of, turns
from pytest_ddpscale.worker.probes.groups import rank_groups


def test_all_devices_of_a_node_are_probed_at_once() -> None:
    assert rank_groups(Probe("matmul-fp32"), Layout(2, 3)) == ((0, 1, 2), (3, 4, 5))


def test_what_fits_a_node_is_done_on_every_node() -> None:
    assert rank_groups(Probe("all-reduce-1mib", 2), Layout(2, 3)) == ((0, 1), (3, 4))


def test_what_is_larger_than_a_node_is_done_once() -> None:
    assert rank_groups(Probe("send-recv-1mib", 4), Layout(2, 3)) == ((0, 1, 2, 3),)


def test_a_gang_of_too_few_ranks_is_refused() -> None:
    with pytest.raises(RuntimeError, match="probe all-reduce-1mib@8 needs 8 ranks; this gang has 6"):
        rank_groups(Probe("all-reduce-1mib", 8), Layout(2, 3))


@pytest.mark.parametrize("probe", [Probe("send-recv-1mib", 8), Probe("send-recv-1mib", 24)])
def test_a_peer_is_mutual(probe: Probe) -> None:
    layout = Layout(3, 8)
    for turn in range(turns(probe, layout)):
        peers = {rank: peer_of(rank, probe, turn, layout) for rank in range(24)}
        assert all(peer is None or peers[peer] == rank for rank, peer in peers.items())
        assert any(peer is not None for peer in peers.values())


def test_only_send_recv_takes_turns() -> None:
    layout = Layout(3, 8)
    assert [turns(probe, layout) for probe in (Probe("matmul-fp32"), Probe("all-gather-1mib", 8))] == [1, 1]
    assert [turns(Probe("send-recv-1mib", ranks), layout) for ranks in (2, 3, 8, 16, 24)] == [1, 3, 7, 1, 3]
