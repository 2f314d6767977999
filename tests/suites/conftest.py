"""A command that a user mistyped, or that argparse may end."""

from __future__ import annotations

import pytest

from pytest_ddpscale.cli import main
from pytest_ddpscale.util.command_parser import USER_ERROR


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
