"""A suite that measured nothing."""

from __future__ import annotations

from pathlib import Path

from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.run_json import RunRecord, ThresholdsUsed
from pytest_ddpscale.run.table import Columns
from pytest_ddpscale.suites.suite import MeasuredSuite
from pytest_ddpscale.suites.suite_report import SuiteReport
from pytest_ddpscale.suites.suite_views import report_lines

SUITE_RECORD = RunRecord(
    sku="cpu", status="finished", started_at="2026-11-22T10:00:00+00:00", argv=("ddpscale", "suite", "<b>"),
    thresholds=ThresholdsUsed(str(Path("thresholds.yaml")), "0" * 64), versions={"torch": "2.15"},
)  # fmt: skip
SUITE = MeasuredSuite(Evidence(Plan("cpu", "cpu", ()), Columns(), {}), SUITE_RECORD, 0.95)


def text_of(report: SuiteReport) -> str:
    """What a terminal shows of it, and of each figure what is said to those who do not see it."""
    said = [f"figure: {one.alt}" for part in report.sections for one in part.figures if one]
    return "\n".join([*report_lines(report), *said]) + "\n"
