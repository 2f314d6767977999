"""On PYTHONPATH it makes the fork server of a forked rank's loader workers a fork as well: of the rank, before that
has threads, sockets or locks. A new interpreter would import torch and torchvision anew, for each rank.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import sys
from collections.abc import Sequence
from multiprocessing import util
from typing import Any

_ABOVE = 512  # all descriptors that a rank passes on


def _fork_when_asked() -> None:
    """Fork a process that waits for a program and its descriptors. `multiprocessing` starts its fork server there."""
    mine, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        mine.close()
        try:
            _run(theirs)
        finally:
            os._exit(1)
    theirs.close()

    def start(path: Any, arguments: Sequence[str], descriptors: Sequence[int]) -> int:
        program = arguments[-1]
        if not program.startswith("from multiprocessing.forkserver import main"):
            return new_interpreter(path, arguments, descriptors)
        vars(util)["spawnv_passfds"] = new_interpreter
        with mine:
            socket.send_fds(mine, [json.dumps([program, *descriptors]).encode()], list(descriptors))
        return pid

    new_interpreter = util.spawnv_passfds
    vars(util)["spawnv_passfds"] = start


def _run(asked: socket.socket) -> None:
    said, received, _, _ = socket.recv_fds(asked, 2**16, 8)
    asked.close()
    if said:  # else the rank ended
        program, *numbers = json.loads(said)
        above = [fcntl.fcntl(one, fcntl.F_DUPFD, _ABOVE) for one in received]
        for number, descriptor in zip(numbers, above, strict=True):
            os.dup2(descriptor, number)
            os.close(descriptor)
        exec(program, {})


if "LOCAL_RANK" in os.environ and "torch" in sys.modules:  # a rank that is a fork, not a new interpreter below it
    _fork_when_asked()
