"""`ddpscale compare`. Every command imports this module, so heavy imports are inside functions."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.settings import OPTIONS, confidence_level, read_value, share_between
from pytest_ddpscale.util.command_parser import Commands
from pytest_ddpscale.util.listing import first_few
from pytest_ddpscale.util.printable import one_line


class Comparison(Protocol):
    """A comparison of two runs, of two runs of a suite, or of two reports."""

    @property
    def lost(self) -> Sequence[str]:
        """Values that were measured before but have nothing to compare with now."""

    def worse_by(self, share: float) -> list[str]:
        """Values that certainly are worse by more than `share`."""

    def lines(self) -> Iterator[str]:
        """The answer first."""

    def json(self) -> dict[str, Any]:
        """One JSON object."""


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
    """Print the comparison. Returns the exit code; raises BadInput.

    What was lost fails --fail-below too, because an unmeasured value is not shown to be as good; not for a run that
    measures less on purpose, such as one node of many.
    """
    from pytest_ddpscale.compare.comparing import COLUMNS, compare_runs, read_judged_run
    from pytest_ddpscale.run.strict_json import strict_json
    from pytest_ddpscale.suites.comparing import is_suite, read_suite_diff
    from pytest_ddpscale.suites.ddp_benchmark import read_diff, report_at
    from pytest_ddpscale.util.document import Line, text_lines

    share, paths = arguments.fail_below, arguments.directories
    if share is not None:
        share = read_value("--fail-below", share, share_between(0, 0.9999))
    elif arguments.allow_missing:
        raise OptionError("--allow-missing", "found without --fail-below", "both: without --fail-below nothing fails")
    confidence = read_value("--confidence", arguments.confidence, confidence_level)
    if len(paths) != 2:
        raise OptionError("RUN_DIR", f"found {len(paths)}", "two runs")
    comparison: Comparison
    if any(map(report_at, paths)):
        comparison = read_diff(paths, confidence)
    elif all(map(is_suite, paths)):
        comparison = read_suite_diff(paths)
    else:
        a, b = map(read_judged_run, paths)
        comparison = compare_runs(a, b, confidence)
    worse, lost, messages = [] if share is None else comparison.worse_by(share), list(comparison.lost), list[str]()
    if share is not None:
        limit, missing = f"worse by more than {100 * share:g} %", "measured before, nothing to compare with it now"
        fails = {limit: worse, f"{missing} (--allow-missing accepts this)": [] if arguments.allow_missing else lost}
        for kind, names in fails.items():
            few = first_few([*map(one_line, names)], _MOST_NAMES)
            messages += [f"FAIL: {kind}: {len(names)}: {few}"] * bool(names)
        allowed = f"; {len(lost)} measured before but not now: allowed" if lost else ""
        messages = messages or [f"Nothing is certainly {limit}{allowed}."]
    is_worse = any(message.startswith("FAIL") for message in messages)
    if arguments.format == "json":
        gate = {"fail_below": share, "worse": worse, "lost": lost, "fails": is_worse}
        print(strict_json(comparison.json() | gate))
    else:
        answer, *others = comparison.lines()
        print("\n".join([answer, *text_lines(*map(Line, messages), width=COLUMNS), *others]))
    return WORSE if is_worse else 0
