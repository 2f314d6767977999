"""``python -m pytest_ddpscale.telemetry.sampling UUID,… POLL_S PARENT_PID``: the sampler, one process per node.

It polls all GPUs of the node, and answers queries from standard input on standard output. The protocol is JSON lines,
defined in `telemetry.link`, whose `Sampler` alone starts it. An end of file ends the process.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence

import msgspec
import pynvml

from pytest_ddpscale.telemetry.link import Answer, Asked
from pytest_ddpscale.telemetry.nvml import in_words
from pytest_ddpscale.telemetry.sampled_gpu import SampledGpu
from pytest_ddpscale.telemetry.windows import GpuLog, cut
from pytest_ddpscale.util.orphans import die_with_parent

_READ_BYTES = 65_536


class Sampling:
    """Some GPUs of this node, by UUID: ``GPU-…``."""

    def __init__(self, uuids: Sequence[str]) -> None:
        self._gpus: list[SampledGpu] = []
        try:
            pynvml.nvmlInit()
        except Exception as error:  # no library or no driver: answer every window with the reason
            self._logs = {uuid: GpuLog(in_words(error)) for uuid in uuids}
        else:
            self._gpus = [SampledGpu(uuid) for uuid in uuids]
            self._logs = {uuid: gpu.log for uuid, gpu in zip(uuids, self._gpus, strict=True)}

    def poll(self) -> None:
        """Read all GPUs."""
        for gpu in self._gpus:
            gpu.poll()

    def answer(self, line: bytes) -> Answer | None:
        """Execute one request line; return the answer, or None if it has none. Raises msgspec.MsgspecError."""
        asked = msgspec.json.decode(line, type=Asked)
        if asked is None:
            for gpu in self._gpus:
                gpu.mark()
            return None
        self.poll()
        other = GpuLog("not one of the sampled GPUs")
        return tuple(cut(self._logs.get(uuid, other), start_s, end_s) for uuid, start_s, end_s in asked)


def serve(sampling: Sampling, poll_s: float, file: int, write: Callable[[bytes], object]) -> None:
    """Poll and answer until the client ends.

    Args:
        poll_s: seconds between two polls.
        file: descriptor of the requests.
        write: sends an answer; its BrokenPipeError ends this function as well.
    """
    waiting = select.poll()
    waiting.register(file, select.POLLIN | select.POLLHUP)
    rest = b""
    next_poll_s = time.monotonic()
    while True:
        if time.monotonic() >= next_poll_s:
            sampling.poll()
            next_poll_s = time.monotonic() + poll_s  # from now, so that a slow driver gets the same pause
        if not waiting.poll(max(0.0, next_poll_s - time.monotonic()) * 1000):
            continue
        data = os.read(file, _READ_BYTES)
        if not data:
            return
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            answer = sampling.answer(line)
            try:
                if answer is not None:
                    write(msgspec.json.encode(answer) + b"\n")
            except BrokenPipeError:
                return


def main() -> None:
    """Sample until the client ends."""
    uuids, poll_s, parent = sys.argv[1:]
    die_with_parent()
    if os.getppid() != int(parent):  # the parent ended while this process was starting
        return
    # Ctrl-C reaches the whole process group; the parent ends this process once the last window is cut.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # keeps library output out of the answers
    serve(Sampling(uuids.split(",")), float(poll_s), 0, answers.write)


if __name__ == "__main__":
    main()
