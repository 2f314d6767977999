"""Who does a probe together."""

from __future__ import annotations

import pytest

from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.probe import Probe
from pytest_ddpscale.worker.probes.groups import crews
from pytest_ddpscale.worker.probes.opening import turns
from pytest_ddpscale.worker.probes.send_recv import pairings, peer_of


def test_all_devices_of_a_node_are_probed_at_once() -> None:
    assert crews(Probe("matmul-fp32"), Layout(2, 3)) == ((0, 1, 2), (3, 4, 5))


def test_what_fits_a_node_is_done_on_every_node() -> None:
    assert crews(Probe("all-reduce-1mib", 2), Layout(2, 3)) == ((0, 1), (3, 4))


def test_what_is_larger_than_a_node_is_done_once() -> None:
    assert crews(Probe("send-recv-1mib", 4), Layout(2, 3)) == ((0, 1, 2, 3),)


def test_a_gang_of_too_few_ranks_is_refused() -> None:
    with pytest.raises(RuntimeError, match="probe all-reduce-1mib@8 needs 8 ranks; this gang has 6"):
        crews(Probe("all-reduce-1mib", 8), Layout(2, 3))


@pytest.mark.parametrize("members", range(2, 10))
def test_over_all_turns_everybody_meets_everybody_once(members: int) -> None:
    met = [
        (member, peer)
        for turn in range(pairings(members))
        for member in range(members)
        if (peer := peer_of(member, members, turn)) is not None
    ]
    everybody = range(members)
    assert sorted(met) == [(one, other) for one in everybody for other in everybody if one != other]


@pytest.mark.parametrize("members", range(2, 10))
def test_a_peer_is_mutual(members: int) -> None:
    for turn in range(pairings(members)):
        peers = {member: peer_of(member, members, turn) for member in range(members)}
        assert all(peer is None or peers[peer] == member for member, peer in peers.items())


def test_only_send_recv_takes_turns() -> None:
    assert [turns(probe) for probe in (Probe("matmul-fp32"), Probe("all-gather-1mib", 8))] == [1, 1]
    assert [turns(Probe("send-recv-1mib", ranks)) for ranks in (2, 3, 8)] == [1, 3, 7]
