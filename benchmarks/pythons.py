"""Try the package under every other Python here, without torch, a minute each: docs/dependencies.md.

    python benchmarks/pythons.py
    python benchmarks/pythons.py 3.10 3.14

Looks for python3.10 … python3.14 on PATH and among pyenv's versions. For each but the Python that runs this, uv makes
an environment with what pyproject.toml asks for, without torch and torchvision. There every module that trains
nothing is imported, all are compiled, and benchmarks/oracle.py judges a stored run and compares verdicts, culprits and
rows of the history. Exit code 1 if anything fails. Versions that are not found are named; that is no failure, nor is a
package index that uv cannot reach (it reads UV_DEFAULT_INDEX, and not pip's settings).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from reporting import argument_parser, keep, row, table

ROOT = Path(__file__).resolve().parents[1]
LOWEST, MINORS = "lowest", [f"3.{minor}" for minor in range(10, 15)]
OWN = f"3.{sys.version_info.minor}"
STORED_RUN = "recorded-a100-slow-gpu"
LIMIT_S = 600
_UNREACHED = "Failed to fetch"  # words of uv, for an index that does not answer
OF_THIS_PYTHON = ("PYTEST_", "PYTHON", "VIRTUAL_ENV")  # environment variables
# uv: a requirement that holds nowhere takes the place of the package's own.
WITHOUT_TORCH = "torch; python_version < '3'\ntorchvision; python_version < '3'\n"
IMPORT_AND_COMPILE = """
import importlib, pkgutil, sys
from pathlib import Path
import pytest_ddpscale as package
training = tuple(f"{package.__name__}.{name}." for name in ("worker", "datasets.image_samples"))
for module in pkgutil.walk_packages(package.__path__, package.__name__ + ".", onerror=lambda name: None):
    if not f"{module.name}.".startswith(training):
        importlib.import_module(module.name)
for file in Path(package.__path__[0]).rglob("*.py"):
    compile(file.read_bytes(), str(file), "exec")
assert "torch" not in sys.modules
"""
# Takes the Python of an environment, and a folder; the first step takes one from outside. Gives what is told of it.
Step = Callable[[Path, Path], str]


class StepFailed(Exception):
    """A command failed; the message is its output."""

    @property
    def is_offline(self) -> bool:
        """Whether uv could not reach the package index."""
        return _UNREACHED in str(self)


def interpreter(version: str) -> Path | None:
    """A Python of that version, such as ``3.10``, that starts: from PATH, else pyenv's newest; None if none does."""
    ours = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv", "versions")
    patches = [name.removeprefix(f"{version}.") for name in (path.name for path in ours.glob(f"{version}.*"))]
    newest_first = sorted((int(patch) for patch in patches if patch.isdigit()), reverse=True)
    found = [Path(folder, f"python{version}") for folder in os.get_exec_path()]
    found += [ours / f"{version}.{patch}" / "bin" / "python3" for patch in newest_first]
    return next((path for path in found if path.exists() and version_of(path).startswith(f"{version}.")), None)


def version_of(python: Path) -> str:
    """``3.10.13``; empty if it does not start, like a shim of pyenv for a version that is not selected."""
    asked = [str(python), "-c", "import platform; print(platform.python_version())"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, timeout=60, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def run(*command: str | Path, folder: Path, expected: int = 0) -> str:
    """Run a command in a folder, outside this environment. Returns its output.

    Raises:
        StepFailed: its exit code is another, or it takes too long.
    """
    environ = {name: value for name, value in os.environ.items() if not name.startswith(OF_THIS_PYTHON)}
    try:
        done = subprocess.run(
            list(map(str, command)), cwd=folder, env=environ | {"PYTHONPYCACHEPREFIX": str(folder / "byte-code")},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise StepFailed(str(error)) from None
    if done.returncode != expected:
        raise StepFailed(f"{done.stdout.rstrip()}\nexit code {done.returncode}, expected {expected}")
    return done.stdout


def install(python: Path, folder: Path, *arguments: str | Path) -> Path:
    """Make an environment in a folder, with that Python and these arguments of `uv pip install`. Returns its Python."""
    uv, made = [sys.executable, "-m", "uv", "--quiet"], folder / "environment"
    run(*uv, "venv", "--python", python, made, folder=folder)
    run(*uv, "pip", "install", "--python", made / "bin" / "python", *arguments, folder=folder)
    return made / "bin" / "python"


def install_without_torch(python: Path, folder: Path) -> str:
    """With what pyproject.toml asks for."""
    (folder / "overrides.txt").write_text(WITHOUT_TORCH, encoding="utf-8")
    install(python, folder, "--override", "overrides.txt", "--editable", ROOT)
    return version_of(python)


def import_and_compile(python: Path, folder: Path) -> str:
    """Import all modules but those that train, and compile those, too."""
    run(python, "-c", IMPORT_AND_COMPILE, folder=folder)
    return "yes"


def judge_stored_run(python: Path, folder: Path) -> str:
    """Judge the stored run of a slow GPU: verdicts, culprits and rows of the history are those of all versions."""
    run(python, ROOT / "benchmarks" / "oracle.py", "--check", "--facts-only", "--only", STORED_RUN, folder=folder)
    return "yes"


def python_of(asked: str) -> Path | None:
    """The Python of a version, or the oldest here."""
    return next(filter(None, map(interpreter, MINORS if asked == LOWEST else [asked])), None)


def try_steps(python: Path | None, steps: Mapping[str, Step], folder: Path) -> dict[str, str]:
    """What each step gives in an environment in that folder, or the output of one that fails."""
    ended, own = dict[str, str](), folder / "environment" / "bin" / "python"
    if python is None:
        return ended
    for name, step in steps.items():
        try:
            ended[name] = step(own if ended else python, folder)
        except StepFailed as error:
            ended[name] = f"not tried, without a package index\n{error}" if error.is_offline else f"FAILED\n{error}"
            if len(ended) == 1:
                break
    return ended


def tell(asked: Sequence[str], steps: Mapping[str, Step], file: Path | None, kept: Path | None = None) -> list[str]:
    """Try and print a row for each asked version. Returns what failed, and what could not be tried as ``name: ``.

    Args:
        asked: versions of Python, or `LOWEST`.
        steps: of each, which take the name of a folder that ends with the asked version.
        file: of the result.
        kept: where environments stay; None deletes them.
    """
    found, wrong = dict[str, dict[str, str]](), list[str]()
    print(table(("asked", *steps, "s"), ()))
    for name in asked:
        began_s = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="ddpscale-python-") as temporary:
            folder = (kept.resolve() if kept else Path(temporary)) / name
            folder.mkdir(parents=True)
            ended = found[name] = try_steps(python_of(name), steps, folder)
        cells = [ended.get(step, "–").partition("\n")[0] for step in steps]
        print(row(name, *cells, f"{time.monotonic() - began_s:.0f}"), flush=True)
        wrong += [f"{name}: {step}: {said}" for step, said in ended.items() if "\n" in said]
        wrong += [f"{name}: no such Python on PATH or among pyenv's versions"] * (not ended)
    print(*wrong, sep="\n")
    keep(file, "pythons", {"tried": found})
    return wrong


def main(arguments: Sequence[str] | None = None) -> int:
    """Try and print. Returns the exit code."""
    parser = argument_parser(__doc__)
    parser.add_argument("versions", nargs="*", metavar="VERSION", help="such as 3.10; default: all but this Python's")
    given = parser.parse_args(arguments)
    steps = {"Python": install_without_torch, "imports": import_and_compile, "same verdicts": judge_stored_run}
    wrong = tell(given.versions or [one for one in MINORS if one != OWN], steps, given.json)
    return int(any(": FAILED\n" in one for one in wrong))


if __name__ == "__main__":
    sys.exit(main())
