"""Which own address and interface lead to another machine."""

from __future__ import annotations

import socket

import psutil
import pytest

from pytest_ddpscale.node.addresses import address_toward, interface_of


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
