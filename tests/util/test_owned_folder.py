"""What a killed process leaves is removed by the next one; what a living one owns, or a user, never is."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from pytest_ddpscale.util.owned_folder import owned_folder, remove_orphans

OWNER = """
import sys
from pathlib import Path
from pytest_ddpscale.util.owned_folder import owned_folder
with owned_folder("ranks", Path(sys.argv[1])) as folder:
    (folder / "records").write_text("content")
    print(folder, flush=True)
    sys.stdin.read()
"""
LOCK = ".ddpscale-owner"


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_folder_goes_with_its_process_however_that_ends(tmp_path: Path, is_killed: bool) -> None:
    command = [sys.executable, "-c", OWNER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        assert remove_orphans([tmp_path]) == [], "it lives"
        if is_killed:
            process.kill()
        process.communicate()
    assert (folder / "records").exists() == is_killed
    assert remove_orphans([tmp_path]) == [folder] * is_killed
    assert not folder.exists()


def test_folders_without_an_owner_of_ours_stay(tmp_path: Path) -> None:
    """As a user's, or those of a version that locked none; where the folder is a link, or the lock a pipe."""
    for name in (
        "ddpscale-runs/run.json",
        "ddpscale-logs-x/run.json",
        f"other/{LOCK}",
        f"precious/{LOCK}",
        "ddpscale-1",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "ddpscale-ranks-1").symlink_to("precious")
    (tmp_path / "ddpscale-ranks-2").mkdir()
    os.mkfifo(tmp_path / "ddpscale-ranks-2" / LOCK)
    assert remove_orphans([tmp_path, tmp_path / "none"]) == []
    assert len([*tmp_path.rglob("*")]) == 12
    (tmp_path / "ddpscale-ranks-3").mkdir()
    (tmp_path / "ddpscale-ranks-3" / LOCK).touch()
    assert remove_orphans([tmp_path]) == [tmp_path / "ddpscale-ranks-3"]


def test_a_folder_that_is_taken_for_an_orphan_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = fcntl.flock
    refused: list[int] = []

    def busy_once(file: IO[bytes], operation: int) -> None:
        if not refused:
            refused.append(file.fileno())
            raise BlockingIOError
        lock(file, operation)

    monkeypatch.setattr(fcntl, "flock", busy_once)
    with owned_folder("ranks", tmp_path) as folder:
        assert refused
        assert (folder / LOCK).exists()
