"""A command that a user mistyped, or that argparse may end."""

from __future__ import annotations

import pytest

from pytest_ddpscale.cli import main
from pytest_ddpscale.suites import tune
from pytest_ddpscale.util.command_parser import USER_ERROR


@pytest.fixture(autouse=True)
def known_to_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables of NCCL, which a torch for CPUs does not bring."""
    known = frozenset(("NCCL_ALGO", "NCCL_BUFFSIZE", "NCCL_MIN_NCHANNELS"))
    monkeypatch.setattr(tune, "nccl_variables", lambda: known)


def exit_code(*arguments: str) -> int:
    """Exit code of a command that argparse may end."""
    try:
        return main(arguments)
    except SystemExit as ended:
        return int(ended.code or 0)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line that is said of a mistake."""
    capsys.readouterr()
    assert exit_code(*arguments) == USER_ERROR, arguments
    told = capsys.readouterr()
    (line,) = told.err.splitlines()
    assert told.out == ""
    return line
