"""The end of items and of a run: their reports, the conclusion, report files, summary and exit code."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ddpscale.errors import BadInput, RunDirectoryError, WritingError
from pytest_ddpscale.plugin.fixtures import RequirementNotMet
from pytest_ddpscale.plugin.items import SESSION, SETTINGS, SOURCE, TOLD, may_measure
from pytest_ddpscale.report.explain import explain, verdict_properties
from pytest_ddpscale.report.files import write_reports
from pytest_ddpscale.report.terminal import brief_lines, quiet_lines, table_lines, tested_line
from pytest_ddpscale.run.verdicts import Blocker
from pytest_ddpscale.util.printable import one_line, shell_line

if TYPE_CHECKING:
    from pytest_ddpscale.run.verdicts import Judgement
    from pytest_ddpscale.session.session import AcceptanceSession
    from pytest_ddpscale.thresholds.cases import AnyCase

_JUDGED_BY_US = "ddpscale_judged"  # marks reports of items that fail by their verdict
_SPOILED = "was skipped, or failed for a reason other than its verdict"
_COLOURS: dict[str, dict[str, bool]] = {
    "": {}, "header": {"bold": True}, "passed": {"green": True},
    "failed": {"red": True}, "warned": {"yellow": True}, "undecided": {"yellow": True},
}  # fmt: skip


def record_verdict(item: pytest.Item, case: AnyCase) -> None:
    """Add the verdict's numbers to the item's properties, and what a failure explains to the output if it passed.

    JUnit XML and pytest-reportlog keep properties; pytest-html and allure show only output.
    """
    session = item.config.stash[SESSION]
    if (verdict := session.verdicts.get(case.id)) is None:
        return
    # An item that is repeated has them already.
    item.user_properties += [one for one in verdict_properties(verdict) if one not in item.user_properties]
    if verdict.passed:
        explained = explain(verdict, case.where, shell_line([*session.source.again, "-k", case.id]))
        item.add_report_section("call", "stdout", f"{explained}\n")


def show_verdict(item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport) -> None:
    """Show the explanation of a failed requirement; one that blocks nothing or is waived is an expected failure.

    A test that fails or is skipped for another reason than its verdict is recorded, and the run is not accepted.
    """
    told, raised = item.config.stash[TOLD], call.excinfo.value if call.excinfo is not None else None
    if isinstance(raised, RequirementNotMet):
        verdict = raised.verdict
        report.longrepr = str(raised)
        setattr(report, _JUDGED_BY_US, True)
        if verdict.blocks(allows_unmeasured=item.config.stash[SETTINGS].allow_incomplete):
            told.shown.append(verdict.id)
            return
        report.outcome = "skipped"
        report.wasxfail = (
            f"{verdict.waiver or ('warning' if verdict.severity == 'warn' else 'allowed')}: {verdict.reason}"
        )
        return
    # pytest-timeout, and others, call pytest.fail where the test happens to be.
    if isinstance(raised, TimeoutError) or (
        isinstance(raised, pytest.fail.Exception) and re.search("time-?out", str(raised), re.IGNORECASE)
    ):
        why = f"ran into a time-out: {one_line(str(raised)).rstrip('.')}"
        told.timed_out = why if may_measure(item) else told.timed_out
    else:
        # Once measuring has been ended, no later test can read its records.
        why = told.timed_out if told.timed_out and isinstance(raised, RunDirectoryError) else _SPOILED
    told.spoiled.append(Blocker("test", item.name, why))
    if report.failed:
        told.shown.append(item.name)


def finish(session: pytest.Session, exitstatus: int, acceptance: AcceptanceSession) -> None:
    """Conclude, write all reports, and set the exit code by the outcome."""
    interrupted = exitstatus in (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR)
    told, stopped = session.config.stash[TOLD], session.shouldstop or session.shouldfail
    told.problems = _conclude(session, acceptance, interrupted, one_line(str(stopped)) if stopped else "")
    judgement = told.judgement
    if exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        return  # pytest itself reports that it did not finish
    if judgement is not None:
        _show_blockers(session, judgement)
    if told.problems or judgement is None or (judgement.blockers and not judgement.rehearsed):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _conclude(session: pytest.Session, acceptance: AcceptanceSession, interrupted: bool, stopped: str) -> list[str]:
    """Judge the remaining requirements and write the reports. Returns errors."""
    told, source = session.config.stash[TOLD], acceptance.source
    assert source.run is not None
    closing = [source.writing_problem] if source.writing_problem else []
    try:
        source.close("interrupted" if interrupted else "finished")
    except WritingError as error:
        closing.append(f"run.json could not be updated: it {error.found}")
    except BadInput as error:
        return [str(error)]  # the run directory broke meanwhile, so nothing can be concluded
    try:
        judgement = acceptance.conclude(interrupted=interrupted, spoiled=told.spoiled, stopped=stopped)
        record = source.measured_run.read_run()
        evidence = source.measured_so_far() or acceptance.subject.evidence_of_nothing(source.plan)
    except BadInput as error:
        return [*closing, str(error)]
    told.judgement, told.record = judgement, record
    problems = closing + write_reports(source.run, judgement, record, evidence)
    told.forgotten = acceptance.remember(judgement)
    return problems


def _show_blockers(session: pytest.Session, judgement: Judgement) -> None:
    """Have pytest count blockers of acceptance that no item has shown as a failure, in a rehearsal as expected."""
    shown, terminal = Counter(session.config.stash[TOLD].shown), _terminal(session)
    # Without the terminal reporter, which would show progress beyond 100 %.
    log = session.config.pluginmanager.subset_hook_caller("pytest_runtest_logreport", [terminal])
    verdicts = {one.id: one for one in judgement.verdicts}
    for blocker in judgement.blockers:
        if shown[blocker.name]:
            shown[blocker.name] -= 1
            continue
        text = f"not accepted: {blocker.reason}"
        properties = verdict_properties(verdicts[blocker.name]) if blocker.kind == "requirement" else []
        report = _own_report(blocker.name, text, properties)
        if judgement.rehearsed:
            report.outcome, report.wasxfail = "skipped", f"rehearsal: {text}"
        log(report=report)
        if terminal is not None:
            terminal.stats.setdefault("xfailed" if judgement.rehearsed else "failed", []).append(report)


def _terminal(session: pytest.Session) -> Any:
    return session.config.pluginmanager.getplugin("terminalreporter")


def _own_report(name: str, text: str, properties: Any = ()) -> pytest.TestReport:
    """A report of a failure that no item has shown."""
    where = ("ddpscale", None, name)
    report = pytest.TestReport(f"ddpscale::{name}", where, {}, "failed", text, "call", user_properties=properties)
    setattr(report, _JUDGED_BY_US, True)
    return report


@contextmanager
def only_other_failures(reporter: pytest.TerminalReporter) -> Iterator[None]:
    """Let pytest print failures only of a site's own tests; our summary covers the others."""
    kept = dict(reporter.stats)
    for name, reports in kept.items():
        reporter.stats[name] = [one for one in reports if not getattr(one, _JUDGED_BY_US, False)]
    try:
        yield
    finally:
        reporter.stats.update(kept)


def print_summary(reporter: pytest.TerminalReporter, config: pytest.Config, judgement: Judgement) -> None:
    """Print the outcome with its cause and the report's path; unless -q, what blocks acceptance; with -v everything."""
    told, run, verbosity = config.stash[TOLD], config.stash[SOURCE].run, config.get_verbosity()
    lines_of = quiet_lines if verbosity < 0 else table_lines if verbosity > 0 else brief_lines
    if verbosity >= 0:
        reporter.write_sep("=", f"ddpscale: {judgement.sku}", bold=True)
    for line, style in lines_of(judgement, reporter._tw.fullwidth, told.record):
        reporter.write_line(line, **_COLOURS[style])
    if verbosity >= 0 and (tested := tested_line(judgement, told.record)):
        reporter.write_line(tested)
    if run is not None and (run.path / "report.html").exists():
        reporter.write_line(f"report: {run.path / 'report.html'}")
    for problem in told.problems:
        reporter.write_line(problem, red=True)
    if told.forgotten:
        reporter.write_line(told.forgotten, yellow=True)
