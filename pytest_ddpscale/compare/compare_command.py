"""`ddpscale compare`. Every command imports this module, so heavy imports are inside functions."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.settings import OPTIONS, confidence_level, read_value, share_between
from pytest_ddpscale.util.listing import first_few
from pytest_ddpscale.util.printable import one_line

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


class Gated(Protocol):
    """A comparison that --fail-below can check."""

    @property
    def lost(self) -> Sequence[str]:
        """Values that were measured before but have nothing to compare with now."""

    def worse_by(self, share: float) -> list[str]:
        """Values that certainly are worse by more than `share`."""


Found = TypeVar("Found", bound=Gated)
_MOST_NAMES = 20
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
    from pytest_ddpscale.compare.comparing import compare_runs, read_compared_run
    from pytest_ddpscale.suites.comparing import SuiteDiff, is_suite, read_suite_diff
    from pytest_ddpscale.suites.ddp_benchmark import ReportDiff, read_diff, report_at

    if arguments.fail_below is not None:
        arguments.fail_below = read_value("--fail-below", arguments.fail_below, share_between(0, 0.9999))
    elif arguments.allow_missing:
        raise OptionError("--allow-missing", "found without --fail-below", "both: without --fail-below nothing fails")
    confidence = read_value("--confidence", arguments.confidence, confidence_level)
    if len(arguments.directories) != 2:
        raise OptionError("RUN_DIR", f"found {len(arguments.directories)}", "two runs")
    if any(map(report_at, arguments.directories)):
        return _print(read_diff(arguments.directories, confidence), ReportDiff.lines, ReportDiff.json, arguments)
    if all(map(is_suite, arguments.directories)):
        return _print(read_suite_diff(arguments.directories), SuiteDiff.lines, SuiteDiff.json, arguments)
    runs = [read_compared_run(directory) for directory in arguments.directories]
    return _print(compare_runs(runs[0], runs[1], confidence), compared_lines, compared_json, arguments)


def _print(
    found: Found, lines: Callable[[Found], Iterator[str]], as_json: Callable[[Found], dict[str, Any]],
    arguments: argparse.Namespace,
) -> int:  # fmt: skip
    """Print a comparison in the requested format, with the result of --fail-below. Returns the exit code."""
    from pytest_ddpscale.compare.compare_text import wrapped
    from pytest_ddpscale.run.strict_json import strict_json

    sentences, gate = _gate(found, arguments.fail_below, arguments.allow_missing)
    if arguments.format == "json":
        print(strict_json(as_json(found) | gate))
    else:
        answer, *others = lines(found)
        print("\n".join([answer, *(line for sentence in sentences for line in wrapped(sentence)), *others]))
    return WORSE if gate["fails"] else 0


def _gate(found: Gated, share: float | None, allows_missing: bool) -> tuple[list[str], dict[str, Any]]:
    """What --fail-below says, a sentence for each reason to fail, and its part of a JSON object.

    What was lost fails too, because an unmeasured value is not shown to be as good; not for a run that measures less on
    purpose, such as one node of many.
    """
    worse, lost = [] if share is None else found.worse_by(share), list(found.lost)
    limit, accepts = f"worse by more than {100 * (share or 0):g} %", " (--allow-missing accepts this)"
    reasons = [(limit, worse, "")]
    reasons += [("measured before, nothing to compare with it now", lost, accepts)] * (not allows_missing)
    said = [
        f"FAIL: {what}: {len(names)}: {first_few([*map(one_line, names)], _MOST_NAMES)}{more}"
        for what, names, more in reasons
        if names and share is not None
    ]
    allowed = f"; {len(lost)} measured before but not now: allowed" if lost else ""
    passes = [f"Nothing is certainly {limit}{allowed}."] * (share is not None)
    return said or passes, {"fail_below": share, "worse": worse, "lost": lost, "fails": bool(said)}
