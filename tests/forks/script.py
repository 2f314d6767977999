"""``python -m tests.forks.script -u FILE ARGUMENT...``: ``python -u FILE ARGUMENT...``, from a fork.

Or ``-u -c CODE``, or ``-u -m MODULE``.

With `python_exec` as PYTHON_EXEC, torchrun starts its ranks so, and pytest-xdist with CODE its workers.
"""

from __future__ import annotations

import atexit
import runpy
import shlex
import sys
from pathlib import Path

from tests.forks.start import address, command_at


def python_exec(folder: Path, server: str = "") -> str:
    """A program, made in a folder, that takes the arguments of an interpreter as torchrun writes them."""
    program, forked = folder / "python", command_at(server or address(), "tests.forks.script")
    program.write_text(f'#!/bin/sh\nexec {shlex.join(forked)} "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    return str(program)


def main() -> None:
    """As the module says."""
    _, unbuffered, file, *arguments = sys.argv
    assert unbuffered == "-u"
    sys.argv = [file, *arguments]
    if file == "-c":
        exec(sys.argv.pop(1), {"__name__": "__main__"})
        atexit._run_exitfuncs()  # forks end without
        return
    if file == "-m":
        del sys.argv[0]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        return
    sys.path.insert(0, str(Path(file).parent))
    runpy.run_path(file, run_name="__main__")


if __name__ == "__main__":
    main()
