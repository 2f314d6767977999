"""Nothing that was started is left behind, whatever it does about signals."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from pytest_ddpscale.node.processes import GANG_VARIABLE, stop_gang

GRACE_S = 0.2
GANG = uuid.uuid4().hex
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
SLEEP = "import time; time.sleep(60)"

Start = Callable[[str], "subprocess.Popen[bytes]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Run Python source as a launcher would be; none of it outlives the test."""
    started: list[psutil.Process] = []

    def run(source: str) -> subprocess.Popen[bytes]:
        environment = os.environ | {GANG_VARIABLE: GANG}
        process = subprocess.Popen(
            [sys.executable, "-c", source], cwd=tmp_path, env=environment, start_new_session=True
        )
        started.append(psutil.Process(process.pid))
        return process

    yield run
    for process in started:
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in process.children(recursive=True):
                child.kill()
            process.kill()


def tree(tmp_path: Path, leaf: str, middle: str = "") -> str:
    """Source of a launcher with a child with a grandchild in a session of its own, which runs `leaf`.

    The grandchild writes its pid when it is ready.
    """
    pid_file = str(tmp_path / "pid")
    ready = f"import os, pathlib; p = pathlib.Path({pid_file!r}); "
    ready += "p.with_suffix('.part').write_text(str(os.getpid())); p.with_suffix('.part').rename(p)"
    grandchild = f"{leaf}\n{ready}\n{SLEEP}"
    child = f"import subprocess, sys\n{middle}\n"
    child += f"subprocess.run([sys.executable, '-c', {grandchild!r}], start_new_session=True)"
    return f"import subprocess, sys\n{middle}\nsubprocess.run([sys.executable, '-c', {child!r}])"


def wait_for_pid(tmp_path: Path) -> psutil.Process:
    """The grandchild, once it has done what it does about signals."""
    until = time.monotonic() + 20
    while not (tmp_path / "pid").exists():
        assert time.monotonic() < until, "the tree did not come up"
        time.sleep(0.02)
    return psutil.Process(int((tmp_path / "pid").read_text(encoding="ascii")))


def is_gone(process: psutil.Process) -> bool:
    """Whether it runs no more; where process 1 waits for no orphans, a dead one remains as a zombie."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize(
    ("programs", "code"),
    [((STUBBORN,), -15), ((STUBBORN, STUBBORN), -9)],
    ids=["a grandchild in its own session", "the whole tree"],
)
def test_who_ignores_sigterm_is_gone(start: Start, tmp_path: Path, programs: tuple[str, ...], code: int) -> None:
    launcher = start(tree(tmp_path, *programs))
    grandchild = wait_for_pid(tmp_path)
    family = psutil.Process(launcher.pid).children(recursive=True)
    assert grandchild in family
    stop_gang([launcher], GANG, GRACE_S)
    assert [process for process in family if not is_gone(process)] == []
    assert launcher.returncode == code


def test_ranks_whose_launcher_was_killed_are_gone(start: Start, tmp_path: Path) -> None:
    launcher = start(tree(tmp_path, STUBBORN))
    grandchild = wait_for_pid(tmp_path)
    family = psutil.Process(launcher.pid).children(recursive=True)
    os.kill(launcher.pid, signal.SIGKILL)
    launcher.wait(timeout=20)
    assert not is_gone(grandchild)
    stop_gang([launcher], GANG, GRACE_S)
    assert [process for process in family if not is_gone(process)] == []


def test_another_gang_is_left_alone(start: Start, tmp_path: Path) -> None:
    launcher = start(tree(tmp_path, ""))
    grandchild = wait_for_pid(tmp_path)
    other = subprocess.Popen([sys.executable, "-c", "pass"])
    stop_gang([other], uuid.uuid4().hex, GRACE_S)
    assert not is_gone(grandchild)
    stop_gang([launcher], GANG, GRACE_S)


def test_who_obeys_is_not_waited_for_longer_than_it_takes(start: Start) -> None:
    launcher = start(SLEEP)
    began = time.monotonic()
    stop_gang([launcher], GANG, grace_s=30.0)
    assert time.monotonic() - began < 10.0
    assert launcher.returncode == -15


def test_who_tidies_up_in_time_is_not_killed(start: Start, tmp_path: Path) -> None:
    tidy = "import pathlib, signal, sys, time\n"
    tidy += "def end(*_):\n    time.sleep(0.2)\n    pathlib.Path('tidy').touch()\n    sys.exit(3)\n"
    tidy += f"signal.signal(signal.SIGTERM, end)\npathlib.Path('pid').touch()\n{SLEEP}"
    launcher = start(tidy)
    until = time.monotonic() + 20
    while not (tmp_path / "pid").exists():
        assert time.monotonic() < until
        time.sleep(0.02)
    stop_gang([launcher], GANG, grace_s=10.0)
    assert (tmp_path / "tidy").exists()
    assert launcher.returncode == 3


@pytest.mark.parametrize("seen", [False, True])
def test_a_launcher_that_has_ended_keeps_its_exit_code(start: Start, seen: bool) -> None:
    launcher = start("import sys; sys.exit(7)")
    if seen:
        launcher.wait(timeout=20)
    else:
        until = time.monotonic() + 20
        while psutil.Process(launcher.pid).status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < until
            time.sleep(0.02)
    stop_gang([launcher], GANG, GRACE_S)
    assert launcher.returncode == 7


def test_stopping_twice_does_no_harm(start: Start) -> None:
    launcher = start(SLEEP)
    stop_gang([launcher], GANG, GRACE_S)
    stop_gang([launcher], GANG, GRACE_S)
    assert launcher.returncode == -15
