"""pytest in processes of their own that need not import everything anew: forks of one that has imported what is large.

That process holds libraries and what the package imports when a session begins or ends. The plugin, which pytest loads
first, pytest's other plugins and the site's own tests are imported in each fork, as in a new interpreter. What a test
wants to know about imports is no business of forks.
"""

from __future__ import annotations

import gc
import inspect
import json
import os
import runpy
import shlex
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

# Set where a test looks at figures: drawing them takes half of a session, and tests/report/test_figures.py does it.
DRAWS = "TESTS_DRAW_PLOTS"
MODULES = (
    "pytest", "pdb", "numpy", "matplotlib.figure", "matplotlib.style", "matplotlib.backends.backend_agg", "execnet",
    "xml.etree.ElementTree", "pytest_ddpscale.session.open", "pytest_ddpscale.session.session",
    "pytest_ddpscale.report.page",
    "matplotlib.backends.backend_svg", "pytest_ddpscale.report.figures",
    "pytest_ddpscale.report.listings", "pytest_ddpscale.report.junit", "pytest_ddpscale.report.explain",
    "pytest_ddpscale.report.files", "pytest_ddpscale.report.terminal", "pytest_ddpscale.report.while_measuring",
)  # fmt: skip
# No site has it; it imports all of hypothesis at the end of a session.
NOT_OF_A_SITE = ("-p", "no:hypothesispytest")
POLL_S = 0.005


@dataclass(frozen=True)
class Start:
    """A start of pytest.

    Attributes:
        arguments: of its command line.
        directory: where.
        environment: all of it.
        stdout: file for its standard output.
        stderr: file for its standard error.
        byte_code: folder in which forks share the byte code of what they import.
        timeout_s: after which it is killed.
    """

    arguments: tuple[str, ...]
    directory: str
    environment: dict[str, str]
    stdout: str
    stderr: str
    byte_code: str
    timeout_s: float


class PreparedPytest:
    """Starts pytest in forks.

    Args:
        byte_code: folder in which forks share the byte code of what they import.
        matplotlib_cache: folder for matplotlib's list of fonts.
    """

    def __init__(self, byte_code: Path, matplotlib_cache: Path) -> None:
        self._byte_code = byte_code
        # One thread, because only the thread that forks lives on in the fork.
        environment = os.environ | {"MPLCONFIGDIR": str(matplotlib_cache), "OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__))], env=environment, cwd=byte_code,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, folder: Path, arguments: Sequence[str], timeout_s: float) -> pytest.RunResult:
        """``python -m pytest ARGUMENTS`` in the current directory.

        Args:
            folder: for the files ``stdout`` and ``stderr``, and temporary ones.
            arguments: of the command line.
            timeout_s: after which it is killed.
        """
        stdout, stderr = folder / "stdout", folder / "stderr"
        basetemp = tempfile.mkdtemp(prefix="runpytest-", dir=folder)
        start = Start(
            arguments=(f"--basetemp={basetemp}", *NOT_OF_A_SITE, *arguments),
            directory=str(Path.cwd()),
            environment=dict(os.environ),
            stdout=str(stdout),
            stderr=str(stderr),
            byte_code=str(self._byte_code),
            timeout_s=timeout_s,
        )
        began = time.monotonic()
        code = self._exit_code_of(start)
        out, err = (path.read_text(encoding="utf-8").splitlines() for path in (stdout, stderr))
        print(f"pytest {shlex.join(arguments)}: exit code {code}", *out, *err, sep="\n")
        return pytest.RunResult(code, out, err, time.monotonic() - began)

    def close(self) -> None:
        """End the process that forks."""
        self._process.communicate(timeout=60)

    def _exit_code_of(self, start: Start) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asdict(start)) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


def main() -> None:
    """Fork for each line of standard input, until it ends; answer each with the exit code."""
    del sys.path[0]  # this folder
    for name in MODULES:
        import_module(name)
    inspect.getmodule(main.__code__, "no file")  # where all modules come from, which a traceback asks for
    gc.freeze()  # pytest looks for garbage at its end; forks need not look here
    for line in sys.stdin:
        start = Start(**json.loads(line))
        child = os.fork()
        if child == 0:
            _exit_as_pytest(start)
        print(_exit_code(child, start.timeout_s), flush=True)


def _exit_as_pytest(start: Start) -> None:
    """``python -m pytest ARGUMENTS`` in place of this process."""
    code = 1
    try:
        _become(start)
        runpy.run_module("pytest", run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        code = int(ended.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _become(start: Start) -> None:
    """Take on what a new interpreter would have been given."""
    for path, descriptor in ((os.devnull, 0), (start.stdout, 1), (start.stderr, 2)):
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(file, descriptor)
        os.close(file)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - for as long as the process lives
    os.chdir(start.directory)
    os.environ.clear()
    os.environ.update(start.environment)
    sys.path.insert(0, start.directory)
    sys.argv = ["pytest", *start.arguments]
    sys.pycache_prefix, sys.dont_write_bytecode = start.byte_code, False
    if DRAWS not in start.environment:
        vars(import_module("matplotlib.figure"))["Figure"].savefig = _draw_all_the_same
        vars(import_module("pytest_ddpscale.report.charts"))["_drawn"] = _not_drawn


def _not_drawn(about: Any, *given: Any) -> Any:
    """A picture of nothing, with its table."""
    from pytest_ddpscale.util.document import Picture

    return Picture(about.key, about.title, about.caption, about.title, b"<svg></svg>", bytes, given[-1], False)


def _draw_all_the_same(*_: object, **__: object) -> None:
    """Where `Figure.savefig` draws."""
    raise AssertionError("a figure is drawn: have tests/plugin/prepared.py replace what draws it")


def _exit_code(child: int, timeout_s: float) -> int:
    deadline = time.monotonic() + timeout_s
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(child, 9)
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        time.sleep(POLL_S)


if __name__ == "__main__":
    main()
