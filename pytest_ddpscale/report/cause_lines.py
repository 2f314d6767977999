"""Causes on the terminal: what to do about the headline's, then the others with one step each."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from pytest_ddpscale.report import text
from pytest_ddpscale.report.cause import Cause, causes
from pytest_ddpscale.report.next_steps import next_steps
from pytest_ddpscale.run.run_json import RunRecord
from pytest_ddpscale.run.verdicts import Judgement, NextStep

_MOST_LINES = 8  # on the screen, without -v
_MOST_LINES_OF_A_SENTENCE = 2


def cause_lines(judgement: Judgement, columns: int, run: RunRecord | None, most: int = _MOST_LINES) -> list[str]:
    """Next steps of the first cause, which the headline tells, and the other causes, in at most so many lines.

    Only commands may be longer than `columns`: they stay one line, so that they can be copied.
    """
    if judgement.accepts or not (found := causes(judgement)):
        return []
    lines = list(_steps(next_steps(found[0], judgement, run), _label(found[0]), columns))
    others = found[1:]
    for number, cause in enumerate(others):
        own = _wrapped(f"also: {text.one_line(cause.sentence)}", columns, "  ", "    ", _MOST_LINES_OF_A_SENTENCE)
        own += _wrapped(f"{_label(cause)}{next_steps(cause, judgement, run)[0].action}", columns, "    ", "", 1)
        more = len(others) - number
        if screen_lines(lines, columns) + len(own) + (more > 1) > most:
            return [*lines, f"  also: {text.count_text(more, 'more cause')}, see report.html"]
        lines += own
    return lines


def screen_lines(lines: Sequence[str], columns: int) -> int:
    """How many lines of a screen they take."""
    return sum(max(1, -(-len(line) // columns)) for line in lines)


def _label(cause: Cause) -> str:
    return f"{cause.category} {cause.id}: "


def _steps(steps: Sequence[NextStep], label: str, columns: int) -> Iterator[str]:
    """Each action with its command, on a line of its own if both do not fit into one."""
    for step in steps:
        said, label = f"  {label}{step.action}", ""
        if step.command and len(said) + len(step.command) + 2 <= columns:
            yield f"{said}: {step.command}"
            continue
        yield from _wrapped(said, columns, "", "    ", 2)
        if step.command:
            yield f"    {step.command}"


def _wrapped(said: str, columns: int, first: str, following: str, most: int) -> list[str]:
    return textwrap.wrap(
        said, columns, initial_indent=first, subsequent_indent=following, max_lines=most, placeholder=" …",
        break_on_hyphens=False,
    )  # fmt: skip
