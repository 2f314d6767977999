"""`ddpscale compare`. Every command imports this module, so heavy imports are inside functions."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.settings import OPTIONS, confidence_level, read_value

if TYPE_CHECKING:
    from pytest_ddpscale.compare.gate import Gate, Gated

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

Found = TypeVar("Found", bound="Gated")
WORSE = 1  # exit code if something is worse than --fail-below allows


def add_compare(commands: Commands) -> None:
    """Add `ddpscale compare`."""
    command = commands.add_parser("compare", help="compare a run with another one, requirement by requirement")
    add = command.add_argument
    add("directories", type=Path, nargs="+", metavar="RUN_DIR",
        help="A and B: runs, or JSON reports of PyTorch's DDP benchmark")  # fmt: skip
    add(
        "--fail-below", metavar="5%",
        help="exit 1 if anything is certainly worse by more than that, or was measured before but not now",
    )  # fmt: skip
    add(
        "--allow-missing", action="store_true",
        help="with --fail-below: accept values that were measured before but not now",
    )  # fmt: skip
    add("--confidence", default=OPTIONS["confidence"].default, metavar="C",
        help="confidence of each interval, which verdicts have already; default: %(default)s")  # fmt: skip
    add("--format", choices=("text", "json"), default="text", help="default: %(default)s")
    command.set_defaults(run=_compare)


def _compare(arguments: argparse.Namespace) -> int:
    """Print the comparison. Returns the exit code; raises BadInput."""
    from pytest_ddpscale.compare.compare_text import compared_json, compared_lines
    from pytest_ddpscale.compare.compared_run import read_compared_run
    from pytest_ddpscale.compare.comparing import compare_runs
    from pytest_ddpscale.compare.gate import Gate
    from pytest_ddpscale.suites.comparing import SuiteDiff, is_suite, read_suite_diff
    from pytest_ddpscale.suites.ddp_benchmark import ReportDiff, read_diff, report_at

    fail_below = None if arguments.fail_below is None else read_value("--fail-below", arguments.fail_below, _share)
    if arguments.allow_missing and fail_below is None:
        raise OptionError("--allow-missing", "found without --fail-below", "both: without --fail-below nothing fails")
    gate = Gate(fail_below, arguments.allow_missing)
    confidence = read_value("--confidence", arguments.confidence, confidence_level)
    if len(arguments.directories) != 2:
        raise OptionError("RUN_DIR", f"found {len(arguments.directories)}", "two runs")
    if any(map(report_at, arguments.directories)):
        found = read_diff(arguments.directories, confidence)
        return _print(found, ReportDiff.lines, ReportDiff.json, gate, arguments.format)
    if all(map(is_suite, arguments.directories)):
        return _print(read_suite_diff(arguments.directories), SuiteDiff.lines, SuiteDiff.json, gate, arguments.format)
    runs = [read_compared_run(directory) for directory in arguments.directories]
    return _print(compare_runs(runs[0], runs[1], confidence), compared_lines, compared_json, gate, arguments.format)


def _print(
    found: Found, lines: Callable[[Found], Iterator[str]], as_json: Callable[[Found], dict[str, Any]], gate: Gate,
    form: str,
) -> int:  # fmt: skip
    """Print a comparison in the requested format, with the result of --fail-below. Returns the exit code."""
    from pytest_ddpscale.compare.compare_text import wrapped
    from pytest_ddpscale.run.strict_json import strict_json

    if form == "json":
        print(strict_json(as_json(found) | gate.as_json(found)))
    else:
        answer, *others = lines(found)
        said = [line for sentence in gate.lines(found) for line in wrapped(sentence)]
        for line in (answer, *said, *others):
            print(line)
    return WORSE if gate.fails(found) else 0


def _share(text: str) -> float:
    """Parse ``5%``, ``5 %`` or ``0.05`` as 0.05. Raises ValueError."""
    number = text.strip().removesuffix("%").strip()
    try:
        share = float(number.replace("_", "?")) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        share = float("nan")
    if not 0 <= share < 1:
        raise ValueError("a share such as 5% or 0.05, from 0% to below 100%")
    return abs(share)  # no -0
