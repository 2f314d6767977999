"""pytest-report.json: pytest-json-report's view of a session, with its outcome; `user_properties` are the verdicts.

It is only a view, and nothing reads it. By itself pytest-json-report writes NaN, which is not valid JSON, and reports
a test as passed although the session was interrupted during it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ddpscale.errors import BadInput
from pytest_ddpscale.plugin.items import STATE

if TYPE_CHECKING:
    from pytest_ddpscale.session.evidence import EvidenceSource

JSON_REPORT = "pytest-report.json"


def report_as_json(session: pytest.Session, source: EvidenceSource) -> None:
    """Have pytest-json-report write into the run directory, and add our values to any report it writes."""
    from pytest_jsonreport.plugin import JSONReport

    config, plugins = session.config, session.config.pluginmanager
    if not plugins.hasplugin("terminalreporter"):  # pytest-json-report fails with -p no:terminal
        return
    if getattr(config, "_json_report", None) is None and plugins.hasplugin("pytest_jsonreport"):
        config.option.json_report_file, config.option.json_report_verbosity = "", -1  # we write it, and tell where
        reporter = JSONReport(config)
        plugins.register(reporter)
        reporter.pytest_configure(config)
        reporter.pytest_sessionstart(session)
    plugins.register(_Concluded(session, source))


class _Concluded:
    """Adds the outcome to the report."""

    def __init__(self, session: pytest.Session, source: EvidenceSource) -> None:
        self._state, self._source = session.config.stash[STATE], source
        self._passed = defaultdict[str, set[str]](set)  # stages, by test

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record what passed, because with --json-report-summary the report has counts but no tests."""
        self._passed[report.nodeid].add(report.when if report.passed else report.outcome)

    @pytest.hookimpl(optionalhook=True, trylast=True)  # after any other plugin that adds numbers
    def pytest_json_modifyreport(self, json_report: dict[str, Any]) -> None:
        """Add the outcome, turn interrupted tests into errors, and replace numbers that JSON lacks."""
        judgement = self._state.judgement
        outcome, lead, counts = None, "; ".join(self._state.problems), ""
        if judgement is not None:
            from pytest_ddpscale.report.causes import counts_text, headline

            outcome, lead, counts = judgement.outcome, headline(judgement), counts_text(judgement)
        # Copied, because other plugins show the same dictionary.
        concluded = {"outcome": outcome, "headline": lead, "requirements": counts, "sku": self._source.subject.sku}
        json_report["environment"] = {**json_report.get("environment", {}), **concluded}
        interrupted = {test for test, stages in self._passed.items() if stages < {"setup", "call", "teardown"}}
        for test in json_report.get("tests", ()):
            if test["nodeid"] in interrupted:
                test["outcome"] = "error"
        if interrupted:
            summary = json_report["summary"]
            summary["passed"] -= len(interrupted)
            summary["error"] = summary.get("error", 0) + len(interrupted)
        # As it would be written, with None in place of NaN and infinities.
        finite = json.loads(json.dumps(json_report, default=str), parse_constant=lambda _: None)
        json_report.clear()
        json_report.update(finite)
        if self._source.run is not None:
            with suppress(BadInput, OSError):  # only a view; verdicts.json exists
                self._source.run.write_json(self._source.run.path / JSON_REPORT, finite)
