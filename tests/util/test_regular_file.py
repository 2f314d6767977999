"""What is not a regular file is refused by name, before it is opened, in no time."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_ddpscale.util.regular_file import open_regular, read_regular

SOON_S = 1.0


def pipe(path: Path) -> None:
    os.mkfifo(path)


def listening_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


def link_to(target: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target)


IRREGULAR = [
    (pipe, "a pipe"),
    (listening_socket, "a socket"),
    (link_to("/dev/zero"), "a character device"),
    (link_to("/dev/tty"), "a character device"),
    (Path.mkdir, "a directory"),
]


@pytest.mark.parametrize(("make", "kind"), IRREGULAR)
@pytest.mark.parametrize("read", [open_regular, read_regular])
def test_what_is_no_regular_file_is_refused_at_once(
    tmp_path: Path, make: Callable[[Path], None], kind: str, read: Callable[[Path], object]
) -> None:
    make(tmp_path / "f")
    began_s = time.monotonic()
    with pytest.raises(OSError, match=f"{kind}, not a regular file"):
        read(tmp_path / "f")
    assert time.monotonic() - began_s < SOON_S


def test_a_link_to_a_regular_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"content")
    (tmp_path / "f").symlink_to("target")
    assert read_regular(tmp_path / "f") == b"content"
    with open_regular(tmp_path / "f") as file:
        assert file.read() == b"content"


def test_a_file_is_as_large_as_its_limit_and_no_larger(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x" * 2048)
    assert len(read_regular(tmp_path / "f", 2048)) == 2048
    with pytest.raises(OSError, match="larger than 1 KiB"):
        read_regular(tmp_path / "f", 1024)


def test_a_file_with_a_hole_of_a_terabyte_is_refused_at_once(tmp_path: Path) -> None:
    with (tmp_path / "f").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(OSError, match="larger than 128 MiB"):
        read_regular(tmp_path / "f")


@pytest.mark.parametrize("name", ["none", "null\0"])
def test_what_cannot_be_opened_is_an_error_of_the_system(tmp_path: Path, name: str) -> None:
    with pytest.raises(OSError):
        read_regular(tmp_path / name)
