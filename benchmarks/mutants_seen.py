"""What sees a mutation of `mutants`: runs of the oracle, or tests.

Each has cases, which are tried once on code without a mutation, in which lines of the mutated modules are noted; a
mutation is then tried by the cases that execute it, the cheapest first.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import mmap
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from types import FrameType
from typing import Any

import oracle
import pytest
from oracle_differences import Retired, fact_differences

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 60  # of CPU, for each command
MOST_LINES = 1000  # of a module
READ = ("verdicts.json", "junit.xml")  # of all reports, by the oracle
# Quick to give to forks, slow to import in each.
PRELOADED = ("hypothesis", "matplotlib", "msgspec", "numpy", "torch", "xdist", "yaml")


@dataclass(frozen=True)
class Case:
    """A chain of runs, or a test; its CPU seconds, and the lines that it executes as `Lines` numbers them."""

    name: str
    cpu_s: float
    lines: frozenset[int]


class Lines:
    """Which lines of modules are executed, also in forks of this process."""

    def __init__(self, modules: Sequence[Path]) -> None:
        self._starts = {str(path): at * MOST_LINES for at, path in enumerate(modules)}
        self._lines = mmap.mmap(-1, len(modules) * MOST_LINES)

    def __enter__(self) -> Lines:
        self._lines[:] = bytes(len(self._lines))
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def executed(self) -> list[int]:
        """Numbers of the lines since it was entered: those of a module, `MOST_LINES`, after those of another."""
        return [number for number, is_executed in enumerate(self._lines[:]) if is_executed]

    def _trace(self, frame: FrameType, *_: object) -> Any:
        if (start := self._starts.get(frame.f_code.co_filename)) is None:
            return None

        def note(frame: FrameType, *_: object) -> Any:
            self._lines[start + frame.f_lineno] = 1
            return note

        return note(frame)


class Oracle:
    """Chains of the oracle's runs, made once; what a session decides while it measures is decided anew."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for name, command in oracle.RUNS.items():
            oracle.RUNS[name] = command.removesuffix(" with texts")
        os.environ |= {"TZ": "UTC", "COLUMNS": "100", "OPENBLAS_NUM_THREADS": "1"}
        os.environ |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "--tb=no"}

    def cases(self, modules: Sequence[Path], processes: int) -> list[Case]:
        """All chains."""
        chains = range(len(oracle.CHAINS))
        with ProcessPoolExecutor(processes, get_context("fork")) as pool:
            list(pool.map(partial(in_a_fork, self._expect, modules), chains))
        found = [json.loads((self._folder / f"{chain}.json").read_text()) for chain in chains]
        return [Case(str(chain), cpu_s, frozenset(lines)) for chain, (cpu_s, lines, _) in enumerate(found)]

    def _expect(self, modules: Sequence[Path], chain: int) -> None:
        self._prepare(self._folder / "expected" / str(chain))
        with Lines(modules) as lines:
            facts = dict(self._judged(chain))
        (self._folder / f"{chain}.json").write_text(json.dumps([sum(os.times()[:4]), lines.executed(), facts]))

    def who_sees(self, cases: Sequence[Case]) -> Iterator[str]:
        """The first run whose facts differ. Code that breaks, or needs more than `LIMIT_S` for a run, ends it."""
        with tempfile.TemporaryDirectory(dir=self._folder) as own:
            self._prepare(Path(own) / "runs")
            for case in cases:
                expected = json.loads((self._folder / f"{case.name}.json").read_text())[2]
                for name, facts in self._judged(int(case.name)):
                    if fact_differences({name: expected[name]}, {name: facts}, Retired(Path("none"))):
                        yield name
                        return

    def _prepare(self, folder: Path) -> None:
        """Import the package, and let the oracle work in a folder, make runs once and write only what it reads."""
        make, made = oracle.make, self._folder / "made"

        def make_once(run: str, number: int) -> None:
            is_made = (made / run).exists()
            if is_made and not oracle.RUNS[run].startswith("session"):
                _copy(run, made, Path())
                return
            make(run, number)
            Path(run, "report.md").touch()
            if not is_made:
                _copy(run, Path(), made)

        folder.mkdir(parents=True)
        (folder / "pytest.ini").write_text("[pytest]\n")
        oracle.find_all([], folder, 1)
        files = importlib.import_module("pytest_ddpscale.report.files")
        vars(files)["_attempt"] = lambda what, write: (write() or "") if what in READ else ""
        vars(oracle)["make"] = make_once
        os.chdir(folder)

    @staticmethod
    def _judged(chain: int) -> Iterator[tuple[str, Any]]:
        """Names and facts of the runs of a chain."""
        for number, name in enumerate(oracle.CHAINS[chain]):
            yield name, oracle.found(name, number, f"history-{chain}")[0]


class Tests:
    """Tests of these paths; of each file the first that fails counts."""

    def __init__(self, folder: Path, paths: Sequence[str]) -> None:
        self._folder, self._paths = folder, paths
        for name in PRELOADED:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)

    def cases(self, modules: Sequence[Path], processes: int) -> list[Case]:
        """All tests."""
        in_a_fork(self._expect, Lines(modules))
        found = json.loads((self._folder / "tests.json").read_text())
        return [Case(name, cpu_s, frozenset(lines)) for name, cpu_s, lines in found]

    def _expect(self, lines: Lines) -> None:
        tests: list[tuple[str, float, list[int]]] = []

        class Noted:
            @pytest.hookimpl(wrapper=True)
            def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
                began_s = time.process_time()
                with lines:
                    yield
                tests.append((item.nodeid, time.process_time() - began_s, lines.executed()))

        self._run(self._paths, Noted())
        (self._folder / "tests.json").write_text(json.dumps(tests))

    def who_sees(self, cases: Sequence[Case]) -> Iterator[str]:
        """Files of which a test fails."""
        asked, seen = {case.name for case in cases}, set[str]()
        if not asked:  # without paths pytest would collect others
            return

        class First:
            def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
                items[:] = [item for item in items if item.nodeid in asked]

            @pytest.hookimpl(tryfirst=True)
            def pytest_runtest_setup(self, item: pytest.Item) -> None:
                if item.path.stem in seen:  # its fixtures are torn down, so that no other file fails for them
                    pytest.skip("seen already")

            def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
                if report.failed:
                    seen.add(Path(report.fspath).stem)

            def pytest_collectreport(self, report: pytest.CollectReport) -> None:
                if report.failed:
                    seen.add(Path(report.fspath).stem)

        self._run(sorted({name.partition("::")[0] for name in asked}), First())
        yield from sorted(seen)

    @staticmethod
    def _run(paths: Collection[str], plugin: object) -> None:
        os.chdir(ROOT)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        options = ("-q", "--tb=no", "-p", "no:cacheprovider", "-p", "no:randomly")
        pytest.main([*options, *paths], plugins=[plugin])


def in_a_fork(work: Callable[..., None], *given: Any) -> int | None:
    """Exit code of this work."""
    fork = get_context("fork").Process(target=work, args=given)
    fork.start()
    fork.join()
    return fork.exitcode


def _copy(run: str, source: Path, target: Path) -> None:
    """Copy a run directory and the files beside it."""
    shutil.copytree(source / run, target / run)
    for file in source.glob(f"{run}.*"):
        shutil.copy2(file, target)
