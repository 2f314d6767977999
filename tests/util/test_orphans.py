"""A process ends with the one that started it, however that ends."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import psutil

from tests.rows import rows

CHILD = """
from pytest_ddpscale.util.orphans import die_with_parent
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
die_with_parent()
print("ready", flush=True)
time.sleep(60)
"""
PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], start_new_session=True, stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(60)
"""


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@rows("is_stopped", [False, True])
def test_a_killed_parent_leaves_no_child(is_stopped: bool) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, CHILD], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert not is_gone(pid)
    if is_stopped:
        psutil.Process(pid).send_signal(signal.SIGSTOP)
    parent.kill()
    parent.communicate()
    until = time.monotonic() + 20
    while not is_gone(pid):
        assert time.monotonic() < until
        time.sleep(0.01)
