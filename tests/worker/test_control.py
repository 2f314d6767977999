"""Messages between ranks and their groups: who may write, who waits, how ranks are numbered, who connects."""

from __future__ import annotations

import os
import socket
import threading
import time
from datetime import timedelta

import psutil
import pytest
import torch
import torch.distributed as dist
from torch.distributed import DistError, DistStoreError, TCPStore

from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.worker.control import (
    KEYS_AT_ONCE,
    Control,
    communicator_options,
    connect,
    new_group,
    process_group_class,
    rank_of,
)
from tests.builders.trained import CPU, TIMEOUT

SECRET = "5e" * 32
Pair = tuple[Control, Control]


def joined(port: int = 0) -> TCPStore:
    """Who hosts a store, or joins one that is at a port."""
    timeout = timedelta(seconds=1)
    return TCPStore("127.0.0.1", port, is_master=not port, wait_for_workers=False, timeout=timeout)


@pytest.fixture
def server() -> TCPStore:
    return joined()


@pytest.fixture
def pair(server: TCPStore) -> Pair:
    return Control(server, 0, 0, 2, secret=SECRET), Control(joined(server.port), 1, 1, 2, secret=SECRET)


def test_waiting_ends_when_it_is_said(pair: Pair) -> None:
    first, second = pair
    said = {"steps": 5, "step_s": [0.1, 0.2]}
    second.say("early", said)
    waiting = (
        (lambda: first.hear("late"), said),
        (lambda: first.wait_for("late"), None),
        (lambda: first.hear_all(["early", "late"], dict), [said, said]),
    )
    for wait, heard in waiting:
        speaker = threading.Timer(0.2, second.say, ("late", said))
        speaker.start()
        assert wait() == heard
        assert first.store.check(["control/late"])
        speaker.join()
        second.forget("late")


def test_nobody_waits_for_ever_and_who_did_not_say_anything_is_named(pair: Pair) -> None:
    first, second = pair
    first.store.set_timeout(timedelta(seconds=0.1))
    for wait in (first.hear, first.wait_for):
        with pytest.raises(DistError):
            wait("never")
    keys = first.store.num_keys()
    second.say("arm/0", 0)
    with pytest.raises(DistStoreError, match=r"2 of 3 messages did not come in time: arm/1, arm/2$"):
        first.hear_all(["arm/0", "arm/1", "arm/2"], int)
    with pytest.raises(DistStoreError, match=r"20 of 20 messages did not come in time: 0, 1, 2, 3, 4, 5, 6, 7, …$"):
        first.hear_all([str(number) for number in range(20)], int)
    assert first.hear("arm/0") == 0, "the store is still good for other words"
    second.forget("arm/0")
    assert first.store.num_keys() == keys, "it does not grow with the rounds"
    with pytest.raises(DistError):
        first.hear("arm/0")


@pytest.mark.parametrize("count", [0, 1, KEYS_AT_ONCE, 2 * KEYS_AT_ONCE + 1])
def test_all_together_are_what_each_by_itself_is(pair: Pair, count: int) -> None:
    first, second = pair
    said = {f"weak/x/0/ddp@2/{rank}": {"device": "GPU-ä", "step_s": [0.1] * (rank % 3)} for rank in range(count)}
    for key in reversed(said):
        second.say(key, said[key])
    assert first.hear_all([*said], dict) == [*said.values()] == [first.hear(key) for key in said]


def test_nan_is_not_passed_on(pair: Pair) -> None:
    with pytest.raises(ValueError, match=r"JSON compliant|Out of range"):
        pair[0].say("x", float("nan"))


def test_who_hosts_the_store_leaves_last(pair: Pair) -> None:
    first, second = pair
    other = threading.Timer(0.2, second.leave)
    other.start()
    began = time.monotonic()
    first.leave()
    assert time.monotonic() - began >= 0.15
    other.join()


def connected(monkeypatch: pytest.MonkeyPatch, port: int, local_rank: str = "0", node: str = "0") -> Control:
    """With what torchrun and the agent say on one of three nodes."""
    of_rank = {"LOCAL_RANK": local_rank, "LOCAL_WORLD_SIZE": "2", "RANK": "1"}
    of_node = {"DDPSCALE_NODE_INDEX": node, "DDPSCALE_NODES": "3", "DDPSCALE_STORE": f"127.0.0.1:{port}"}
    for name, value in (of_rank | of_node).items():
        monkeypatch.setenv(name, value)
    return connect(timedelta(seconds=5))


def test_ranks_are_numbered_by_their_nodes_places_and_rank_0_hosts_the_store_on_one_address_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        why = f"rank 0 cannot listen on 127.0.0.1, port {port} .Address already in use"
        with pytest.raises(RuntimeError, match=why):
            connected(monkeypatch, port)
    first, other = connected(monkeypatch, port), connected(monkeypatch, port, "1", "2")
    assert [(one.rank, one.local_rank, one.layout) for one in (first, other)] == [
        (0, 0, Layout(3, 2)), (5, 1, Layout(3, 2))
    ]  # fmt: skip
    other.say("x", 1)
    assert first.hear("x") == 1
    ours = [c for c in psutil.net_connections("tcp") if c.pid == os.getpid()]
    listening = [c.laddr for c in ours if c.status == psutil.CONN_LISTEN and c.laddr]
    assert {address.ip for address in listening if address.port == port} == {"127.0.0.1"}


def test_a_worker_that_no_agent_started_says_so_and_has_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DDPSCALE_NODES", raising=False)
    with pytest.raises(RuntimeError, match="started by torchrun, under an agent"):
        connect(timedelta(seconds=1))
    assert rank_of({"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}) == -1


def test_a_stranger_that_guesses_a_key_is_not_heard_and_hears_nothing(server: TCPStore, pair: Pair) -> None:
    """Any local process can use the store, as one can that has the port of a gang that has just ended."""
    first, second = pair
    joined(server.port).set("control/round", '["alone"]')
    with pytest.raises(DistStoreError):
        second.hear("round")
    first.say("round", ["ddp@2"])
    assert second.hear("round") == ["ddp@2"]
    with pytest.raises(ValueError, match="was not written by a rank of this gang"):
        Control(second.store, 1, 1, 2).hear("round")


@pytest.mark.skipif(not hasattr(TCPStore, "list_keys"), reason="this torch's store does not list its keys")
def test_what_a_stranger_writes_under_a_key_that_it_finds_is_refused(server: TCPStore, pair: Pair) -> None:
    first, second = pair
    first.say("round", ["ddp@2"])
    stranger = joined(server.port)
    (key,) = (key for key in stranger.list_keys() if key.endswith("control/round"))
    known = stranger.get(key).decode()
    forged, changed = ("round", '["alone"]'), ("round", known.replace("ddp@2", "alone"))
    for name, message in (("other", known), forged, changed):
        stranger.set(key.replace("round", name), message)
        refused = f"^{name} in the ranks' store was not written by a rank of this gang"
        with pytest.raises(ValueError, match=refused):
            second.hear(name)
        with pytest.raises(ValueError, match=refused):
            second.hear_all([name], list)


CAN_BE_LAZY = dist.is_nccl_available() and hasattr(dist.ProcessGroupNCCL.Options, "lazy_init")


def test_a_group_has_the_timeout_it_is_given_and_not_the_backends_own(gloo_of_one: None) -> None:
    """NCCL's own of 10 minutes ends ranks that wait for a slow one before anybody could say which."""
    group = new_group((0,), timedelta(seconds=4711))
    assert group is not None
    assert group._get_backend(CPU).options._timeout == timedelta(seconds=4711)
    assert process_group_class(CPU) == "ProcessGroupGloo"


@pytest.mark.skipif(not CAN_BE_LAZY, reason="this torch has no NCCL, or one that connects nobody before the first use")
def test_a_rank_outside_a_group_takes_no_part_in_connecting_it(
    fake_gang_of_eight: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From torch 2.15 on it would: NCCL's default group is bound to a device, and so all others are split from it."""
    monkeypatch.setattr(dist, "get_backend", lambda: "nccl")
    monkeypatch.setattr(dist.group.WORLD, "bound_device_id", torch.device("cpu", 0))
    assert new_group((2, 3), TIMEOUT) is None


def test_only_nccl_is_asked_to_wait_with_its_communicators() -> None:
    assert communicator_options("gloo") is None
    if CAN_BE_LAZY:
        assert communicator_options("nccl").lazy_init
