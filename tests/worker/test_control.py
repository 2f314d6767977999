"""Messages between ranks and their groups: who may write, who waits, how ranks are numbered, who connects."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from datetime import timedelta

import psutil
import pytest
import torch
import torch.distributed as dist
from torch.distributed import DistError, DistStoreError, TCPStore

from pytest_ddpscale.worker.control import (
    KEYS_AT_ONCE,
    Control,
    communicator_options,
    connect,
    new_group,
    process_group_class,
)
from tests.builders.trained import CPU, TIMEOUT
from tests.forks.start import command


@pytest.fixture
def pair() -> tuple[Control, Control]:
    timeout = timedelta(seconds=1)
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timeout)
    client = TCPStore("127.0.0.1", server.port, is_master=False, wait_for_workers=False, timeout=timeout)
    return Control(server, 0, 0, 2), Control(client, 1, 1, 2)


@pytest.fixture
def impatient(pair: tuple[Control, Control]) -> tuple[Control, Control]:
    for one in pair:
        one.store.set_timeout(timedelta(seconds=0.1))
    return pair


def test_what_one_rank_says_another_hears(pair: tuple[Control, Control]) -> None:
    first, second = pair
    second.say("weak/x/0/alone", {"steps": 5, "step_s": [0.1, 0.2]})
    assert first.hear("weak/x/0/alone") == {"steps": 5, "step_s": [0.1, 0.2]}


def test_hearing_waits_until_it_is_said(pair: tuple[Control, Control]) -> None:
    first, second = pair
    speaker = threading.Timer(0.2, second.say, ("late", 1))
    speaker.start()
    assert first.hear("late") == 1
    speaker.join()


def test_waiting_ends_when_it_is_said(pair: tuple[Control, Control]) -> None:
    first, second = pair
    speaker = threading.Timer(0.2, second.say, ("done", True))
    speaker.start()
    first.wait_for("done")
    assert first.store.check(["control/done"])
    speaker.join()


@pytest.mark.parametrize("way", [Control.hear, Control.wait_for])
def test_nobody_waits_for_ever(impatient: tuple[Control, Control], way: Callable[[Control, str], object]) -> None:
    with pytest.raises(DistError):
        way(impatient[0], "never")


def test_what_was_forgotten_is_gone(impatient: tuple[Control, Control]) -> None:
    first, second = impatient
    second.say("once", 1)
    assert first.hear("once") == 1
    second.forget("once")
    with pytest.raises(DistError):
        first.hear("once")


@pytest.mark.parametrize("count", [0, 1, KEYS_AT_ONCE, 2 * KEYS_AT_ONCE + 1])
def test_all_together_are_what_each_by_itself_is(pair: tuple[Control, Control], count: int) -> None:
    first, second = pair
    keys = [f"weak/x/0/ddp@2/{rank}" for rank in range(count)]
    for rank in reversed(range(count)):
        second.say(keys[rank], {"rank": rank, "device": "GPU-ä", "step_s": [0.1] * (rank % 3)})
    assert first.hear_all(keys, dict) == [first.hear(key) for key in keys]


def test_hearing_all_waits_for_the_last(pair: tuple[Control, Control]) -> None:
    first, second = pair
    second.say("0", 0)
    speaker = threading.Timer(0.2, second.say, ("1", 1))
    speaker.start()
    assert first.hear_all(["0", "1"], int) == [0, 1]
    speaker.join()


def test_who_did_not_say_anything_is_named(impatient: tuple[Control, Control]) -> None:
    first, second = impatient
    second.say("arm/0", 0)
    with pytest.raises(DistStoreError, match=r"2 of 3 messages did not come in time: arm/1, arm/2$"):
        first.hear_all(["arm/0", "arm/1", "arm/2"], int)
    assert first.hear("arm/0") == 0, "the store is still good for other words"


def test_of_many_silent_ones_the_first_are_named(impatient: tuple[Control, Control]) -> None:
    with pytest.raises(DistStoreError, match=r"20 of 20 messages did not come in time: 0, 1, 2, 3, 4, 5, 6, 7, …$"):
        impatient[0].hear_all([str(number) for number in range(20)], int)


def test_the_store_does_not_grow_with_the_rounds(pair: tuple[Control, Control]) -> None:
    first, second = pair
    sizes = []
    for number in range(3):
        keys = [f"{number}/{rank}" for rank in range(5)]
        for key in keys:
            second.say(key, "a record")
        first.hear_all(keys, str)
        for key in keys:
            second.forget(key)
        sizes.append(first.store.num_keys())
    assert len(set(sizes)) == 1, sizes


def test_nan_is_not_passed_on(pair: tuple[Control, Control]) -> None:
    with pytest.raises(ValueError, match=r"JSON compliant|Out of range"):
        pair[0].say("x", float("nan"))


def test_who_hosts_the_store_leaves_last(pair: tuple[Control, Control]) -> None:
    first, second = pair
    other = threading.Timer(0.2, second.leave)
    other.start()
    began = time.monotonic()
    first.leave()
    assert time.monotonic() - began >= 0.15
    other.join()


RANK_0 = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "DDPSCALE_NODE_INDEX": "0", "DDPSCALE_NODES": "1"}


def test_rank_0_hosts_the_store_on_one_address_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for name, value in (RANK_0 | {"DDPSCALE_STORE": f"127.0.0.1:{port}"}).items():
        monkeypatch.setenv(name, value)
    first = connect(timedelta(seconds=5))
    monkeypatch.setenv("LOCAL_RANK", "1")
    second = connect(timedelta(seconds=5))
    second.say("x", 1)
    assert first.hear("x") == 1
    ours = [c for c in psutil.net_connections("tcp") if c.pid == os.getpid()]
    listening = [c.laddr for c in ours if c.status == psutil.CONN_LISTEN and c.laddr]
    assert {address.ip for address in listening if address.port == port} == {"127.0.0.1"}


def test_a_port_that_somebody_took_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for name, value in (RANK_0 | {"DDPSCALE_STORE": f"127.0.0.1:{port}"}).items():
            monkeypatch.setenv(name, value)
        with pytest.raises(
            RuntimeError, match=f"rank 0 cannot listen on 127.0.0.1, port {port} .Address already in use"
        ):
            connect(timedelta(seconds=1))


def test_a_worker_that_no_agent_started_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DDPSCALE_NODES", raising=False)
    with pytest.raises(RuntimeError, match="started by torchrun, under an agent"):
        connect(timedelta(seconds=1))


lists_keys = pytest.mark.skipif(not hasattr(TCPStore, "list_keys"), reason="this torch's store does not list its keys")


class TestSecondProcess:
    """Any local process can use the store; what it writes counts for nothing."""

    def intrude(self, store: TCPStore, attack: str) -> None:
        program = command("tests.worker.intruder", str(store.port), attack)
        said = subprocess.run(program, capture_output=True, text=True, timeout=120, check=False)
        assert said.stdout == "done\n", said.stderr

    @pytest.fixture
    def store(self) -> TCPStore:
        return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=1))

    @pytest.fixture
    def gang(self, store: TCPStore) -> tuple[Control, Control]:
        other = TCPStore("127.0.0.1", store.port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=1))
        return Control(store, 0, 0, 2, secret="5e" * 32), Control(other, 1, 1, 2, secret="5e" * 32)

    def test_that_guesses_a_key_is_not_heard(self, store: TCPStore, gang: tuple[Control, Control]) -> None:
        self.intrude(store, "guesses")
        with pytest.raises(DistStoreError):
            gang[1].hear("round")
        gang[0].say("round", ["ddp@2"])
        assert gang[1].hear("round") == ["ddp@2"]

    @lists_keys
    @pytest.mark.parametrize("attack", ["forges", "changes"])
    def test_that_finds_a_key_is_refused(self, store: TCPStore, gang: tuple[Control, Control], attack: str) -> None:
        gang[0].say("round", ["ddp@2"])
        self.intrude(store, attack)
        refused = "round in the ranks' store was not written by a rank of this gang"
        with pytest.raises(ValueError, match=refused):
            gang[1].hear("round")
        with pytest.raises(ValueError, match=refused):
            gang[1].hear_all(["round"], list)

    @lists_keys
    def test_that_moves_a_message_to_another_key_is_refused(
        self, store: TCPStore, gang: tuple[Control, Control]
    ) -> None:
        gang[0].say("round", ["ddp@2"])
        self.intrude(store, "moves")
        assert gang[1].hear("round") == ["ddp@2"]
        with pytest.raises(ValueError, match="other in the ranks' store was not written by a rank of this gang"):
            gang[1].hear("other")

    def test_of_another_gang_is_refused(self, gang: tuple[Control, Control]) -> None:
        """As one that has the port of a gang that has just ended."""
        gang[0].say("round", ["ddp@2"])
        stranger = Control(gang[1].store, 1, 1, 2)
        with pytest.raises(ValueError, match="was not written by a rank of this gang"):
            stranger.hear("round")


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
