"""The sampler's process: polls the GPUs of a node, and answers on standard output what is asked on standard input.

JSON lines. ``{"ask": "cut", "windows": [[uuid, start_unix_s, end_unix_s], …]}`` is answered by
``{"devices": [{…}, …]}``, one object a window, after a poll of now. ``{"ask": "mark"}`` has energy and GPM
read at once, and no answer: sent as a window begins, it makes the window's edge sharp. ``{"ask": "stop"}`` and an
end of file end the process. What it cannot understand is answered by ``{"problem": …}``.
"""

from __future__ import annotations

import json
import select
import time
from collections.abc import Callable, Sequence
from typing import Any

import pynvml

from pytest_ddpscale.telemetry.log import GpuLog
from pytest_ddpscale.telemetry.nvml_calls import words
from pytest_ddpscale.telemetry.sampled_gpu import SampledGpu
from pytest_ddpscale.telemetry.windows import cut


class Sampling:
    """Some GPUs of this node, by UUID.

    Args:
        uuids: of the GPUs, ``GPU-…``.
    """

    def __init__(self, uuids: Sequence[str]) -> None:
        self._gpus: dict[str, SampledGpu] = {}
        self._problems: dict[str, str] = {}
        try:
            pynvml.nvmlInit()
        except Exception as error:  # no library, no driver: every window is answered, by the reason
            self._problems = dict.fromkeys(uuids, words(error))
        else:
            self._gpus = {uuid: SampledGpu(uuid) for uuid in uuids}

    def poll(self) -> None:
        """Read all GPUs."""
        for gpu in self._gpus.values():
            gpu.poll()

    def answer(self, line: bytes) -> dict[str, Any] | None:
        """Do what a line asks, and say what to answer; None for nothing.

        Raises:
            EOFError: the line asks to stop.
        """
        try:
            message = json.loads(line)
            ask = message["ask"]
            if ask == "stop":
                raise EOFError
            if ask == "mark":
                for gpu in self._gpus.values():
                    gpu.mark()
                return None
            if ask != "cut":
                return {"problem": f"{ask!r} is asked; expected cut, mark or stop"}
            windows = [(str(uuid), float(start), float(end)) for uuid, start, end in message["windows"]]
        except (ValueError, TypeError, KeyError) as error:
            return {"problem": words(error)}
        self.poll()
        return {"devices": [cut(self._log(uuid), start_s, end_s) for uuid, start_s, end_s in windows]}

    def _log(self, uuid: str) -> GpuLog:
        gpu = self._gpus.get(uuid)
        return gpu.log if gpu is not None else GpuLog(uuid, self._problems.get(uuid, "not one of the sampled GPUs"))


def serve(
    sampling: Sampling, poll_s: float, file: int, read: Callable[[], bytes], write: Callable[[bytes], object]
) -> None:
    """Poll and answer until the asking side ends.

    Args:
        sampling: what to poll.
        poll_s: seconds between two polls.
        file: descriptor to wait for.
        read: the next bytes of it; none at its end.
        write: takes an answer. Raises BrokenPipeError once nobody listens, which ends this as well.
    """
    waiting = select.poll()
    waiting.register(file, select.POLLIN | select.POLLHUP)
    rest = b""
    next_poll_s = time.monotonic()
    while True:
        if time.monotonic() >= next_poll_s:
            sampling.poll()
            next_poll_s = time.monotonic() + poll_s  # a driver that takes long is left in peace as long as any other
        if not waiting.poll(max(0.0, next_poll_s - time.monotonic()) * 1000):
            continue
        data = read()
        if not data:
            return
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            try:
                answer = sampling.answer(line)
                if answer is not None:
                    write(json.dumps(answer, allow_nan=False).encode() + b"\n")
            except (EOFError, BrokenPipeError):
                return
