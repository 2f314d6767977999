"""pytest hooks, and nothing else: each asks the session for what it needs.

Loading this module costs a few milliseconds: everything heavy is imported where it is used.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ddpscale.errors import BadInput
from pytest_ddpscale.fixtures import JudgeableRequirement, requirement, run  # noqa: F401 (pytest finds fixtures here)
from pytest_ddpscale.settings import OPTIONS, Settings, settings_from

if TYPE_CHECKING:
    from pytest_ddpscale.launch.supervisor import Listener
    from pytest_ddpscale.session import AcceptanceSession
    from pytest_ddpscale.thresholds.cases import Case
    from pytest_ddpscale.verdict.verdict import Judgement

SETTINGS: pytest.StashKey[Settings] = pytest.StashKey()
SESSION: pytest.StashKey[AcceptanceSession] = pytest.StashKey()
JUDGEMENT: pytest.StashKey[Judgement] = pytest.StashKey()
PROBLEMS: pytest.StashKey[list[str]] = pytest.StashKey()
SPOILED: pytest.StashKey[list[str]] = pytest.StashKey()
REFUSAL: pytest.StashKey[pytest.UsageError] = pytest.StashKey()
WORKERS_REFUSAL: pytest.StashKey[str] = pytest.StashKey()
ACCEPTANCE = "acceptance"
LOG_EVERY_S = 10.0
JSON_REPORT = "pytest-report.json"
_REFUSED = "ddpscale_refusal"  # where an xdist worker leaves why it refused
# With any of these pytest runs no test, so that nothing is measured or concluded.
_NOTHING_RUNS = ("collectonly", "showfixtures", "show_fixtures_per_test", "setuponly", "setupplan")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options on the command line, each also an ini key."""
    group = parser.getgroup("ddpscale", "GPU cluster acceptance")
    for option in OPTIONS:
        if option.metavar is None:
            group.addoption(option.flag, action="store_true", default=False, help=option.help)
        else:
            group.addoption(option.flag, metavar=option.metavar, default=None, help=option.help)
        parser.addini(option.name, option.help, default="")


def pytest_configure(config: pytest.Config) -> None:
    """Read the settings; with a SKU named and no test named, run the packaged acceptance tests."""
    config.addinivalue_line("markers", "requirement(metric): one item per requirement of that metric")
    try:
        settings = settings_from(vars(config.option), {option.name: config.getini(option.name) for option in OPTIONS})
    except BadInput as error:
        raise pytest.UsageError(str(error)) from None
    config.stash[SETTINGS] = settings
    if settings.sku_was_given or settings.judge is not None:
        _refuse_xdist(config)
        _default_to_acceptance_tests(config)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One item per requirement of the marked metrics."""
    if not _asks_for_requirement(metafunc.definition) or REFUSAL in metafunc.config.stash:
        return
    try:
        metrics = _marked_metrics(metafunc.definition)
        cases = [case for case in session_of(metafunc.config).cases if case.requirement.metric in metrics]
    except pytest.UsageError as error:
        # Raised here, pytest would print it as a traceback for each test module.
        metafunc.config.stash[REFUSAL] = error
        cases = []
    metafunc.parametrize("requirement", cases, ids=[case.name for case in cases], indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out metrics the SKU has no requirement for, and world sizes that are not wanted."""
    if REFUSAL in config.stash:
        items.clear()
        _refuse(config, config.stash[REFUSAL])
    items[:] = [item for item in items if not _is_empty(item)]
    wanted = config.stash[SETTINGS].world_sizes
    if wanted is None:
        return
    unwanted = [item for item in items if (case := case_of(item)) and case.requirement.world_size not in wanted]
    if unwanted:
        config.hook.pytest_deselected(items=unwanted)
        items[:] = [item for item in items if item not in unwanted]


@pytest.hookimpl(tryfirst=True)  # before the terminal reporter prints the plan
def pytest_collection_finish(session: pytest.Session) -> None:
    """Plan exactly what was selected, and open the run directory."""
    cases = [case for item in session.items if (case := case_of(item))]
    if not cases:
        return
    acceptance = session_of(session.config)
    try:
        acceptance.select(cases)
        if not _nothing_runs(session.config):
            acceptance.open_run()
            _report_as_json(session, acceptance)
    except BadInput as error:
        raise pytest.UsageError(str(error)) from None


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    """Print the plan."""
    acceptance = config.stash.get(SESSION, None)
    if acceptance is None or acceptance.plan is None:
        return []
    from pytest_ddpscale.report.plan_text import plan_lines

    by = f"ddpscale judges by {acceptance.thresholds.path}"
    if acceptance.judged_run is not None:
        return [f"{by} what {acceptance.judged_run.path} holds: nothing is measured"]
    plan = plan_lines(
        acceptance.plan,
        len(acceptance.selected),
        isolate=acceptance.site.settings.isolate,
        img_per_s=acceptance.expected_img_per_s,
    )
    return [by, *plan]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed requirement shows its explanation; one that only warns is an expected failure."""
    report = yield
    case = case_of(item)
    was_skipped = report.skipped and not hasattr(report, "wasxfail")
    if case is None or not (report.failed or was_skipped):
        return report
    verdict = session_of(item.config).verdicts.get(case.id)
    if verdict is None or verdict.passed or call.excinfo is None or not _is_about(case, call.excinfo):
        item.config.stash.setdefault(SPOILED, []).append(item.name)
        return report
    report.longrepr = str(call.excinfo.value).removesuffix("\nassert False").split("\nassert False\n")[0]
    forgiven = verdict.outcome == "not_measured" and item.config.stash[SETTINGS].allow_incomplete
    if verdict.severity == "warn" or forgiven:
        report.outcome = "skipped"
        report.wasxfail = f"{'warning' if verdict.severity == 'warn' else 'allowed'}: {verdict.reason}"
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)  # before other reports, which carry the exit code
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> Generator[None, object, object]:
    """Conclude, write every report, and let the exit code follow the outcome."""
    if WORKERS_REFUSAL in session.config.stash:
        session.exitstatus = pytest.ExitCode.USAGE_ERROR
    acceptance = session.config.stash.get(SESSION, None)
    if acceptance is None or acceptance.run is None:
        return (yield)
    _finish(session, exitstatus, acceptance)
    result = yield
    _keep_json_report(session.config, acceptance.run.path)
    return result


def _finish(session: pytest.Session, exitstatus: int, acceptance: AcceptanceSession) -> None:
    interrupted = exitstatus in (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR)
    problems = _conclude(session.config, acceptance, interrupted)
    session.config.stash[PROBLEMS] = problems
    outcome = session.config.stash[JUDGEMENT].outcome
    tolerated = outcome == "incomplete" and session.config.stash[SETTINGS].allow_incomplete
    not_accepted = outcome in ("rejected", "incomplete") and not tolerated
    if exitstatus == pytest.ExitCode.OK and (not_accepted or problems):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The table of requirements, and one line: the outcome and why."""
    if WORKERS_REFUSAL in config.stash:
        terminalreporter.write_line(f"ERROR: {config.stash[WORKERS_REFUSAL]}", red=True)
    judgement = config.stash.get(JUDGEMENT, None)
    if judgement is None:
        return
    from pytest_ddpscale.report.terminal import table_lines

    colours: dict[str, dict[str, bool]] = {
        "": {}, "header": {"bold": True}, "passed": {"green": True},
        "failed": {"red": True}, "warned": {"yellow": True}, "undecided": {"yellow": True},
    }  # fmt: skip
    terminalreporter.section(f"ddpscale: {judgement.sku}", sep="=", bold=True)
    for line, style in table_lines(judgement, terminalreporter._tw.fullwidth):
        terminalreporter.write_line(line, **colours[style])
    run_directory = session_of(config).run
    if run_directory is not None:
        terminalreporter.write_line(f"report: {run_directory.path / 'report.md'}")
    for problem in config.stash.get(PROBLEMS, []):
        terminalreporter.write_line(problem, red=True)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over from an xdist worker why it refused: raised there, it would be an internal error."""
    if message := getattr(node, "workeroutput", {}).get(_REFUSED):
        node.config.stash[WORKERS_REFUSAL] = message


def session_of(config: pytest.Config) -> AcceptanceSession:
    """The acceptance session, opened when it is first needed.

    Raises:
        pytest.UsageError: thresholds, SKU or options are not usable.
    """
    if SESSION not in config.stash:
        from pytest_ddpscale.session import Site, open_session

        _refuse_xdist(config)
        site = Site(
            config.stash[SETTINGS],
            config.rootpath,
            Path(config.invocation_params.dir),
            tuple(sys.argv),
            _nothing_runs(config),
        )
        try:
            config.stash[SESSION] = open_session(site)
        except BadInput as error:
            raise pytest.UsageError(str(error)) from None
    return config.stash[SESSION]


def case_of(item: pytest.Item) -> Case | None:
    """The requirement that an item judges; None if it judges none."""
    callspec = getattr(item, "callspec", None)
    case = callspec.params.get("requirement") if callspec is not None else None
    return case if hasattr(case, "requirement") else None


def rerun_command(item: pytest.Item) -> str:
    """The command that measures just this requirement again, from the directory pytest was started in."""
    settings = item.config.stash[SETTINGS]
    acceptance = session_of(item.config)
    command = ["pytest", f"--gpu-sku={acceptance.sku}"]
    if settings.thresholds is not None:
        command.append(f"--thresholds={settings.thresholds}")
    if settings.gpus_per_node is not None:
        command.append(f"--ddp-gpus-per-node={settings.gpus_per_node}")
    path = os.path.relpath(item.path, item.config.invocation_params.dir)
    return shlex.join([*command, f"{path}::{item.name}"])


def progress_listener(config: pytest.Config) -> Listener:
    """Shows progress on the terminal, past pytest's capturing."""
    from pytest_ddpscale.report.progress import Progress

    reporter: Any = config.pluginmanager.getplugin("terminalreporter")
    capture: Any = config.pluginmanager.getplugin("capturemanager")
    plan = session_of(config).plan
    if reporter is None or capture is None or plan is None:
        return lambda record: None

    last_shown_s = 0.0

    def show(line: str, passing: bool) -> None:
        nonlocal last_shown_s
        if passing and not reporter.isatty and time.monotonic() - last_shown_s < LOG_EVERY_S:
            return  # a log file keeps every line: fewer will do
        last_shown_s = time.monotonic()
        with capture.global_and_fixture_disabled():
            if not passing:
                reporter.ensure_newline()
                reporter.write_line(f"  {line}")
            elif reporter.isatty:
                reporter.rewrite(f"  {line}"[: reporter._tw.fullwidth - 1], erase=True)
            else:
                reporter.ensure_newline()
                reporter.write_line(f"  {line}")

    return Progress(plan, show, img_per_s=session_of(config).expected_img_per_s)


def _nothing_runs(config: pytest.Config) -> bool:
    return any(getattr(config.option, name, False) for name in _NOTHING_RUNS)


def _refuse(config: pytest.Config, error: pytest.UsageError) -> None:
    worker_output = getattr(config, "workeroutput", None)
    if worker_output is None:
        raise error
    worker_output[_REFUSED] = str(error)


def _is_about(case: Case, excinfo: pytest.ExceptionInfo[BaseException]) -> bool:
    """Whether a test failed for its verdict, and not for an assertion of somebody's own beside it."""
    return excinfo.errisinstance(AssertionError) and case.id in str(excinfo.value)


def _asks_for_requirement(item: pytest.Item) -> bool:
    """Whether a test asks for `requirement` of this plugin, and not for one of its own project."""
    info: Any = getattr(item, "_fixtureinfo", None)
    fixtures: Any = info.name2fixturedefs.get("requirement", ()) if info is not None else ()
    return len(fixtures) > 0 and fixtures[-1].func.__module__ == JudgeableRequirement.__module__


def _marked_metrics(definition: pytest.Function) -> set[str]:
    """The metrics that a test's marks name.

    Raises:
        pytest.UsageError: none, or one that does not exist, so that a misspelt one cannot go unnoticed.
    """
    from pytest_ddpscale.plan.metric import METRICS

    marked = [name for mark in definition.iter_markers("requirement") for name in mark.args]
    unknown = [name for name in marked if str(name) not in METRICS]
    if marked and not unknown:
        return set(marked)
    found = f"is marked requirement({unknown[0]!r})" if unknown else "asks for `requirement` and does not say of what"
    known = ", ".join(METRICS)
    raise pytest.UsageError(
        f"{definition.nodeid} {found}; expected @pytest.mark.requirement(METRIC) with one of {known}."
    )


def _is_empty(item: pytest.Item) -> bool:
    """Whether pytest made this item for a metric without requirements."""
    callspec = getattr(item, "callspec", None)
    parametrized = callspec is not None and "requirement" in callspec.params and _asks_for_requirement(item)
    return parametrized and case_of(item) is None


def _default_to_acceptance_tests(config: pytest.Config) -> None:
    """``pytest --gpu-sku=b200`` anywhere: local acceptance tests if there are, else the packaged ones."""
    if config.args_source != pytest.Config.ArgsSource.INVOCATION_DIR:
        return
    from pytest_ddpscale.packaged import packaged

    local = Path(config.invocation_params.dir) / ACCEPTANCE
    config.args[:] = [str(local if local.is_dir() else packaged(ACCEPTANCE))]


def _refuse_xdist(config: pytest.Config) -> None:
    """Several pytest processes would measure against each other."""
    if hasattr(config, "workerinput") or config.getoption("numprocesses", None) or config.getoption("tx", None):
        raise pytest.UsageError(
            "pytest-xdist is active with workers; expected one pytest process, because measurements of several would "
            "disturb each other. Run without -n (torchrun starts the ranks), or with -p no:xdist."
        )


def _report_as_json(session: pytest.Session, acceptance: AcceptanceSession) -> None:
    """Have pytest-json-report write its view into the run directory too."""
    from pytest_jsonreport.plugin import JSONReport

    config = session.config
    if getattr(config, "_json_report", None) is None and config.pluginmanager.hasplugin("pytest_jsonreport"):
        assert acceptance.run is not None
        config.option.json_report_verbosity = -1  # the summary names the run directory
        config.option.json_report_file = str(acceptance.run.path / JSON_REPORT)
        reporter = JSONReport(config)
        config.pluginmanager.register(reporter)
        reporter.pytest_configure(config)
        reporter.pytest_sessionstart(session)


def _keep_json_report(config: pytest.Config, directory: Path) -> None:
    """Where the user has a JSON report written elsewhere, put a copy into the run directory."""
    reporter: Any = getattr(config, "_json_report", None)
    if getattr(reporter, "report", None) is None or (directory / JSON_REPORT).exists():
        return
    with contextlib.suppress(OSError):  # a copy of a view: the user's own file and verdicts.json are there
        reporter.save_report(str(directory / JSON_REPORT))


def _conclude(config: pytest.Config, acceptance: AcceptanceSession, interrupted: bool) -> list[str]:
    """Judge what is left, write the reports. Returns what could not be written."""
    from pytest_ddpscale.report.files import write_reports

    assert acceptance.run is not None
    try:
        acceptance.close_run("interrupted" if interrupted else "finished")
    except OSError as error:
        closing = [f"run.json could not be brought up to date: {error.strerror or error}"]
    else:
        closing = []
    spoiled = config.stash.get(SPOILED, [])
    judgement = acceptance.conclude(interrupted=interrupted, spoiled=spoiled)
    config.stash[JUDGEMENT] = judgement
    source = acceptance.judged_run or acceptance.run
    files = write_reports(acceptance.run, judgement, source.read_run(), source.read_plan(), source.read_measurements())
    return closing + files
