"""The run.json of a suite."""

from __future__ import annotations

from pathlib import Path

from pytest_ddpscale.results.run_json import RunRecord, ThresholdsUsed

SUITE_RECORD = RunRecord(
    sku="cpu", status="finished", started_at="2026-11-22T10:00:00+00:00", argv=("ddpscale", "suite", "<b>"),
    thresholds=ThresholdsUsed(str(Path("thresholds.yaml")), "0" * 64), versions={"torch": "2.15"},
)  # fmt: skip
