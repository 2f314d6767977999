"""The end of items and of a run: their reports, the conclusion, report files, summary and exit code."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ddpscale.errors import BadInput, WritingError
from pytest_ddpscale.plugin.fixtures import RequirementNotMet, explained
from pytest_ddpscale.plugin.items import STATE, session_of, source_of
from pytest_ddpscale.report.explain import verdict_properties
from pytest_ddpscale.report.files import write_reports
from pytest_ddpscale.report.terminal import brief_lines, quiet_lines, table_lines, tested_line
from pytest_ddpscale.run.verdicts import Blocker
from pytest_ddpscale.util.printable import one_line, several_lines

if TYPE_CHECKING:
    from pytest_ddpscale.run.verdicts import Judgement
    from pytest_ddpscale.session.session import AcceptanceSession
    from pytest_ddpscale.thresholds.cases import AnyCase

_JUDGED_BY_US = "ddpscale_judged"  # marks reports of items that fail by their verdict
_SPOILED = "was skipped, or failed for a reason other than its verdict"
_COLOURS = {"header": "bold", "passed": "green", "failed": "red", "warned": "yellow", "undecided": "yellow"}


def record_verdict(item: pytest.Item, case: AnyCase) -> None:
    """Add the verdict's numbers to the item's properties, and what a failure explains to the output if it passed.

    JUnit XML and pytest-reportlog keep properties; pytest-html and allure show only output.
    """
    session = session_of(item.config)
    if (verdict := session.verdicts.get(case.id)) is None:
        return
    # An item that is repeated has them already.
    item.user_properties += [one for one in verdict_properties(verdict) if one not in item.user_properties]
    if verdict.passed:
        item.add_report_section("call", "stdout", f"{explained(session, case, verdict)}\n")


def show_verdict(item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport) -> None:
    """Show the explanation of a failed requirement; one that blocks nothing or is waived is an expected failure.

    A test that fails or is skipped for another reason than its verdict is recorded, and the run is not accepted.
    """
    state, raised = item.config.stash[STATE], call.excinfo.value if call.excinfo is not None else None
    if isinstance(raised, RequirementNotMet):
        verdict = raised.verdict
        report.longrepr = str(raised)
        setattr(report, _JUDGED_BY_US, True)
        if verdict.blocks(allows_unmeasured=state.settings.allow_incomplete):
            state.shown.append(verdict.id)
            return
        report.outcome = "skipped"
        report.wasxfail = (
            f"{verdict.waiver or ('warning' if verdict.severity == 'warn' else 'allowed')}: {one_line(verdict.reason)}"
        )
        return
    why = _SPOILED
    # pytest-timeout, and others, call pytest.fail where the test happens to be.
    if isinstance(raised, TimeoutError | pytest.fail.Exception) and re.search("(?i)time-?out", repr(raised)):
        why = f"ran into a time-out: {one_line(str(raised)).rstrip('.')}"
    state.spoiled.append(Blocker("test", item.name, why))
    if report.failed:
        state.shown.append(item.name)


def finish(session: pytest.Session, exitstatus: int, acceptance: AcceptanceSession) -> None:
    """Conclude, write all reports, and set the exit code by the outcome."""
    interrupted = exitstatus in (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR)
    state, source = session.config.stash[STATE], acceptance.source
    assert source.run is not None
    state.problems = [source.writing_problem] if source.writing_problem else []
    try:
        try:
            source.close("interrupted" if interrupted else "finished")
        except WritingError as error:
            state.problems.append(f"run.json could not be updated: it {error.found}")
        stopped = one_line(str(session.shouldstop or session.shouldfail or ""))
        judgement = acceptance.conclude(interrupted=interrupted, spoiled=state.spoiled, stopped=stopped)
        record = source.measured_run.read_run()
        evidence = source.measured_so_far()
    except BadInput as error:  # the run directory broke meanwhile, so nothing can be concluded
        state.problems.append(str(error))
    else:
        state.judgement, state.record = judgement, record
        state.problems += write_reports(source.run, judgement, record, evidence)
        state.forgotten = acceptance.remember(judgement)
    if exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        return  # pytest itself reports that it did not finish
    if state.judgement is not None:
        _show_blockers(session, state.judgement)
    if state.problems or state.judgement is None or (state.judgement.blockers and not state.judgement.rehearsed):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _show_blockers(session: pytest.Session, judgement: Judgement) -> None:
    """Have pytest count blockers of acceptance that no item has shown as a failure, in a rehearsal as expected."""
    shown, plugins = Counter(session.config.stash[STATE].shown), session.config.pluginmanager
    # Without the terminal reporter, which would show progress beyond 100 %.
    terminal: Any = plugins.getplugin("terminalreporter")
    log = plugins.subset_hook_caller("pytest_runtest_logreport", [terminal])
    verdicts = {verdict.id: verdict for verdict in judgement.verdicts}
    for blocker in judgement.blockers:
        name = blocker.name
        if shown[name]:
            shown[name] -= 1
            continue
        text = f"not accepted: {several_lines(blocker.reason)}"
        properties: Any = verdict_properties(verdicts[name]) if name in verdicts else ()
        where = ("ddpscale", None, name)
        report = pytest.TestReport(f"ddpscale::{name}", where, {}, "failed", text, "call", user_properties=properties)
        setattr(report, _JUDGED_BY_US, True)
        if judgement.rehearsed:
            report.outcome, report.wasxfail = "skipped", f"rehearsal: {text}"
        log(report=report)
        if terminal is not None:
            terminal.stats.setdefault("xfailed" if judgement.rehearsed else "failed", []).append(report)


def summarized(reporter: pytest.TerminalReporter, config: pytest.Config) -> Generator[None, None, None]:
    """Without -v let pytest print failures only of a site's own tests; our summary, after it, covers the others."""
    kept = dict(reporter.stats)
    if config.get_verbosity() <= 0:
        for name, reports in kept.items():
            reporter.stats[name] = [report for report in reports if not hasattr(report, _JUDGED_BY_US)]
    try:
        yield
    finally:
        reporter.stats.update(kept)
    print_summary(reporter, config)


def print_summary(reporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the outcome with its cause and the report's path; unless -q, what blocks acceptance; with -v everything."""
    state, run, verbosity = config.stash[STATE], source_of(config).run, config.get_verbosity()
    judgement = state.judgement
    assert judgement is not None
    lines_of = quiet_lines if verbosity < 0 else table_lines if verbosity > 0 else brief_lines
    if verbosity >= 0:
        reporter.write_sep("=", f"ddpscale: {judgement.sku}", bold=True)
    for line, style in lines_of(judgement, reporter._tw.fullwidth, state.record):
        reporter.write_line(line, **{_COLOURS[style]: True} if style else {})
    if verbosity >= 0 and (tested := tested_line(judgement, state.record)):
        reporter.write_line(tested)
    if run is not None and (run.path / "report.html").exists():
        reporter.write_line(f"report: {run.path / 'report.html'}")
    for problem in state.problems:
        reporter.write_line(problem, red=True)
    if state.forgotten:
        reporter.write_line(state.forgotten, yellow=True)
