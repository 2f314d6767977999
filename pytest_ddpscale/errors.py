"""The errors shown to users: one base class, one subclass per thing the reader has to do.

Each says where, what was found, what was expected and what to do, so the message alone is enough to act on and no
traceback is needed.
"""

from __future__ import annotations

from pytest_ddpscale.util.printable import several_lines


class DdpscaleError(Exception):
    """Base of all errors this package raises on purpose.

    Args:
        where: the file and line, option, host or study concerned.
        found: what is there.
        expected: what would have been right (may be empty).
        action: what the reader should do next (may be empty).
    """

    def __init__(self, where: str, found: str, expected: str = "", action: str = "") -> None:
        super().__init__(where, found, expected, action)
        self.where = where
        self.found = found
        self.expected = expected
        self.action = action

    def __str__(self) -> str:
        text = f"{self.where}: {self.found}"
        if self.expected:
            text += f"; expected {self.expected}"
        text += "" if text.endswith("?") else "."
        # A further line is indented, so that no name of others begins one.
        return several_lines(f"{text} {self.action}" if self.action else text).replace("\n", "\n  ")


class BadInput(DdpscaleError):
    """A mistake in the user's input. The pytest plugin turns it into exit code 4."""


class ThresholdsError(BadInput):
    """Edit the thresholds file.

    Attributes:
        others: further errors of the file.
    """

    others: tuple[ThresholdsError, ...] = ()


class SkuError(BadInput):
    """Choose another SKU, or another machine."""


class OptionError(BadInput):
    """Change the command line, the environment or the ini file."""


class RunDirectoryError(BadInput):
    """Choose another run directory, or repair this one."""


class WritingError(RunDirectoryError):
    """Free space for the run directory or repair its file system; files already in it are kept."""


class ResultFileError(BadInput):
    """Repair or omit the result file that is being imported."""


class HistoryError(BadInput):
    """Repair the history file, or name another one; run directories are not affected."""


class GangError(DdpscaleError):
    """Look at the machine: the worker processes could not be started, or died."""
