"""A suite measured on real ranks, the way each suite's test wants it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_ddpscale.cli import main
from pytest_ddpscale.run.run_directory import RunDirectory
from tests.forks.launcher import forking_here


def promises_any_memory() -> bool:
    """Whether the kernel refuses nobody memory, and ends whoever uses it."""
    said = Path("/proc/sys/vm/overcommit_memory")
    return said.exists() and said.read_text().strip() == "1"


NEEDS_REFUSED_MEMORY = pytest.mark.skipif(
    promises_any_memory(), reason="vm.overcommit_memory is 1: no allocation fails"
)
MeasuredAndTold = Callable[..., tuple[RunDirectory, str]]


def exit_code(*arguments: str) -> int:
    """Exit code of a command that argparse may end."""
    try:
        return main(arguments)
    except SystemExit as ended:
        return int(ended.code or 0)


@pytest.fixture
def measured_and_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> MeasuredAndTold:
    """Runs `ddpscale ARGUMENTS`, then `ddpscale report`, which has to say the same. Returns the run, and what was said.

    Ranks are forks and hardly warm up: how fast they are is nothing that these tests ask.
    """
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, exit_code: int = 0) -> tuple[RunDirectory, str]:
        with forking_here():
            assert main([*arguments, "--ddp-run-dir=measured"]) == exit_code
        told = capsys.readouterr().out
        measured = RunDirectory.open(tmp_path / "measured")
        assert main(["report", str(measured.path)]) == exit_code
        assert capsys.readouterr().out.splitlines()[:-1] == told.splitlines()[:-1]
        return measured, told

    return run
