"""The run.json of a suite's run, and what a terminal shows of results."""

from __future__ import annotations

from pathlib import Path

from pytest_ddpscale.run.run_json import RunRecord, ThresholdsUsed
from pytest_ddpscale.suites.results import Results

SUITE_RECORD = RunRecord(
    sku="cpu", status="finished", started_at="2026-11-22T10:00:00+00:00", argv=("ddpscale", "suite", "<b>"),
    thresholds=ThresholdsUsed(str(Path("thresholds.yaml")), "0" * 64), versions={"torch": "2.15"},
)  # fmt: skip


def text_of(*results: Results) -> str:
    """What a terminal shows of them, and of each figure what is said to those who do not see it."""
    lines = list[str]()
    for one in results:
        lines += [*one.lines(0.95), *(f"figure: {picture.alt}" for picture in one.drawn), ""]
    return "\n".join(lines)
