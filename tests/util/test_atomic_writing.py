"""A file is replaced as a whole, with the permissions of any new file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpscale.history.store import writing
from pytest_ddpscale.util.atomic_writing import write_atomically
from tests.rows import rows


def make_history(path: Path) -> None:
    with writing(path):
        pass


def test_replaces_the_content_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file.txt"
    write_atomically(path, b"old", sync=False)
    write_atomically(path, "ñew")
    assert path.read_text(encoding="utf-8") == "ñew"
    assert [p.name for p in path.parent.iterdir()] == ["file.txt"]


@rows("make", [lambda path: write_atomically(path, "text"), make_history], ids=["write_atomically", "history"])
@rows(("umask", "mode"), [(0o077, 0o600), (0o022, 0o644), (0o002, 0o664), (0o027, 0o640)])
def test_permissions_are_those_of_any_new_file(
    make: Callable[[Path], None], umask: int, mode: int, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    before = os.umask(umask)
    try:
        make(file)
        assert file.stat().st_mode & 0o777 == mode
    finally:
        os.umask(before)
        file.unlink()


def test_permissions_of_the_file_before_are_not_kept(tmp_path: Path) -> None:
    (tmp_path / "file").touch(mode=0o400)
    (tmp_path / "other").touch()
    write_atomically(tmp_path / "file", "text")
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "other").stat().st_mode


def full(*_: Any) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("step", "text", "error"),
    [("os.fsync", "new", OSError), ("pathlib.Path.replace", "new", OSError), ("", "\ud800", UnicodeEncodeError)],
)
def test_keeps_the_old_content_when_writing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, text: str, error: type[Exception]
) -> None:
    path = tmp_path / "file.json"
    write_atomically(path, "old")
    if step:
        monkeypatch.setattr(step, full)
    with pytest.raises(error):
        write_atomically(path, text)
    assert [p.name for p in tmp_path.iterdir()] == ["file.json"]
    assert path.read_text() == "old"
