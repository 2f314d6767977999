"""What is not a regular file is refused, before it is opened, in no time."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_ddpscale.util.regular_file import open_regular, read_regular

SOON_S = 1.0


def listening_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


SPECIAL = "a pipe, socket or device"
IRREGULAR: dict[Callable[[Path], None], str] = {
    os.mkfifo: SPECIAL, listening_socket: SPECIAL, lambda path: path.symlink_to("/dev/zero"): SPECIAL,
    Path.mkdir: "a directory",
}  # fmt: skip


def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path) -> None:
    for number, (make, kind) in enumerate(IRREGULAR.items()):
        make(path := tmp_path / str(number))
        began_s = time.process_time()
        for read in (open_regular, read_regular):
            with pytest.raises(OSError, match=f"{kind}, not a regular file"):
                read(path)
        assert time.process_time() - began_s < SOON_S


def test_a_regular_file_is_read_through_a_link_and_up_to_its_limit(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(content := b"x" * 2048)
    (tmp_path / "f").symlink_to("target")
    assert read_regular(tmp_path / "f", 2048) == content
    with open_regular(tmp_path / "f") as file:
        assert file.read() == content
    with pytest.raises(OSError, match="larger than 1 KiB"):
        read_regular(tmp_path / "f", 1024)
    os.truncate(tmp_path / "f", 2**40)
    with pytest.raises(OSError, match="larger than 128 MiB"):
        read_regular(tmp_path / "f")
    with pytest.raises(OSError):
        read_regular(tmp_path / "none")
