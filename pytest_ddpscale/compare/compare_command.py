"""`ddpscale compare`. Every command loads this: what it does loads what it needs."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.settings import OPTIONS, confidence_level, read_value

if TYPE_CHECKING:
    from pytest_ddpscale.compare.compared_run import ComparedRun
    from pytest_ddpscale.results.run_directory import RunDirectory
    from pytest_ddpscale.results.verdicts import Judgement

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]
    JudgementOf = Callable[[RunDirectory], Judgement]

WORSE = 1  # exit code where something is worse than --fail-below allows


def add_compare(commands: Commands, judgement_of: JudgementOf) -> None:
    """`ddpscale compare`, with what finds the verdicts of a run."""
    command = commands.add_parser(
        "compare", help="say requirement by requirement whether a run is faster or slower than another, or than before"
    )
    add = command.add_argument
    add("directories", type=Path, nargs="+", metavar="RUN_DIR", help="A and B; with --history one run")
    add("--history", type=Path, metavar="FILE", help="compare one run with earlier runs of the same nodes")
    add("--fail-below", metavar="5%", help="exit 1 if any requirement is shown to be worse by more than that")
    add("--confidence", default=OPTIONS["confidence"].default, metavar="C",
        help="of each interval; default: %(default)s")  # fmt: skip
    add("--format", choices=("text", "json"), default="text", help="default: %(default)s")
    command.set_defaults(run=lambda arguments: _compare(arguments, judgement_of))


def _compare(arguments: argparse.Namespace, judgement_of: JudgementOf) -> int:
    """Print the comparison. Returns the exit code; raises BadInput."""
    from pytest_ddpscale.compare.compare_text import compared_json, compared_lines
    from pytest_ddpscale.compare.compared_run import read_compared_run
    from pytest_ddpscale.compare.comparing import compare_runs

    fail_below = None if arguments.fail_below is None else read_value("--fail-below", arguments.fail_below, _share)
    confidence = read_value("--confidence", arguments.confidence, confidence_level)
    expected = 1 if arguments.history is not None else 2
    if len(arguments.directories) != expected:
        raise OptionError(
            "RUN_DIR", f"found {len(arguments.directories)}", "two runs, or one and --history FILE"
        )  # fmt: skip
    runs = [read_compared_run(directory, judgement_of) for directory in arguments.directories]
    if arguments.history is not None:
        return _with_history(runs[0], arguments, confidence, fail_below)
    found = compare_runs(runs[0], runs[1], confidence)
    if arguments.format == "json":
        print(compared_json(found, fail_below))
    else:
        for line in compared_lines(found, fail_below):
            print(line)
    return WORSE if fail_below is not None and found.worse_by(fail_below) else 0


def _with_history(
    run: ComparedRun, arguments: argparse.Namespace, confidence: float, fail_below: float | None
) -> int:  # fmt: skip
    from pytest_ddpscale.compare.against_history import beside_past
    from pytest_ddpscale.compare.history_lines import past_json, past_lines

    found = beside_past(run, arguments.history, confidence)
    if arguments.format == "json":
        print(past_json(found, fail_below))
    else:
        for line in past_lines(found, fail_below):
            print(line)
    return WORSE if fail_below is not None and found.slower_by(fail_below) else 0


def _share(text: str) -> float:
    """``5%``, ``5 %`` or ``0.05``, as 0.05."""
    number = text.strip().removesuffix("%").strip()
    try:
        share = float(number) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        share = float("nan")
    if not 0 <= share < 1:
        raise ValueError("a share such as 5% or 0.05, from 0% to below 100%")
    return share
