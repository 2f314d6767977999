"""Output of every benchmark here: one small table, and strict JSON with ``--json FILE``."""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from statistics import NormalDist
from typing import Any

from pytest_ddpscale import __version__
from pytest_ddpscale.run.strict_json import strict_json
from pytest_ddpscale.util.atomic_writing import write_atomically


@dataclass(frozen=True)
class Share:
    """Share of runs in which something happened."""

    count: int
    runs: int

    @property
    def value(self) -> float:
        """The share, 0 … 1."""
        return self.count / self.runs

    @property
    def interval(self) -> tuple[float, float]:
        """95 % score interval: Wilson (1927), J. Am. Stat. Assoc. 22."""
        z = NormalDist().inv_cdf(0.975)
        weight = 1 + z * z / self.runs
        centre = (self.value + z * z / (2 * self.runs)) / weight
        reach = z / weight * (self.value * (1 - self.value) / self.runs + z * z / (4 * self.runs**2)) ** 0.5
        return max(0.0, centre - reach), min(1.0, centre + reach)

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.value:4.0%} [{low:.0%}, {high:.0%}]"


def argument_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser that shows a script's docstring verbatim, with the option ``--json``."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result to this file")
    return parser


def positive_int(text: str) -> int:
    """A count as an argument. Raises argparse's own error for anything but 1, 2, 3 …"""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not a whole number from 1 up")
    return value


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their content: the first left-aligned, the others right-aligned."""
    lines = [tuple(header), *map(tuple, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(_aligned(line, widths) for line in lines)


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    first = cells[0].ljust(widths[0])
    others = (cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True))
    return "  ".join((first, *others)).rstrip()


def keep(path: Path | None, benchmark: str, result: dict[str, Any]) -> None:
    """Write the result and the machine that it was measured on, if a file is given.

    Raises:
        ValueError: the result holds NaN or an infinity.
        OSError: the file cannot be written.
    """
    if path is None:
        return
    about = {
        "benchmark": benchmark,
        "measured_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "host": platform.node(),
        "usable_cpus": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "pytest_ddpscale": __version__,
    }
    write_atomically(path, strict_json(about | result) + "\n")
