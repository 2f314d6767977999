"""Time that an installed pytest-ddpscale adds to the start of pytest: when unused, and when it only plans.

    python benchmarks/plugin_load.py --json plugin_load.json

Starts `pytest --collect-only` in an empty directory alternately with the plugin and with `-p no:ddpscale`, twice the
given number of times: half of them under `-X importtime`, for the self times of the modules that only the plugin loads,
and half without, for the CPU time, which includes the plugin's hooks. Then `pytest --gpu-sku=b200 --collect-only`,
which plans the packaged acceptance tests, alternates with `pytest --collect-only`. Bytecode is kept between starts, as
on a user's machine. CPU times are user and system together, because on a busy machine the wall time of a start varies
far more than the effect. Even so the fastest starts of each kind are the most informative.
"""

from __future__ import annotations

import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from reporting import argument_parser, keep, positive_int, table

PLUGIN = "ddpscale"
EXPECTED_MS = 10.0
EXPECTED_PLANNING_MS = 1000.0
NO_TESTS_COLLECTED = 5
PLANNING = "--gpu-sku=b200"
MOST_SHOWN = 10
# pytest loads plugins by importlib.import_module, which `-X importtime` does not see; __import__ it does.
_PYTEST = """\
import importlib, sys
original = importlib.import_module
def import_module(name, package=None):
    return original(name, package) if name.startswith(".") else (__import__(name), sys.modules[name])[1]
importlib.import_module = import_module
import pytest
sys.exit(pytest.main(sys.argv[1:]))
"""
_IMPORT = re.compile(r"^import time:\s+(\d+) \|\s+\d+ \|\s+(\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class Start:
    """One start of pytest.

    Attributes:
        cpu_ms: user and system time, from start to exit.
        self_us: of every module it imported, by name; empty without `-X importtime`.
    """

    cpu_ms: float
    self_us: Mapping[str, int]


def self_times_us(importtime: str) -> dict[str, int]:
    """Self time of every module, in microseconds, from what `-X importtime` wrote."""
    return {name: int(self_us) for self_us, name in _IMPORT.findall(importtime)}


def added_by_module_ms(with_plugin: Sequence[Start], without: Sequence[Start]) -> dict[str, float]:
    """Median self time, in milliseconds, of every module that was never loaded without the plugin; largest first."""
    known = {name for start in without for name in start.self_us}
    added = {name for start in with_plugin for name in start.self_us} - known
    medians = {name: statistics.median(s.self_us.get(name, 0) for s in with_plugin) / 1000 for name in added}
    return dict(sorted(medians.items(), key=lambda item: -item[1]))


def added_import_ms(with_plugin: Sequence[Start], without: Sequence[Start]) -> float:
    """Median, over the starts, of the summed self times of the modules that only the plugin loads."""
    added = added_by_module_ms(with_plugin, without)
    return statistics.median(sum(s.self_us.get(name, 0) for name in added) / 1000 for s in with_plugin)


def added_cpu_ms(with_plugin: Sequence[Start], without: Sequence[Start]) -> float:
    """Median difference of starts that followed each other."""
    return statistics.median(w.cpu_ms - wo.cpu_ms for w, wo in zip(with_plugin, without, strict=True))


def added_to_fastest_ms(with_plugin: Sequence[Start], without: Sequence[Start]) -> float:
    """Difference of the fastest starts."""
    return min(start.cpu_ms for start in with_plugin) - min(start.cpu_ms for start in without)


def start_pytest(folder: Path, *options: str, importtime: bool = False) -> Start:
    """Have pytest collect once, in an empty directory.

    Args:
        folder: of this benchmark, for the bytecode and the empty directory.
        options: further options of pytest.
        importtime: whether to time the imports, which slows the start down.

    Raises:
        SystemExit: pytest did not collect the requested tests.
    """
    empty = folder / "empty"
    empty.mkdir(exist_ok=True)
    python = [sys.executable, "-X", "importtime", "-c", _PYTEST] if importtime else [sys.executable, "-m", "pytest"]
    environment = user_environment(os.environ, folder / "bytecode")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [*python, "--collect-only", "-q", "-p", "no:cacheprovider", *options],
        cwd=empty, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_ms = (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1000
    expected = 0 if PLANNING in options else NO_TESTS_COLLECTED
    if done.returncode != expected:
        raise SystemExit(f"pytest exited with {done.returncode}; expected {expected}:\n{done.stdout}")
    return Start(cpu_ms, self_times_us(done.stderr))


def user_environment(environ: Mapping[str, str], bytecode: Path) -> dict[str, str]:
    """The environment without variables that would change the start, with bytecode kept in a separate folder."""
    kept = {name: value for name, value in environ.items() if not name.startswith(("PYTEST_", "DDPSCALE_"))}
    kept.pop("PYTHONDONTWRITEBYTECODE", None)
    return kept | {"PYTHONPYCACHEPREFIX": str(bytecode)}


def start_in_turn(
    folder: Path, repeats: int, first: Sequence[str], second: Sequence[str], *, importtime: bool = False
) -> tuple[list[Start], list[Start]]:
    """Alternating starts with the options of either kind; each kind goes first equally often."""
    starts: tuple[list[Start], list[Start]] = ([], [])
    for number in range(repeats):
        for kind in (0, 1) if number % 2 else (1, 0):
            starts[kind].append(start_pytest(folder, *(first, second)[kind], importtime=importtime))
    return starts


def measure(repeats: int) -> dict[str, Any]:
    """Start pytest often enough. Returns the result."""
    plugin, without = (), ("-p", f"no:{PLUGIN}")
    with tempfile.TemporaryDirectory(prefix="plugin-load-") as name:
        folder = Path(name)
        start_in_turn(folder, 1, (PLANNING,), without, importtime=True)  # makes the bytecode
        timed = start_in_turn(folder, repeats, plugin, without, importtime=True)
        plain = start_in_turn(folder, repeats, plugin, without)
        planning = start_in_turn(folder, repeats, (PLANNING,), without)
    return {
        "repeats": repeats,
        "added_import_ms": added_import_ms(*timed),
        "added_cpu_ms": added_cpu_ms(*plain),
        "added_to_fastest_ms": added_to_fastest_ms(*plain),
        "cpu_without_ms": statistics.median(start.cpu_ms for start in plain[1]),
        "expected_ms": EXPECTED_MS,
        "modules_ms": added_by_module_ms(*timed),
        "planning_added_cpu_ms": added_cpu_ms(*planning),
        "planning_added_to_fastest_ms": added_to_fastest_ms(*planning),
        "expected_planning_ms": EXPECTED_PLANNING_MS,
    }


def show(result: dict[str, Any]) -> None:
    """Print the tables."""
    modules: dict[str, float] = result["modules_ms"]
    rows = [(name, f"{ms:.2f}") for name, ms in list(modules.items())[:MOST_SHOWN]]
    rest = len(modules) - len(rows)
    print(table(("module loaded only by the plugin", "self ms"), rows))
    if rest > 0:
        print(f"… and {rest} more")
    print()
    rows = [
        ("imports (sum of self times)", f"{result['added_import_ms']:.2f}"),
        ("CPU time, median of differences", f"{result['added_cpu_ms']:.1f}"),
        ("CPU time, difference of the fastest", f"{result['added_to_fastest_ms']:.1f}"),
        (f"{PLANNING}: CPU time, median of differences", f"{result['planning_added_cpu_ms']:.0f}"),
        (f"{PLANNING}: CPU time, difference of the fastest", f"{result['planning_added_to_fastest_ms']:.0f}"),
    ]
    print(table((f"added to `pytest --collect-only` ({result['cpu_without_ms']:.0f} ms)", "ms"), rows))
    print(f"expected: at most {EXPECTED_MS:g} ms, and {EXPECTED_PLANNING_MS:g} ms with {PLANNING}")


def main() -> int:
    """Run the script. Returns its exit code."""
    parser = argument_parser(__doc__)
    parser.add_argument("--repeats", type=positive_int, default=15, help="starts of each kind (%(default)s)")
    arguments = parser.parse_args()
    if not entry_points(group="pytest11", name=PLUGIN):
        raise SystemExit(f"pytest would not load {PLUGIN} by itself here: install pytest-ddpscale into {sys.prefix}")
    result = measure(arguments.repeats)
    show(result)
    keep(arguments.json, "plugin_load", result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
