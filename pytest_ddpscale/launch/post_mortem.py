"""Why a gang died: from the failure reports of its ranks, its exit code and its last words."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

_LAST_LINES = 12
# torchrun prefixes its own lines with time, thread and source position, which help nobody here.
_TORCHRUN_PREFIX = re.compile(r"^[WEI]\d{4} [\d:.]+ \d+ \S+\] (\[default\d+\]:)?")


def failure_reports(log_dir: Path, since_unix_s: float) -> list[dict[str, Any]]:
    """What failing ranks wrote about themselves since the gang was started, first failure first."""
    reports = []
    for path in sorted(log_dir.glob("rank-*.error.json")):
        try:
            report = json.loads(path.read_text(encoding="utf-8"))
            if report["unix_s"] >= since_unix_s:
                reports.append(report)
        except (OSError, ValueError, KeyError, TypeError):
            continue  # torn by the kill that followed: the log still has its words
    return sorted(reports, key=lambda report: float(report["unix_s"]))


def describe(reports: list[dict[str, Any]], exit_code: int | None, torchrun_log: Path, rank_logs: Path) -> str:
    """One paragraph: who failed, where and with what; else the exit code and the last output.

    Args:
        reports: from `failure_reports`.
        exit_code: of the launcher; None if it was stopped.
        torchrun_log: the launcher's own output.
        rank_logs: the folder in which torchrun keeps each rank's output.
    """
    if reports:
        first = reports[0]
        place = ", ".join(f"{name} {first[name]}" for name in ("study", "arm", "round") if first.get(name) is not None)
        more = len(reports) - 1
        others = f"; {more} more {'rank' if more == 1 else 'ranks'} failed after it" if more else ""
        return (
            f"rank {first['rank']} on {first['host']} failed in {first['phase']}"
            f"{f' ({place})' if place else ''}: {first['type']}: {first['message']}{others}"
        )
    ended = "was stopped" if exit_code is None else f"exited with code {exit_code}"
    return (
        f"the gang {ended} without a report from a rank; last output:\n{last_lines(_speaking(rank_logs, torchrun_log))}"
    )


def _speaking(rank_logs: Path, torchrun_log: Path) -> Path:
    """The log most likely to hold the reason: a rank's errors, else torchrun's own output."""
    spoken = [path for path in sorted(rank_logs.glob("**/stderr.log")) if path.stat().st_size > 0]
    return spoken[0] if spoken else torchrun_log


def last_lines(path: Path) -> str:
    """The end of a log, indented, without torchrun's prefixes."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()[-_LAST_LINES:]
    except OSError as error:
        return f"  (no log: {error.strerror})"
    return "\n".join("  " + _TORCHRUN_PREFIX.sub("", line) for line in lines) or "  (empty)"
