"""pytest in processes of their own, which need not import everything anew: forks of `tests.forks`.

The plugin, which pytest loads first, pytest's other plugins and the site's own tests are imported in each of them, as
in a new interpreter. What a test wants to know about imports is no business of forks.
"""

from __future__ import annotations

import shlex
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.forks.start import address, command_at

TIMEOUT_S = 120
# No site has hypothesis, which imports all of itself at the end of a session.
QUICK = ("-p", "no:hypothesispytest", "-p", "tests.plugin.quick")


def run_pytest(folder: Path, *arguments: str) -> pytest.RunResult:
    """``python -m pytest ARGUMENTS`` in the current directory; a folder for its temporary files."""
    given = (f"--basetemp={tempfile.mkdtemp(prefix='runpytest-', dir=folder)}", *QUICK, *arguments)
    process = command_at(address("", "light"), "pytest", *given)
    done = subprocess.run(
        process, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    print(f"pytest {shlex.join(arguments)}: exit code {done.returncode}", done.stdout, done.stderr, sep="\n")
    return pytest.RunResult(done.returncode, done.stdout.splitlines(), done.stderr.splitlines(), 0.0)
