"""The pytest hooks; each asks the session for what it needs.

Loading this module costs a few milliseconds: everything heavy is imported where it is used.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpscale.errors import BadInput
from pytest_ddpscale.plugin.fixtures import requirement, run, verdict  # noqa: F401 (pytest finds fixtures here)
from pytest_ddpscale.plugin.items import (
    EMPTY,
    STATE,
    SessionState,
    asked_for,
    case_of,
    lift_time_limit,
    marked_metrics,
    nothing_runs,
    refuse_forks,
    refuse_options,
    session_of,
    source_of,
    usage_errors,
    uses,
)
from pytest_ddpscale.removed import REMOVED
from pytest_ddpscale.settings import OPTIONS, settings_from
from pytest_ddpscale.util.packaged import packaged

ACCEPTANCE = "acceptance"
_REFUSED = "ddpscale_refusal"  # key under which an xdist worker leaves its error
_NOTHING_ASKED = (
    "no test here uses `requirement`, so nothing would be judged. Name the tests: "
    "`pytest --gpu-sku=SKU --pyargs pytest_ddpscale.acceptance`, "
    "or copy them with `ddpscale init DIR`."
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the command-line options, each also an ini key."""
    group = parser.getgroup("ddpscale", "GPU cluster acceptance")
    for option in OPTIONS.values():
        settings: dict[str, Any] = {"action": "append" if option.repeats else "store", "metavar": option.metavar}
        if option.metavar is None:
            settings = {"action": "store_true"}
        elif option.alone:
            settings |= {"nargs": "?", "const": option.alone}
        group.addoption(option.flag, default=None, help=option.help, **settings)
        parser.addini(option.name, option.help, default="")


def pytest_load_initial_conftests(parser: pytest.Parser, args: list[str]) -> None:
    """Have pytest say what to type instead of an option that it refuses: one that went, or is misspelt."""
    from pytest_ddpscale.util.nearest import did_you_mean

    known = [option.flag for option in OPTIONS.values()]
    flags = [flag for arg in args if arg.startswith("--") and (flag := arg.partition("=")[0]) not in known]
    hints = [REMOVED.get(f"pytest {flag}") or did_you_mean(flag, known, 0.7).removeprefix("; ") for flag in flags]
    if any(hints):
        parser.extra_info["ddpscale"] = ", ".join(filter(None, hints))


@pytest.hookimpl(tryfirst=True)  # before plugins that are refused begin anything
def pytest_configure(config: pytest.Config) -> None:
    """Read the settings; if a SKU but no test is named, run the acceptance tests."""
    config.addinivalue_line("markers", "requirement(metric): one item per requirement of that metric")
    config.addinivalue_line("markers", "node_health: tests for a nightly check of one node, in minutes")
    ini = {option.name: config.getini(option.name) for option in OPTIONS.values()}
    with usage_errors():
        settings = settings_from(vars(config.option), ini)
    config.stash[STATE] = SessionState(settings)
    if settings.sku_was_given or settings.judge or settings.resume:
        refuse_options(config)
    # Only for a SKU on the command line: one in the ini file must not take over another project's `pytest`.
    if _was_asked(config):
        _default_to_acceptance_tests(config)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Generate one item per requirement of the marked metrics."""
    state = metafunc.config.stash[STATE]
    if not uses(metafunc.definition, "requirement") or state.refusal:
        return
    from pytest_ddpscale.thresholds.cases import nightly_uniformity

    try:
        metrics = marked_metrics(metafunc.definition)
        cases_of_run = source_of(metafunc.config).cases
        cases = [case for case in cases_of_run if case.requirement.metric in metrics]
        nightly = nightly_uniformity(cases_of_run)
    except pytest.UsageError as error:
        # If raised here, pytest would print a traceback for each test module.
        state.refusal, cases, nightly = error, [], []
    parameters = [pytest.param(case, marks=pytest.mark.node_health if case in nightly else ()) for case in cases]
    ids = [case.name for case in cases]
    metafunc.parametrize("requirement", parameters or [EMPTY], ids=ids or None, indirect=True)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Have ids of packaged tests begin with ``acceptance/`` anywhere, so they can be pasted; pytest drops the file's
    name outside of its root."""
    if not _was_asked(parent.config) or module_path.parent != packaged(ACCEPTANCE):
        return None
    module: pytest.Module = pytest.Module.from_parent(
        parent, path=module_path, nodeid=f"{ACCEPTANCE}/{module_path.name}"
    )
    return module


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Drop tests of metrics without requirements before pytest counts them."""
    report = yield
    if report.passed:
        report.result = [item for item in report.result if asked_for(item) is not EMPTY]
    return report


def pytest_itemcollected(item: pytest.Item) -> None:
    """Let ``-k`` select an item by its requirement's id, ``peak_memory_gib[resnet50-8gpu]``, as in reports."""
    lift_time_limit(item)
    case = case_of(item)
    if case is not None:
        item.extra_keyword_matches.add(case.id)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect world sizes that --ddp-world-sizes excludes."""
    state = config.stash[STATE]
    if refusal := state.refusal:
        items.clear()
        if not hasattr(config, "workeroutput"):
            raise refusal
        config.workeroutput[_REFUSED] = str(refusal)
    wanted = state.settings.world_sizes
    unsized = ("check", "node")  # requirements on nodes have no world size
    unwanted = [
        item for item in items if wanted is not None and (case := case_of(item))
        and case.requirement.definition.subject not in unsized and case.world_size not in wanted
    ]  # fmt: skip
    if unwanted:
        config.hook.pytest_deselected(items=unwanted)
        items[:] = [item for item in items if item not in unwanted]


@pytest.hookimpl(tryfirst=True)  # before the terminal reporter prints the plan
def pytest_collection_finish(session: pytest.Session) -> None:
    """Plan exactly what was selected, and open the run directory."""
    if sys.exc_info()[1] is not None:
        return  # pytest also calls this hook while it handles an interrupt or a missing file
    config, state = session.config, session.config.stash[STATE]
    if not (cases := [case for item in session.items if (case := case_of(item))]):
        # pytest calls this hook after a refusal too; another error would hide it.
        if _was_asked(config) and not (state.refusal or state.source or hasattr(config, "workerinput")):
            raise pytest.UsageError(_NOTHING_ASKED)  # a green run would have measured nothing
        return
    source = source_of(config)
    refuse_forks(config, session.items)
    with usage_errors():
        source.select(cases)
        if not nothing_runs(config):
            from pytest_ddpscale.plugin.json_report import report_as_json

            source.open_run()
            session_of(config).interim.begin()
            report_as_json(session, source)


def pytest_report_collectionfinish(config: pytest.Config, items: list[pytest.Item]) -> list[str]:
    """Print the plan; where there is no test at all, how to begin."""
    source = config.stash[STATE].source
    is_picky = config.option.keyword or config.option.markexpr or config.args_source == pytest.Config.ArgsSource.ARGS
    if not (items or is_picky or _was_asked(config)):
        return ["ddpscale: `pytest --gpu-sku=auto` judges the GPUs of this machine, =cpu its CPU"]
    if source is None or not source.selected:
        return []
    from pytest_ddpscale.report.listings import plan_lines, shortened

    subject, thresholds, lines = source.subject, source.subject.thresholds, list[str]()
    is_whole = config.option.collectonly or config.get_verbosity() > 0
    if is_whole or config.get_verbosity() == 0:
        extends = "".join(f", which extends {path}" for path, _ in thresholds.extended)
        lines = [f"ddpscale judges by {thresholds.path}{extends}{source.announcement}"]
        if odd := thresholds.remarks(subject.sku):
            more = f" ({len(odd) - 1} more: ddpscale thresholds check {thresholds.path})" if odd[1:] else ""
            lines.append(f"remark: {odd[0]}{more}")
    if source.plan_to_measure is None:
        return lines
    planned = plan_lines(
        source.plan_to_measure, len(source.selected), isolate=subject.settings.is_isolated,
        samples_per_s=source.expected_samples_per_s,
    )  # fmt: skip
    lines += planned if is_whole else shortened(planned)
    if source.run is not None:
        lines.append(f"ddpscale page while measuring: {source.run.path / 'report.html'}")
    return lines


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed requirement shows its explanation; one that only warns is an expected failure."""
    case, state = case_of(item), item.config.stash[STATE]
    if case is not None and call.when == "call" and state.session:
        from pytest_ddpscale.plugin.end import record_verdict

        record_verdict(item, case)
    report = yield
    if report.failed and call.excinfo is not None and call.excinfo.errisinstance(BadInput):
        report.longrepr = str(call.excinfo.value)  # the message says what to do; a traceback would not help
    was_skipped = case is not None and report.skipped and not hasattr(report, "wasxfail")
    # If a site's own check fails, the machine is not accepted either.
    if (report.failed or was_skipped) and state.source:
        from pytest_ddpscale.plugin.end import show_verdict

        show_verdict(item, call, report)
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)  # before other reports, which carry the exit code
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> Generator[None, object, object]:
    """Conclude, write all reports, and set the exit code by the outcome."""
    config, state = session.config, session.config.stash[STATE]
    if state.workers_refusal:
        session.exitstatus = pytest.ExitCode.USAGE_ERROR
    source = state.source
    if source is None or source.run is None:
        result = yield
        if _was_asked(config) and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = exitstatus
        return result
    from pytest_ddpscale.plugin.end import finish, print_summary

    try:
        finish(session, exitstatus, session_of(config))
        concluded = session.exitstatus
        result = yield
        if session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = concluded  # no other plugin forgives a machine, or a session in which nothing ran
        # Another plugin (pytest-rich) has removed pytest's reporter, and with it its hooks.
        plugins = config.pluginmanager
        is_shown = plugins.hasplugin("terminalreporter") or plugins.is_blocked("terminal")
        if state.judgement and not is_shown:
            print_summary(pytest.TerminalReporter(config, sys.stdout), config)
    finally:
        source.release()
    return result


@pytest.hookimpl(wrapper=True, tryfirst=True)  # around pytest's own, which prints failures and the short summary
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> Generator[None, None, None]:
    """Print the outcome and its reason; without -v pytest itself does not print failures by verdict."""
    state = config.stash[STATE]
    if state.judgement is None:
        yield
        for problem in state.problems:
            terminalreporter.write_line(f"ddpscale: {problem}", red=True)
    else:
        from pytest_ddpscale.plugin.end import summarized

        yield from summarized(terminalreporter, config)
    if state.workers_refusal:
        terminalreporter.write_line(f"ERROR: {state.workers_refusal}", red=True)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over an xdist worker's error, which would be an internal error if raised there."""
    if message := getattr(node, "workeroutput", {}).get(_REFUSED):
        node.config.stash[STATE].workers_refusal = message


def _was_asked(config: pytest.Config) -> bool:
    """Whether the command line asks for a judgement."""
    option = config.option
    return bool(option.gpu_sku or option.ddp_judge or option.ddp_resume)


def _default_to_acceptance_tests(config: pytest.Config) -> None:
    """For ``pytest --gpu-sku=b200`` anywhere: select the local acceptance tests if present, else the packaged ones.

    A node id printed by pytest, ``acceptance/test_scaling.py::…``, is found from any directory.
    """
    invocation_dir = config.invocation_params.dir
    if not (tests := invocation_dir / ACCEPTANCE).is_dir():
        tests = packaged(ACCEPTANCE)
    if config.args_source == pytest.Config.ArgsSource.INVOCATION_DIR:
        config.args[:] = [str(tests)]
    elif config.args_source == pytest.Config.ArgsSource.ARGS and not config.option.pyargs:
        config.args[:] = [_matching_tests(arg, invocation_dir, tests) for arg in config.args]


def _matching_tests(arg: str, invocation_dir: Path, tests: Path) -> str:
    path, colons, names = arg.partition("::")
    file = tests / path.removeprefix(f"{ACCEPTANCE}/")
    return arg if (invocation_dir / path).exists() or not path or not file.is_file() else f"{file}{colons}{names}"
