"""The survey of a node as its agent has it made: by a process that may hang without holding the agent up."""

from __future__ import annotations

import sys
import time

from pytest_ddpscale.node.limited_command import Command, last_line
from pytest_ddpscale.results.survey_record import Survey, read_survey

LIMIT_S = 60.0
# The supervisor waits for agents to say farewell, and they end their ranks before. A driver that is not kept loaded
# takes up to ten seconds.
POST_MORTEM_LIMIT_S = 12.0


def survey_command(host: str, *options: str) -> list[str]:
    """``python -m pytest_ddpscale.node.survey …`` of the running interpreter, which is also the ranks'."""
    return [sys.executable, "-m", "pytest_ddpscale.node.survey", f"--host={host}", *options]


def survey_from(command: Command, host: str) -> Survey | None:
    """The survey of a host once its command has printed it, or the word that there will be none; None before."""
    if not command.is_done():
        return None
    if command.code == 0:
        lines = command.printed.splitlines() or [b""]  # before the last one may be what a site prints
        try:
            return read_survey(lines[-1])
        except ValueError as error:
            problem = f"printed what is none ({error}): {last_line(command.printed)}"
    elif command.problem:
        problem = command.problem
    else:
        code = f"ended with code {command.code}"
        what = f"was not done within {command.limit_s:g} s" if command.was_too_late else code
        problem = f"{what}; it said last: {last_line(command.errors)}"
    return Survey(host, time.time(), f"the survey {problem}")
