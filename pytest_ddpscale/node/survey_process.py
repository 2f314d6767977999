"""The survey of a node as its agent has it made: by a process that may hang without holding the agent up."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Sequence

from pytest_ddpscale.node.limited_command import close_pipes, kill_session, last_line, started
from pytest_ddpscale.results.survey_record import Survey, read_survey

LIMIT_S = 60.0
# The supervisor waits for agents to say farewell, and they end their ranks before. A driver that is not kept loaded
# takes up to ten seconds.
POST_MORTEM_LIMIT_S = 12.0


def survey_command(host: str, *, gpus: bool) -> list[str]:
    """``python -m pytest_ddpscale.node.survey …`` of the running interpreter, which is also the ranks'."""
    command = [sys.executable, "-m", "pytest_ddpscale.node.survey", f"--host={host}"]
    return command if gpus else [*command, "--no-gpu"]


def post_mortem_command(host: str) -> list[str]:
    """The same after ranks have failed: it asks for the node's GPUs alone."""
    return [sys.executable, "-m", "pytest_ddpscale.node.survey", f"--host={host}", "--post-mortem"]


class SurveyProcess:
    """Starts a survey at once.

    Args:
        command: what prints it.
        host: the node's name, for a survey that fails.
        limit_s: seconds that it may take.
    """

    def __init__(self, command: Sequence[str], host: str, limit_s: float = LIMIT_S) -> None:
        self._host = host
        self._limit_s = limit_s
        self._ends_s = time.monotonic() + limit_s
        self._output = self._errors = b""
        self._why_not_started = ""
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._process = started(command)
        except OSError as error:
            self._why_not_started = f"the survey could not be started ({error.strerror or error})"

    def poll(self) -> Survey | None:
        """The survey once there is one, or the word that there will be none; None before."""
        if self._process is None:
            return self._failed(self._why_not_started)
        code = self._process.poll()  # before reading: what it printed then is there in whole
        self._read(self._process)
        if code is None and time.monotonic() <= self._ends_s:
            return None
        self.stop()
        if code == 0:
            return self._found()
        what = f"was not done within {self._limit_s:g} s" if code is None else f"ended with code {code}"
        return self._failed(f"the survey {what}; it said last: {last_line(self._errors)}")

    def stop(self) -> None:
        """End it, if that is still to be done, and hardly wait for that. Nothing can be asked of it any more."""
        if self._process is None:
            return
        if self._process.poll() is None:
            kill_session(self._process)
        close_pipes(self._process)

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        self._output += _ready(process.stdout.fileno())
        self._errors += _ready(process.stderr.fileno())

    def _found(self) -> Survey:
        lines = self._output.splitlines() or [b""]  # before the last one may be what a site prints
        try:
            return read_survey(lines[-1])
        except ValueError as error:
            return self._failed(f"the survey printed what is none ({error}): {last_line(self._output)}")

    def _failed(self, why: str) -> Survey:
        return Survey(self._host, time.time(), why)


def _ready(descriptor: int) -> bytes:
    """What can be read without waiting."""
    os.set_blocking(descriptor, False)
    data = b""
    with contextlib.suppress(BlockingIOError):
        while piece := os.read(descriptor, 65_536):
            data += piece
    return data
