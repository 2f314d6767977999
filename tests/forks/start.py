"""The fork server of this test process, started when it is first wanted, and the commands that it runs."""

from __future__ import annotations

import atexit
import functools
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from pytest_ddpscale.util.orphans import die_with_parent

# The address of a server, for sessions whose gangs are to be forked.
VARIABLE = "TESTS_FORKS"
# That of the one server of all workers of pytest-xdist, which are forks of it themselves: see tests/side_by_side.py.
SHARED = "TESTS_FORK_SERVER"
# That of a bare server, of which others are forks as well: they import what is in their own checkout.
BARE = "TESTS_BARE_SERVER"
ROOT = Path(__file__).parents[2]
SITE = Path(__file__).with_name("site")  # on PYTHONPATH it registers the launcher
LOADER_SITE = Path(__file__).with_name("loader_site")  # on PYTHONPATH it has loader workers forked as well
# What is of the machine and not of the test that happens to be the first.
_GIVEN = ("PATH", "HOME", "LD_LIBRARY_PATH", "TMPDIR", "LANG", "LC_ALL")
_CLIENT = Path(__file__).with_name("client.py")


def command(module: str, *arguments: str, preload: str = "") -> list[str]:
    """``python -m MODULE ARGUMENTS``, from a fork. For `preload` see `address`."""
    return command_at(address(preload), module, *arguments)


def python(*arguments: str | Path) -> list[str]:
    """``python FILE ARGUMENTS`` or ``python -c CODE ARGUMENTS``, from a fork."""
    return command("tests.forks.script", "-u", *map(str, arguments))


def command_at(address: str, *program: str) -> list[str]:
    """As `command`, of the server at an address."""
    return [sys.executable, "-I", "-S", str(_CLIENT), address, *program]


def forking(preload: str = "", **environ: str) -> dict[str, str]:
    """Variables of a process whose gangs on this machine are to be forked.

    Args:
        preload: as of `address`.
        environ: more of its environment; PYTHONPATH is preceded by what registers the launcher.
    """
    path = os.pathsep.join(filter(None, [str(SITE), environ.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))]))
    return {**environ, VARIABLE: address(preload), "PYTHONPATH": path}


@functools.cache
def address(preload: str = "", *kind: str) -> str:
    """Of the server, which runs from now on.

    Args:
        kind: ``light`` for forks that have no torch, ``bare`` for ones that have nothing of this checkout.
        preload: a library that must be there before torch is; such forks have a server of their own.
    """
    if SHARED in os.environ and not preload and not kind:
        return os.environ[SHARED]
    bare = "" if preload or kind else os.environ.get(BARE)
    folder = tempfile.TemporaryDirectory(prefix="tests-forks-", dir=Path(bare).parent if bare else None)
    socket = str(Path(folder.name) / "socket")
    # One thread, because only the thread that forks lives on in the fork; and room to show the environment of a fork.
    given = {name: os.environ[name] for name in _GIVEN if name in os.environ}
    given |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    given |= {"LD_PRELOAD": preload} if preload else {}
    given |= {} if bare else {"TESTS_FORKS_ROOM": " " * 2**16}
    python = command_at(bare) if bare else [sys.executable, "-m"]
    process = subprocess.Popen(
        [*python, "tests.forks.server", socket, *kind], cwd=ROOT, env=given,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True, preexec_fn=die_with_parent,
    )  # fmt: skip

    def end() -> None:
        process.terminate()
        process.wait()
        folder.cleanup()

    atexit.register(end)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return socket
