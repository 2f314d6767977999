"""What the scripts here share: command line, shares, tallies, tables in Markdown, strict JSON."""

from __future__ import annotations

import argparse
import math
import os
import platform
import random
import signal
import sys
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timezone
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple


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
        return f"{100 * self.value:.3g} [{100 * low:.1f}, {100 * high:.1f}]"


def argument_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser that shows a script's docstring verbatim."""
    return argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)


def positive_int(text: str) -> int:
    """A count as an argument. Raises argparse's own error for anything but 1, 2, 3 …"""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not a whole number from 1 up")
    return value


def arguments(description: str | None, **options: tuple[Any, str]) -> argparse.Namespace:
    """Those of the command line.

    Args:
        description: the script's docstring.
        options: by name the usual value, the type of one that has none, or choices of which the first is usual; and
            what it is. A usual value that is a count has to be one.
    """
    parser = argument_parser(description)
    for name, (usual, about) in options.items():
        kind = usual if isinstance(usual, type) else type(usual)
        how: dict[str, Any] = {"type": kind, "default": None if usual is kind else usual}
        if kind is tuple:
            how = {"choices": usual, "default": usual[0]}
        elif kind is int and usual:
            how["type"] = positive_int
        parser.add_argument(f"--{name.replace('_', '-')}", help=f"{about} (%(default)s)", **how)
    return parser.parse_args()


READERS: dict[str, Callable[[str], Any]] = {
    "str": str, "int": int, "float": float, "bool": bool, "Path": Path,
    "tuple[str, ...]": lambda text: tuple(text.split(",")),
    "tuple[int, ...]": lambda text: tuple(map(int, text.split(","))),
}  # fmt: skip


def typed(kind: type, words: Iterable[str]) -> dict[str, Any]:
    """Values of fields of a data class from words such as ``gpus=8``, the last of each. Raises ValueError."""
    types = {one.name: str(one.type) for one in fields(kind)}
    given = dict(word.split("=", 1) for word in words)
    if unknown := given.keys() - types:
        raise ValueError(f"found {', '.join(unknown)}; expected fields of {kind.__name__}")
    return {key: READERS[types[key]](value) for key, value in given.items()}


def row(*cells: object) -> str:
    """A row in Markdown."""
    return f"| {' | '.join(map(str, cells))} |"


def table(header: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """A table in Markdown."""
    return "\n".join(row(*cells) for cells in (header, ["---"] * len(header), *rows))


class Tally:
    """How cases of several families came out: one of several outcomes, of which the first two are right."""

    def __init__(self, *outcomes: str) -> None:
        self.outcomes, self.wrong = outcomes, list[str]()
        self.counts: dict[str, Counter[str]] = defaultdict(Counter)

    def note(self, family: str, outcome: str, about: str) -> None:
        """Count a case."""
        self.counts[family][outcome] += 1
        if outcome not in self.outcomes[:2]:
            self.wrong.append(f"{outcome}: {family}, {about}")

    def tell(self) -> str:
        """The table, and below it what came out wrong."""
        of = self.counts | {"all": sum(self.counts.values(), Counter[str]())}
        rows = [(name, found.total(), *(found[one] for one in self.outcomes)) for name, found in of.items()]
        return "\n".join([table(("family", "tried", *self.outcomes), rows), *self.wrong])


def orders(ways: tuple[str, str], rounds: int, seed: object) -> list[tuple[str, str]]:
    """For each round of two adjacent blocks, which way goes first: at random, yet each once in every two rounds."""
    chance, found = random.Random(str(seed)), list[tuple[str, str]]()
    while len(found) < rounds:
        first = chance.choice((ways, ways[::-1]))
        found += [first, first[::-1]]
    return found[:rounds]


def keep(path: Path | None, benchmark: str, result: dict[str, Any]) -> None:
    """Write the result and the machine that it was measured on, if a file is given.

    Raises:
        ValueError: the result holds NaN or an infinity.
        OSError: the file cannot be written.
    """
    if path is None:
        return
    from pytest_ddpscale import __version__
    from pytest_ddpscale.run.strict_json import strict_json
    from pytest_ddpscale.util.atomic_writing import write_atomically

    about = {
        "benchmark": benchmark,
        "measured_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "host": platform.node(),
        "usable_cpus": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "pytest_ddpscale": __version__,
    }
    write_atomically(path, strict_json(about | result) + "\n")


class Ended(NamedTuple):
    """How work in a process of its own ended: exit code, None if it had to be killed; what it took; what it printed."""

    code: int | None
    cpu_s: float
    mib: float
    said: str


def in_a_fork(work: Callable[[], Any], said: Path, limit_s: float = math.inf) -> Ended:
    """Work in a fork, which writes to a file and reads nothing; with CPU and memory of its children."""
    if (child := os.fork()) == 0:
        _become(work, said)
    deadline_s, ended = time.monotonic() + limit_s, 0
    while not ended:
        time.sleep(0.005)
        if is_late := time.monotonic() > deadline_s:
            os.kill(child, signal.SIGKILL)
        ended, status, used = os.wait4(child, 0 if is_late else os.WNOHANG)
    code = None if is_late else os.waitstatus_to_exitcode(status)
    text = said.read_text(encoding="utf-8", errors="backslashreplace")
    return Ended(code, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, text)


def run(
    command: Sequence[str | Path], folder: Path, said: Path, environment: Mapping[str, str], limit_s: float = math.inf
) -> Ended:
    """A command in a folder."""

    def become() -> None:
        os.chdir(folder)
        os.execvpe(command[0], [*map(str, command)], environment)

    return in_a_fork(become, said, limit_s)


def _become(work: Callable[[], Any], said: Path) -> None:
    code = 1
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        file = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
        for number in (1, 2):
            os.dup2(file, number)
        sys.stdout, sys.stderr = (open(number, "w", encoding="utf-8", closefd=False) for number in (1, 2))  # noqa: SIM115
        code = int(work() or 0)
    except SystemExit as ended:
        code = int(ended.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
