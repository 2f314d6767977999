"""`ddpscale suite NAME`, and other commands that measure like suites. Every command imports this module."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from pytest_ddpscale.settings import OF_ANY_RUN, OPTIONS, confidence_level
from pytest_ddpscale.suites.suite import Suite

if TYPE_CHECKING:
    from pytest_ddpscale.plan.study import Plan
    from pytest_ddpscale.run.record_lines import Listener
    from pytest_ddpscale.run.run_directory import RunDirectory
    from pytest_ddpscale.suites.suite import MeasuredSuite, SuiteNodes
    from pytest_ddpscale.suites.suite_source import SuiteSource

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

NOT_ALL_WELL = 1  # exit code if something failed or could not be measured
_LOG_EVERY_S = 60.0


def suites() -> dict[str, Suite]:
    """All suites by name."""
    from pytest_ddpscale.suites.collectives_suite import Collectives
    from pytest_ddpscale.suites.convergence_suite import Convergence
    from pytest_ddpscale.suites.data_parallel_suite import DataParallelSuite
    from pytest_ddpscale.suites.factors_suite import Factors
    from pytest_ddpscale.suites.inference_suite import InferenceSuite
    from pytest_ddpscale.suites.input_pipeline_suite import InputPipeline
    from pytest_ddpscale.suites.pytorch_ddp import PytorchDdp
    from pytest_ddpscale.suites.whole_run_suite import WholeRun

    found = (PytorchDdp(), Collectives(), InferenceSuite(), DataParallelSuite(), Factors(), InputPipeline(),
             WholeRun(), Convergence())  # fmt: skip
    return {one.name: one for one in found}


def add_suite(commands: Commands) -> None:
    """Add `ddpscale suite`, and the other commands that measure like suites."""
    command = commands.add_parser(
        "suite", help="measure collectives, inference, input pipeline, whole training runs and others on these nodes"
    )
    names = command.add_subparsers(metavar="SUITE")
    for suite in suites().values():
        add_measuring_command(names, suite)
    for name, suite in measuring_commands().items():
        if name not in suites():
            add_measuring_command(commands, suite)


def add_measuring_command(commands: Commands, suite: Suite) -> None:
    """Add the command of one suite, with its own options and those of pytest's that it takes."""
    parser = commands.add_parser(suite.name, help=suite.help)
    suite.add_options(parser)
    common = parser.add_argument_group("as in pytest --gpu-sku=SKU")
    for name, option in OPTIONS.items():
        if name not in (*OF_ANY_RUN, *suite.takes):
            parser.add_argument(option.flag, action=_Refused, nargs="?", help=argparse.SUPPRESS)
        elif option.metavar is None:
            common.add_argument(option.flag, dest=option.name, action="store_true", help=option.help)
        else:
            action = "append" if option.repeats else "store"
            common.add_argument(option.flag, dest=option.name, metavar=option.metavar, help=option.help, action=action)
    parser.set_defaults(run=lambda arguments: run_suite(suite, arguments))


class _Refused(argparse.Action):
    """An option of pytest that the suite would ignore."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        parser.error(f"{self.option_strings[0]} has no effect on this suite; leave it out")


def run_suite(suite: Suite, arguments: argparse.Namespace) -> int:
    """Plan, measure and report. Returns the exit code. Raises BadInput, OSError."""
    from pytest_ddpscale.suites.suite_source import SuiteSource

    nodes = nodes_of(arguments)
    source = SuiteSource(suite, nodes, suite.plan(arguments, nodes))
    assert source.plan is not None
    source.open_run()
    told_of = {"suite": suite.name, "confidence": nodes.settings.confidence}  # even if the run is killed
    source.measured_run.write_json(source.measured_run.suite_json, told_of)
    try:
        source.measure_and_close(_progress(source), lambda measured: suite.further(arguments, nodes, measured))
    except KeyboardInterrupt:
        _tell(suite, source.measured_run, source.measured_suite())
        raise
    return _tell(suite, source.measured_run, source.measured_suite())


def report_suite(run: RunDirectory) -> int:
    """Make a suite's reports again from its run directory. Returns the exit code. Raises BadInput, OSError."""
    from pytest_ddpscale.run.evidence import read_evidence
    from pytest_ddpscale.run.run_directory import broken_file
    from pytest_ddpscale.suites.suite import MeasuredSuite

    said = run.read_suite()
    name = said.get("suite")
    known = measuring_commands()
    if not isinstance(name, str) or name not in known:
        raise broken_file(run.suite_json, f"suite {name!r}; expected one of {', '.join(known)}")
    try:
        confidence = confidence_level(str(said.get("confidence", OPTIONS["confidence"].default)))
    except ValueError as error:
        raise broken_file(run.suite_json, f"confidence {said['confidence']!r}; expected {error}") from None
    return _tell(known[name], run, MeasuredSuite(read_evidence(run), run.read_run(), confidence))


def measuring_commands() -> dict[str, Suite]:
    """Suites, and other commands that measure like them, by name."""
    from pytest_ddpscale.suites.tune import Tune

    return {**suites(), Tune.name: Tune()}


def _tell(suite: Suite, run: RunDirectory, measured: MeasuredSuite) -> int:
    from pytest_ddpscale.suites.suite_views import print_report, write_suite_reports

    report = suite.conclude(measured)
    write_suite_reports(run, suite.name, report, measured)
    print_report(report)
    for lost in [one.caption for part in report.sections for one in part.figures if one and not one.svg][:1]:
        print(f"figures {lost}")
    print(f"report: {run.path / 'report.html'}")
    return NOT_ALL_WELL if report.problems or report.failures else 0


def nodes_of(arguments: argparse.Namespace) -> SuiteNodes:
    """The nodes to measure, from options. Raises BadInput."""
    from pytest_ddpscale.session.open import look, thresholds_path
    from pytest_ddpscale.session.sources import Site
    from pytest_ddpscale.settings import refuse_unread_variables, settings_from
    from pytest_ddpscale.suites.suite import SuiteNodes
    from pytest_ddpscale.thresholds.loading import load_thresholds

    refuse_unread_variables(os.environ)
    settings = replace(settings_from(vars(arguments), {}), unfit="stop")  # a suite never measures unfit nodes
    site = Site(settings, Path.cwd(), Path.cwd(), tuple(sys.argv))
    thresholds = load_thresholds(thresholds_path(site))
    asked = settings.gpu_sku
    sku = asked if asked == OPTIONS["gpu_sku"].default else thresholds.sku_name(asked)
    return SuiteNodes(*look(site, thresholds, sku))


def _progress(source: SuiteSource) -> Callable[[Plan], Listener]:
    """Progress lines for a plan: in place on a terminal, at most one a minute in a log."""
    from pytest_ddpscale.report.while_measuring import Progress, load_warning

    last_shown_s = -_LOG_EVERY_S
    is_terminal = sys.stderr.isatty()

    def width() -> int | None:
        return os.get_terminal_size(sys.stderr.fileno()).columns - 1 if is_terminal else None

    def show(line: str, passing: bool) -> None:
        nonlocal last_shown_s
        if passing and not is_terminal and time.monotonic() - last_shown_s < _LOG_EVERY_S:
            return
        last_shown_s = time.monotonic()
        start, end = ("\r\x1b[K", "" if passing else "\n") if is_terminal else ("", "\n")
        print(f"{start}{line[: width()] if passing else line}", end=end, file=sys.stderr, flush=True)

    warning = load_warning(os.getloadavg()[0], os.cpu_count() or 1)
    if warning:
        show(warning, False)
    return lambda plan: Progress(plan, show, samples_per_s=source.expected_samples_per_s)
