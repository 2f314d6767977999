"""Which own address and interface lead to another machine, and a port there that nobody else listens on."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import psutil
import pytest

from pytest_ddpscale.node import addresses
from pytest_ddpscale.node.addresses import address_toward, interface_of, reserved_port


def test_toward_this_machine_it_is_loopback() -> None:
    assert address_toward("localhost") == address_toward("127.0.0.1") == "127.0.0.1"


def test_toward_an_address_of_its_own_it_is_that_one_and_its_interface_is_found() -> None:
    own = {
        one.address: name
        for name, found in psutil.net_if_addrs().items()
        for one in found
        if one.family == socket.AF_INET
    }
    assert own
    assert {address: interface_of(address_toward(address)) for address in own} == own


def test_an_address_of_somebody_else_has_no_interface_here() -> None:
    assert interface_of("192.0.2.1") is None


def test_who_is_not_known_has_no_way_to_it() -> None:
    with pytest.raises(OSError, match=r"\S"):
        address_toward("nobody.invalid")


@pytest.fixture
def listen() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def free_port(gang_id: str) -> int:
    """The port that is found, not kept."""
    with reserved_port(gang_id) as reserved:
        return int(reserved.getsockname()[1])


def taken(port: int, stack: ExitStack) -> None:
    server = stack.enter_context(socket.socket())
    server.bind(("", port))
    server.listen()


def test_ports_are_where_a_firewall_may_expect_them_and_differ_between_gangs() -> None:
    found = {free_port(f"g{gang}") for gang in range(30)}
    assert all(20_000 <= port <= 29_999 for port in found)
    assert len(found) > 25


def test_a_port_in_use_is_passed_over(listen: ExitStack) -> None:
    first = free_port("g1")
    taken(first, listen)
    assert first < free_port("g1") <= first + 100 or first > 29_900


def test_it_is_kept_for_who_reuses_addresses_and_nobody_else(listen: ExitStack) -> None:
    reserved = listen.enter_context(reserved_port("g1"))
    port = reserved.getsockname()[1]
    assert free_port("g1") != port
    with pytest.raises(OSError, match="in use"), socket.socket() as other:
        other.bind(("127.0.0.1", port))
    listen.enter_context(socket.create_server(("127.0.0.1", port)))
    listen.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))


def test_if_none_is_free_it_says_which_were_tried(listen: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    server = listen.enter_context(socket.socket())
    server.bind(("", 0))
    server.listen()
    monkeypatch.setattr(addresses, "_FIRST_PORT", server.getsockname()[1])
    monkeypatch.setattr(addresses, "_PORTS", 1)
    with pytest.raises(OSError, match=f"all of 100 ports starting at {server.getsockname()[1]} are in use"):
        free_port("g1")
