"""``python -m tests.forks.server ADDRESS [light|bare]``: runs what `client` asks for in forks of this process.

A guard, a fork as well, waits for each program: it passes signals on, tells its exit code, and kills it when its client
is gone. All of them end with this process, and it with the one that started it. A program is where its client is, also
on a node of the Slurm lab, whose namespaces and CPU quota it has.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import inspect
import json
import os
import re
import runpy
import select
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from functools import partial
from io import StringIO
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import pytest

from tests.slurm_lab.cgroup import cpu_controller

PRELOADED = (
    "torch", "torchvision", "torch.distributed", "torch.nn.parallel", "numpy", "pytest", "pdb",
    "matplotlib.figure", "matplotlib.style", "matplotlib.backends.backend_agg", "matplotlib.backends.backend_svg",
    "multiprocessing.forkserver", "tests.builders.trained",
    "tests.builders.sessions",  # reads thresholds, before which their models are incomplete
)  # fmt: skip
# And all of the package, and pytest's plugins; the light server does without what imports torch, the bare one without
# all of this checkout, so that its programs import another one.
PACKAGE = Path(__file__).parents[2] / "pytest_ddpscale"
_OURS = ("tests", "pytest_ddpscale")
_LEFT_OUT = {
    "light": ("torch", "pytest_ddpscale.worker", "pytest_ddpscale.datasets", "tests.builders.trained"),
    "bare": _OURS,
}

_NAMESPACES = 0x64020000  # CLONE_NEWNET, _NEWPID, _NEWUTS and _NEWNS
_LIBRARIES = "LD_LIBRARY_PATH"
_LIBRARY_PATHS = os.environ.get(_LIBRARIES, "").split(os.pathsep)


def main() -> None:
    """Serve for ever."""
    gc.disable()
    _, address, *kind = sys.argv
    left_out = _LEFT_OUT[kind[0]] if kind else ()
    files = [path.relative_to(PACKAGE.parent).with_suffix("") for path in PACKAGE.rglob("*.py")]
    ours = [".".join(path.parts) for path in files if not set(path.parts) & {"__main__", "__init__"}]
    for name in (*PRELOADED, *ours):
        if not name.startswith(left_out):
            importlib.import_module(name)
    with redirect_stdout(StringIO()):
        pytest.main(["--help"])  # imports plugins, with assertions rewritten
    for name in [name for name in sys.modules if left_out == _OURS and name.startswith(_OURS)]:
        del sys.modules[name]
    inspect.getmodule(main.__code__, "no file")  # where all modules come from, which a traceback asks for
    gc.freeze()  # or the first look for garbage in each fork would copy all pages
    gc.enable()
    signal.signal(signal.SIGCHLD, _reap)
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.bind(address)
    server.listen(64)
    print("ready", flush=True)
    while True:
        connection, _ = server.accept()
        with connection:
            fork(partial(_guard, connection, server))


def fork(work: Callable[[], object]) -> int:
    """Do something in a process that ends with this one; its id. It exits as a Python program would."""
    sys.stdout.flush()
    parent = os.getpid()
    if pid := os.fork():
        return pid
    code = 1
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
        if os.getppid() in (parent, 0):  # 0: in another process namespace
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            work()
            code = 0
    except SystemExit as ended:
        code = _exit_code(ended)
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def be_new(program: list[str], environ: dict[str, str]) -> None:
    """Take on what a new interpreter would have been given, and import what it would."""
    os.environ.clear()
    os.environ.update(environ)
    _show(environ)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - these are for as long as the process lives
    sys.stdout = open(1, "w", closefd=False, buffering=1)  # noqa: SIM115
    sys.stderr = open(2, "w", closefd=False, buffering=1, errors="backslashreplace")  # noqa: SIM115
    sys.argv = [*program]
    sys.orig_argv = [sys.executable, "-m", *program]
    _load_libraries(environ.get(_LIBRARIES, ""))
    paths = [path for path in environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = [*paths, *(path for path in sys.path if path not in paths)]
    sys.modules.pop("sitecustomize", None)
    with suppress(ModuleNotFoundError):
        importlib.import_module("sitecustomize")


def run_module(program: list[str], environ: dict[str, str]) -> NoReturn:
    """``python -m MODULE ARGUMENTS`` in this process."""
    be_new(program, environ)
    runpy.run_module(program[0], run_name="__main__", alter_sys=True)
    sys.exit(0)


def _guard(connection: socket.socket, server: socket.socket) -> None:
    server.close()
    said, streams, _, _ = socket.recv_fds(connection, 2**18, 3)
    if len(streams) < 3:
        return
    order = json.loads(said)
    _go_where(struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])
    pid = fork(lambda: _program(order, connection, streams))
    for descriptor in streams:
        os.close(descriptor)
    ended = os.pidfd_open(pid)
    heard = connection.fileno()
    while True:
        ready, _, _ = select.select([heard, ended], [], [])
        if ended in ready:
            _, status = os.waitpid(pid, 0)
            code = os.waitstatus_to_exitcode(status)
            with suppress(OSError):
                connection.send(code.to_bytes(4, "big", signed=True))
            return
        signals = connection.recv(16)
        for number in signals or [signal.SIGKILL]:
            os.kill(pid, number)
        if not signals:
            os.waitpid(pid, 0)
            return


def _go_where(pid: int) -> None:
    """Into the CPU quota and the namespaces of a process, if it is on a node of the Slurm lab; forks will be there."""
    node = re.search(r"[:,]cpu[,:].*/(lab\S+)", Path(f"/proc/{pid}/cgroup").read_text(encoding="ascii"))
    if node and (controller := cpu_controller()):
        (controller / node[1] / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")
        assert ctypes.CDLL(None).setns(os.pidfd_open(pid), _NAMESPACES) == 0


def _program(order: list[Any], connection: socket.socket, streams: list[int]) -> None:
    program, environ, directory = order
    connection.close()
    os.setsid()
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(directory)
    sys.path.insert(0, directory)
    run_module(program, environ)


def _load_libraries(paths: str) -> None:
    """Those that only this program has on LD_LIBRARY_PATH, which the dynamic loader reads as a process starts."""
    for path in paths.split(os.pathsep):
        if path and path not in _LIBRARY_PATHS:
            for library in Path(path).glob("lib*.so*"):
                ctypes.CDLL(str(library))


def _show(environ: dict[str, str]) -> None:
    """Write it where the kernel shows a process's environment, by which agents find their ranks."""
    fields = Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    start, end = int(fields[47]), int(fields[48])
    text = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in environ.items())
    assert len(text) < end - start, "start the server with more room"
    ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)


def _exit_code(ended: SystemExit) -> int:
    if ended.code is None or isinstance(ended.code, int):
        return ended.code or 0
    print(ended.code, file=sys.stderr)
    return 1


def _reap(number: int, frame: FrameType | None) -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


if __name__ == "__main__":
    main()
