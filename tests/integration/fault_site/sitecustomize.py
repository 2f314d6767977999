"""Faults for real ranks: with this folder on PYTHONPATH a rank breaks in a given study, arm and round.

Python imports a module of this name at start-up, before the worker, so the real worker breaks. The environment
variable FAULTS assigns faults to ranks, studies and arms; a thread waits for that position in the status that ranks
keep for their node's agent.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

FROM_ROUND = 2
POLL_S = 0.005
NAP_S = 0.5
CGROUP = Path("/sys/fs/cgroup/memory")


def wait_and_break(status: Path, faults: dict[str, list[Any]], log: Path) -> None:
    """Wait until this rank is where a fault is due, note the time, and let it happen."""
    while True:
        time.sleep(POLL_S)
        try:
            said = json.loads(status.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        kind, rank, arm = faults.get(said.get("study"), [None, None, None])
        here = (said.get("rank"), said.get("arm"), said.get("phase")) == (rank, arm, "timed block")
        if here and said.get("round", 0) >= FROM_ROUND:
            with log.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"study": said["study"], "unix_s": time.time(), "pid": os.getpid()}) + "\n")
            FAULTS[kind]()
            return


def fail() -> None:
    """Raise an error in the main thread."""
    main = ctypes.c_ulong(threading.main_thread().ident or 0)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(main, ctypes.py_object(ArithmeticError))


def wait_for_a_device() -> None:
    """Let every further pass wait forever for the thread of a device."""
    from pytest_ddpscale.worker.inference import SplitModel

    SplitModel._apply = lambda *ignored: threading.Event().wait()  # type: ignore[method-assign, assignment]


def run_out_of_memory() -> None:
    """Get killed by the kernel: allocate more than a memory cgroup allows."""
    group = CGROUP / f"ddpscale-test-{os.getpid()}"
    group.mkdir()
    (group / "memory.limit_in_bytes").write_text(str(2**28))
    (group / "cgroup.procs").write_text(str(os.getpid()))
    hoard = [b"x" * 2**24 for _ in range(10_000)]
    print(len(hoard))


def print_garbage_and_fail() -> None:
    """Write bytes that no terminal and no parser expects, then raise: garbage alone ends no rank."""
    for number in (1, 2):
        os.write(number, b'\xff\xfe\x00\x1b[2J@ddpscale {"say": "stop", \n{\n' * 1000)
    fail()


def stop_the_agent() -> None:
    """Stop the process that started torchrun. This rank goes on, but naps: training until it is ended takes CPU."""
    status = Path(f"/proc/{os.getppid()}/status").read_text(encoding="utf-8")
    agent = next(line.split()[1] for line in status.splitlines() if line.startswith("PPid:"))
    os.kill(int(agent), signal.SIGSTOP)
    while True:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR2)
        time.sleep(1.1 * NAP_S)


FAULTS = {
    "has its torchrun killed": lambda: os.kill(os.getppid(), signal.SIGKILL),
    "has its agent stopped": stop_the_agent,
    "is killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "is stopped": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "waits for a device": wait_for_a_device,
    "runs out of memory": run_out_of_memory,
    "exits 0 early": lambda: os._exit(0),
    "prints garbage and raises": print_garbage_and_fail,
}

# torchrun sets LOCAL_RANK for ranks alone: neither it nor the node's agent has one.
if "FAULTS" in os.environ and "LOCAL_RANK" in os.environ and sys.argv[:1] != ["-c"]:
    signal.signal(signal.SIGUSR2, lambda number, frame: time.sleep(NAP_S))
    threading.Thread(
        target=wait_and_break,
        args=(
            Path(os.environ["DDPSCALE_STATUS_DIR"]) / f"{os.environ['LOCAL_RANK']}.json",
            json.loads(os.environ["FAULTS"]),
            Path(os.environ["FAULTS_LOG"]),
        ),
        daemon=True,
    ).start()
