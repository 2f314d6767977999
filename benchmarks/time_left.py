"""Whether the upper end of the time left holds: the records of real runs, played again at the times they arrived.

    python benchmarks/time_left.py RUN_DIR… --json time_left.json

Every 10 s from the end of the first minute on, the range is compared with the time until the last study ended, as it
is shown: rounded outwards. A run counts as one in which the upper end held if it held each time. Runs that ended within
the first minute, and resumed ones, are left out.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from reporting import Share, argument_parser, keep, table

from pytest_ddpscale.errors import BadInput
from pytest_ddpscale.report.while_measuring import Progress, range_text
from pytest_ddpscale.run.block import Block
from pytest_ddpscale.run.record_lines import AnyRecord
from pytest_ddpscale.run.records import GangRecord, StudyStart
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.run_json import RunRecord, in_utc
from pytest_ddpscale.settings import duration_s

FIRST_S, EVERY_S = 60.0, 10.0
_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0}


def timed_records(run: RunDirectory) -> Iterator[tuple[float, AnyRecord]]:
    """Records with the Unix time at which they arrived, in order; without one, that of the record before."""
    records, latest_s = run.read_records(), in_utc(run.read_run().started_at).timestamp()
    starts_s = iter([one.unix_s for one in records if isinstance(one, StudyStart)])
    for record in records:
        if isinstance(record, GangRecord):  # its ranks begin a study at once
            latest_s = max(latest_s, next(starts_s, latest_s))
        elif isinstance(record, StudyStart):
            latest_s = max(latest_s, record.unix_s)
            starts_s = iter([one for one in starts_s if one > record.unix_s])
        elif isinstance(record, Block):
            latest_s = max(latest_s, float((record.each("began_unix_s") + record.each("seconds")).max()))
        yield latest_s, record


def said(run: RunDirectory) -> list[tuple[float, float, float, float]]:
    """Seconds since the start, shown lower and upper end, and what was left in fact, at each check."""
    arrivals, record = list(timed_records(run)), run.read_run()
    began_s, ended_s = in_utc(record.started_at).timestamp(), arrivals[-1][0]
    now_s = began_s
    left = Progress(run.read_plan(), now=lambda: now_s, budget_s=_budget_s(record))
    found = []
    check_s = began_s + FIRST_S
    for arrived_s, one in arrivals:
        while check_s < min(arrived_s, ended_s):
            now_s = check_s
            if (ends := left.seconds()) is not None:
                found.append((check_s - began_s, *_shown(*ends), ended_s - check_s))
            check_s += EVERY_S
        now_s = arrived_s
        left(one)
    return found


def _shown(low_s: float, high_s: float) -> tuple[float, float]:
    *lows, high, unit = re.findall(r"[\d.]+|h|min|s", range_text(low_s, high_s).replace("up to", "0"))
    return float(lows[0] if lows else high) * _SECONDS[unit], float(high) * _SECONDS[unit]


def _budget_s(record: RunRecord) -> float | None:
    asked = re.search(r"--ddp-budget=(\w+)", " ".join(record.argv))
    return duration_s(asked[1]) if asked else None


def main() -> int:
    """Run the script. Returns its exit code."""
    parser = argument_parser(__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN_DIR")
    arguments = parser.parse_args()
    rows, held, seen = [], 0, {}
    for path in arguments.runs:
        try:
            run = RunDirectory.open(path)
            checks = [] if run.read_run().resumed else said(run)
        except (BadInput, IndexError) as error:
            print(f"{path}: left out: {error}", file=sys.stderr)
            continue
        if not checks:
            continue
        seen[str(path)] = checks
        holds = [left_s <= high_s for _, _, high_s, left_s in checks]
        held += all(holds)
        _, low_s, high_s, left_s = checks[0]
        first = f"{low_s:.0f} to {high_s:.0f} s", f"{left_s:.0f} s"
        lower = sum(low_s <= left_s for _, low_s, _, left_s in checks)
        rows.append((str(path), *first, f"{sum(holds)} of {len(checks)}", f"{lower} of {len(checks)}"))
    print(table(("run", "after 60 s", "were left", "upper end held", "lower end held"), rows))
    if seen:
        print(f"\nupper end held throughout in {held} of {len(seen)} runs: {Share(held, len(seen))}")
    keep(arguments.json, "time_left", {"held": held, "runs": len(seen), "checks": seen})
    return 0


if __name__ == "__main__":
    sys.exit(main())
