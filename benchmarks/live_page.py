"""CPU time of report.html while measuring, in the process that gathers records.

    python benchmarks/live_page.py RUN_DIR… --json live_page.json

The records of each run are heard as in a session that measures it. Shown are the CPU time of one refresh of the
progress, which happens every 10 s also while blocks are timed, its share of a core, and that of a whole page, which is
rendered with the plan and after studies. Medians of several.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from reporting import argument_parser, keep, positive_int, table

from pytest_ddpscale.report.files import live_page, write_live_page
from pytest_ddpscale.report.while_measuring import REFRESH_S, Progress
from pytest_ddpscale.run.evidence import read_evidence
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.verdicts import read_judgement

PAGES = 5


def measured(path: Path, refreshes: int) -> dict[str, float]:
    """Milliseconds of CPU and bytes, of one run."""
    run = RunDirectory.open(path)
    judgement, record, evidence = read_judgement(run.verdicts_json), run.read_run(), read_evidence(run)
    rendered: list[str] = []
    page_ms = _median_ms(PAGES, lambda: rendered.append(live_page(judgement, record, evidence)))
    progress = Progress(evidence.plan)
    for one in run.read_records():
        progress(one)

    def refresh() -> None:
        write_live_page(folder, rendered[0], progress.section(record.started_at))

    with tempfile.TemporaryDirectory(prefix="live-page-") as name:
        folder = RunDirectory.create(Path(name) / "run")
        refresh_ms = _median_ms(refreshes, refresh)
    return {
        "ranks": float(evidence.plan.world_size), "refresh_ms": refresh_ms, "page_ms": page_ms,
        "page_kb": len(rendered[0].encode()) / 1e3,
    }  # fmt: skip


def _median_ms(times: int, work: Callable[[], object]) -> float:
    taken = []
    for _ in range(times):
        began_s = time.process_time()
        work()
        taken.append(time.process_time() - began_s)
    return 1e3 * statistics.median(taken)


def main() -> int:
    """Run the script. Returns its exit code."""
    parser = argument_parser(__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN_DIR", help="judged runs")
    parser.add_argument("--refreshes", type=positive_int, default=50, help="of each run (%(default)s)")
    arguments = parser.parse_args()
    found = {str(path): measured(path, arguments.refreshes) for path in arguments.runs}
    rows = [
        (
            path, f"{one['ranks']:.0f}", f"{one['page_kb']:.0f}",
            f"{one['refresh_ms']:.1f}", f"{one['refresh_ms'] / 1e3 / REFRESH_S:.2%}", f"{one['page_ms']:.0f}",
        )
        for path, one in found.items()
    ]  # fmt: skip
    titles = ("run", "ranks", "page, kB", "refresh, ms", "of a core", "whole page, ms")
    print(table(titles, rows))
    keep(arguments.json, "live_page", found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
