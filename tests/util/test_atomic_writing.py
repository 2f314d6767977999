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


def test_replaces_the_content_and_leaves_nothing_else_not_even_permissions(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file.txt"
    write_atomically(path, b"old", sync=False)
    path.chmod(0o400)
    (tmp_path / "other").touch()
    write_atomically(path, "ñew")
    assert (path.read_text(encoding="utf-8"), path.stat().st_mode) == ("ñew", (tmp_path / "other").stat().st_mode)
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


def full(*_: Any) -> None:
    raise OSError(28, "No space left on device")


@rows("step", ["os.fsync", "pathlib.Path.replace", "no step: half of a character"])
def test_keeps_the_old_content_when_writing_fails(tmp_path: Path, step: str) -> None:
    path = tmp_path / "file.json"
    write_atomically(path, "old")
    with pytest.MonkeyPatch.context() as patch:
        if ":" not in step:
            patch.setattr(step, full)
        with pytest.raises(UnicodeEncodeError if ":" in step else OSError):
            write_atomically(path, "\ud800" if ":" in step else "new")
    assert ([p.name for p in tmp_path.iterdir()], path.read_text()) == (["file.json"], "old")
