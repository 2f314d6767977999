"""pytest-report.json: what pytest-json-report writes of a session, with what was concluded beside each test.

It is a view, and nothing is concluded from it. Left alone pytest-json-report writes NaN, which is no JSON, and calls a
test passed in the middle of which the session was interrupted.
"""

from __future__ import annotations

import contextlib
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ddpscale.plugin.active import TOLD
from pytest_ddpscale.plugin.selection import case_of

if TYPE_CHECKING:
    from pytest_ddpscale.results.verdicts import Verdict
    from pytest_ddpscale.session.sources import EvidenceSource

JSON_REPORT = "pytest-report.json"


def report_as_json(session: pytest.Session, source: EvidenceSource) -> None:
    """Have pytest-json-report write its view into the run directory too, and any view of its with our values."""
    from pytest_jsonreport.plugin import JSONReport

    config = session.config
    if not config.pluginmanager.hasplugin("terminalreporter"):  # with -p no:terminal pytest-json-report cannot work
        return
    if getattr(config, "_json_report", None) is None and config.pluginmanager.hasplugin("pytest_jsonreport"):
        assert source.run is not None
        config.option.json_report_verbosity = -1  # the summary names the run directory
        config.option.json_report_file = str(source.run.path / JSON_REPORT)
        reporter = JSONReport(config)
        config.pluginmanager.register(reporter)
        reporter.pytest_configure(config)
        reporter.pytest_sessionstart(session)
    if getattr(config, "_json_report", None) is not None:
        config.pluginmanager.register(_Concluded(session, source.subject.sku))


def keep_json_report(config: pytest.Config, directory: Path) -> None:
    """Where the user has a JSON report written elsewhere, put a copy into the run directory."""
    reporter: Any = getattr(config, "_json_report", None)
    if getattr(reporter, "report", None) is None or (directory / JSON_REPORT).exists():
        return
    with contextlib.suppress(OSError):  # a copy of a view: the user's own file and verdicts.json are there
        reporter.save_report(str(directory / JSON_REPORT))


class _Concluded:
    """Adds to the report what was concluded."""

    def __init__(self, session: pytest.Session, sku: str) -> None:
        self._told, self._sku = session.config.stash[TOLD], sku
        self._requirements = {item.nodeid: case.id for item in session.items if (case := case_of(item))}
        self._passed: dict[str, set[str]] = {}  # stages, by test

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remember what passed: with --json-report-summary the report has numbers of tests, and no tests."""
        stages = self._passed.setdefault(report.nodeid, set())
        stages.add(report.when if report.passed else report.outcome)

    @pytest.hookimpl(trylast=True)  # after whoever else adds a number
    def pytest_json_modifyreport(self, json_report: dict[str, Any]) -> None:
        """Values of each test, outcome of the run; no interrupted test passed; and no number that JSON lacks."""
        judgement, outcome, lead = self._told.judgement, None, "; ".join(self._told.problems)
        counts = ""
        verdicts: dict[str, Verdict] = {}
        if judgement is not None:
            from pytest_ddpscale.report.cause import headline
            from pytest_ddpscale.report.unmet import counts_text

            outcome, lead, counts = judgement.outcome, headline(judgement), counts_text(judgement)
            verdicts = {one.id: one for one in judgement.verdicts}
        # Other plugins show the same dictionary: it stays as it is.
        concluded = {"outcome": outcome, "headline": lead, "requirements": counts, "sku": self._sku}
        json_report["environment"] = {**json_report.get("environment", {}), **concluded}
        interrupted = {test for test, stages in self._passed.items() if stages < {"setup", "call", "teardown"}}
        for test in json_report.get("tests", ()):
            # What no item shows as a failure is reported by its requirement's name.
            name = self._requirements.get(test["nodeid"], test["nodeid"].removeprefix("ddpscale::"))
            if verdict := verdicts.get(name):
                test["metadata"] = {**test.get("metadata", {}), **_values(verdict)}
            if test["nodeid"] in interrupted:
                test["outcome"] = "error"
        if interrupted:
            summary = json_report["summary"]
            summary["passed"] -= len(interrupted)
            summary["error"] = summary.get("error", 0) + len(interrupted)
        finite = _finite(json_report)
        json_report.clear()
        json_report.update(finite)


def _values(verdict: Verdict) -> dict[str, object]:
    from pytest_ddpscale.report.text import culprit_text

    return {
        "id": verdict.id,
        "outcome": verdict.outcome,
        "value": verdict.value,
        "interval": verdict.interval,
        "bound": dict(verdict.bound),
        "unit": verdict.unit,
        "margin": verdict.margin,
        "culprits": [culprit_text(culprit, full_uuid=True) for culprit in verdict.culprits],
    }


def _finite(content: Any) -> Any:
    """The same with None in place of NaN and infinities."""
    if isinstance(content, dict):
        return {key: _finite(one) for key, one in content.items()}
    if isinstance(content, (list, tuple)):
        return [_finite(one) for one in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content
