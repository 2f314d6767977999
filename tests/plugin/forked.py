"""pytest in processes of their own, which need not import everything anew: forks of `tests.forks`.

Only the site's own tests are imported in each. What a test wants to know about imports is no business of forks.
"""

from __future__ import annotations

import os
import shlex
import socket
from pathlib import Path
from tempfile import TemporaryFile, mkdtemp

import pytest

from tests.forks.client import run
from tests.forks.start import address

TIMEOUT_S = 120
# No site has hypothesis, which imports all of itself at the end of a session.
QUICK = ("-p", "no:hypothesispytest", "-p", "tests.plugin.quick")


def run_pytest(folder: Path, *arguments: str) -> pytest.RunResult:
    """``python -m pytest ARGUMENTS`` in the current directory; a folder for its temporary files.

    What it leaves running is not waited for, and not seen.
    """
    given = [f"--basetemp={mkdtemp(prefix='runpytest-', dir=folder)}", *QUICK, *arguments]
    with (
        TemporaryFile() as out,
        TemporaryFile() as err,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection,
    ):
        connection.settimeout(TIMEOUT_S)
        streams = [0, out.fileno(), err.fileno()]  # 0 is nothing while pytest captures
        code = run(connection, address("", "light"), ["pytest", *given], streams)
        said, broke = (os.pread(one.fileno(), one.seek(0, os.SEEK_END), 0).decode() for one in (out, err))
    print(f"pytest {shlex.join(arguments)}: exit code {code}", said, broke, sep="\n")
    return pytest.RunResult(code, said.splitlines(), broke.splitlines(), 0.0)
