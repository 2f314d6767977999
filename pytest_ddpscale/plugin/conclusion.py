"""The end of a run: what items show, what is concluded and written, and the exit code."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ddpscale.errors import BadInput, WritingError
from pytest_ddpscale.plugin.active import FORGOTTEN, JUDGEMENT, PROBLEMS, SETTINGS, SPOILED
from pytest_ddpscale.report.files import write_reports
from pytest_ddpscale.results.records import flops_of
from pytest_ddpscale.session.past_runs import remember

if TYPE_CHECKING:
    from pytest_ddpscale.results.verdicts import Judgement, Verdict
    from pytest_ddpscale.session.session import AcceptanceSession
    from pytest_ddpscale.thresholds.cases import AnyCase

JSON_REPORT = "pytest-report.json"


def show_verdict(
    item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport, case: AnyCase, verdict: Verdict | None
) -> None:
    """A failed requirement shows its explanation; one that only warns is an expected failure.

    A test that fails or is skipped for another reason than its verdict is remembered: the run is not accepted.
    """
    if verdict is None or verdict.passed or call.excinfo is None or not is_about(case, call.excinfo):
        item.config.stash.setdefault(SPOILED, []).append(item.name)
        return
    report.longrepr = str(call.excinfo.value).removesuffix("\nassert False").split("\nassert False\n")[0]
    forgiven = verdict.outcome == "not_measured" and item.config.stash[SETTINGS].allow_incomplete
    if verdict.severity == "warn" or forgiven:
        report.outcome = "skipped"
        report.wasxfail = f"{'warning' if verdict.severity == 'warn' else 'allowed'}: {verdict.reason}"


def finish(session: pytest.Session, exitstatus: int, acceptance: AcceptanceSession) -> None:
    """Conclude, write every report, and let the exit code follow the outcome."""
    interrupted = exitstatus in (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR)
    problems = _conclude(session.config, acceptance, interrupted)
    session.config.stash[PROBLEMS] = problems
    judgement = session.config.stash.get(JUDGEMENT, None)
    if exitstatus == pytest.ExitCode.OK and (
        problems or judgement is None or not _tolerable(session.config, judgement)
    ):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _tolerable(config: pytest.Config, judgement: Judgement) -> bool:
    """Whether the outcome lets pytest's exit code stay 0."""
    if judgement.outcome in ("accepted", "partial"):
        return True
    return config.stash[SETTINGS].allow_incomplete and judgement.lacks_only_measurements


def _conclude(config: pytest.Config, acceptance: AcceptanceSession, interrupted: bool) -> list[str]:
    """Judge what is left, write the reports. Returns what could not be written."""
    assert acceptance.run is not None
    closing = [acceptance.writing_problem] if acceptance.writing_problem else []
    try:
        acceptance.close_run("interrupted" if interrupted else "finished")
    except WritingError as error:
        closing.append(f"run.json could not be brought up to date: it {error.found}")
    except BadInput as error:
        return [str(error)]  # the run directory was broken meanwhile: nothing can be concluded
    spoiled = config.stash[SPOILED] if SPOILED in config.stash else []  # noqa: SIM401 (mypy reads get otherwise)
    try:
        judgement = acceptance.conclude(interrupted=interrupted, spoiled=spoiled)
        source = acceptance.judged_run or acceptance.run
        record, plan, measurements = source.read_run(), source.read_plan(), source.read_measurements()
        flops_per_image = flops_of(source.read_records())
    except BadInput as error:
        return [*closing, str(error)]
    config.stash[JUDGEMENT] = judgement
    problems = closing + write_reports(acceptance.run, judgement, record, plan, measurements, flops_per_image)
    if (
        acceptance.judged_run is None
        and acceptance.history_file is not None
        and (why := remember(acceptance.history_file, acceptance.run, judgement, acceptance.evidence))
    ):
        config.stash[FORGOTTEN] = why
    return problems


def report_as_json(session: pytest.Session, acceptance: AcceptanceSession) -> None:
    """Have pytest-json-report write its view into the run directory too."""
    from pytest_jsonreport.plugin import JSONReport

    config = session.config
    if not config.pluginmanager.hasplugin("terminalreporter"):  # with -p no:terminal pytest-json-report cannot work
        return
    if getattr(config, "_json_report", None) is None and config.pluginmanager.hasplugin("pytest_jsonreport"):
        assert acceptance.run is not None
        config.option.json_report_verbosity = -1  # the summary names the run directory
        config.option.json_report_file = str(acceptance.run.path / JSON_REPORT)
        reporter = JSONReport(config)
        config.pluginmanager.register(reporter)
        reporter.pytest_configure(config)
        reporter.pytest_sessionstart(session)


def keep_json_report(config: pytest.Config, directory: Path) -> None:
    """Where the user has a JSON report written elsewhere, put a copy into the run directory."""
    reporter: Any = getattr(config, "_json_report", None)
    if getattr(reporter, "report", None) is None or (directory / JSON_REPORT).exists():
        return
    with contextlib.suppress(OSError):  # a copy of a view: the user's own file and verdicts.json are there
        reporter.save_report(str(directory / JSON_REPORT))


def is_about(case: AnyCase, excinfo: pytest.ExceptionInfo[BaseException]) -> bool:
    """Whether a test failed for its verdict, and not for an assertion of somebody's own beside it."""
    return excinfo.errisinstance(AssertionError) and case.id in str(excinfo.value)
