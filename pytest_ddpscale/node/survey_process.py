"""Runs a node's survey in a process that may hang without blocking the agent."""

from __future__ import annotations

import sys
import time

import msgspec

from pytest_ddpscale.node.limited_command import Command, last_line
from pytest_ddpscale.run.strict_json import decode
from pytest_ddpscale.run.survey_record import Survey

LIMIT_S = 60.0
# Short, because the supervisor waits for agents to exit, but a driver without persistence mode takes up to ten seconds,
# and who does not answer is asked again 5 s later.
POST_MORTEM_LIMIT_S = 20.0


def survey_command(host: str, *options: str) -> list[str]:
    """``python -m pytest_ddpscale.node.survey …`` with the running interpreter, which the ranks use too."""
    return [sys.executable, "-m", "pytest_ddpscale.node.survey", f"--host={host}", *options]


def survey_from(command: Command, host: str) -> Survey | None:
    """The survey of a host once its command is done, with `problem` set if it failed; None while it runs."""
    if not command.is_done():
        return None
    if command.code == 0:
        lines = command.printed.splitlines() or [b""]  # a site's own output may precede the last line
        try:
            return decode(msgspec.json.Decoder(Survey), lines[-1])
        except ValueError as error:
            problem = f"printed no valid survey ({error}): {last_line(command.printed)}"
    elif command.problem:
        problem = command.problem
    else:
        code = f"ended with code {command.code}"
        what = f"was not done within {command.limit_s:g} s" if command.was_too_late else code
        problem = f"{what}; its last message: {last_line(command.errors)}"
    return Survey(host, time.time(), f"the survey {problem}")
