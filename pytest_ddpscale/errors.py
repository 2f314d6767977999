"""The errors a person meets: one base class, one leaf per thing the reader has to do.

Every one of them says where, what was found, what was expected and what to do, in one sentence
each, so that a message is enough to act on and no traceback is needed.
"""

from __future__ import annotations


class DdpscaleError(Exception):
    """Base of everything this package raises on purpose.

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
        return _printable(f"{text} {self.action}" if self.action else text)


def _printable(text: str) -> str:
    """What a user wrote may carry characters that steer a terminal, or that it cannot show."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


class BadInput(DdpscaleError):
    """A mistake in what the user gave us. The pytest plugin turns it into exit code 4."""


class ThresholdsError(BadInput):
    """Edit the thresholds file."""


class SkuError(BadInput):
    """Choose another SKU, or another machine."""


class OptionError(BadInput):
    """Change the command line, the environment or the ini file."""


class RunDirectoryError(BadInput):
    """Choose another run directory, or repair this one."""


class WritingError(RunDirectoryError):
    """Make room for the run directory, or have its file system mended; what is in it stays."""


class ResultFileError(BadInput):
    """Repair or leave out the result file that is being imported."""


class HistoryError(BadInput):
    """Mend the history file, or name another one; no run is harmed by it."""


class GangError(DdpscaleError):
    """Look at the machine: the worker processes could not be started, or died."""
