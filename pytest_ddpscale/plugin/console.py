"""Terminal output: progress while measuring, and the summary at the end."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ddpscale.plugin.active import TOLD, source_of
from pytest_ddpscale.report.terminal import brief_lines, quiet_lines, table_lines, tested_line
from pytest_ddpscale.report.while_measuring import Progress, load_warning

if TYPE_CHECKING:
    from pytest_ddpscale.run.record_lines import Listener
    from pytest_ddpscale.run.verdicts import Judgement

LOG_EVERY_S = 60.0
JUDGED_BY_US = "ddpscale_judged"  # marks reports of items that fail by their verdict
_COLOURS: dict[str, dict[str, bool]] = {
    "": {}, "header": {"bold": True}, "passed": {"green": True},
    "failed": {"red": True}, "warned": {"yellow": True}, "undecided": {"yellow": True},
}  # fmt: skip


def wrapped(config: pytest.Config, lines: Iterable[str]) -> list[str]:
    """Lines that are no wider than the terminal, broken between words only."""
    columns = config.get_terminal_writer().fullwidth
    broken = (wrap(one, columns, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
              for one in lines)  # fmt: skip
    return [line for one in broken for line in one]


def progress_listener(config: pytest.Config) -> Listener:
    """A listener that shows the progress of the session's run on the terminal, bypassing pytest's capturing."""
    source = source_of(config)
    plan = source.plan_to_measure
    reporter: Any = config.pluginmanager.getplugin("terminalreporter")
    capture: Any = config.pluginmanager.getplugin("capturemanager")
    if plan is None or reporter is None or capture is None:
        return lambda record: None

    last_shown_s = 0.0

    def show(line: str, passing: bool) -> None:
        nonlocal last_shown_s
        if passing and not reporter.isatty and time.monotonic() - last_shown_s < LOG_EVERY_S:
            return  # a log file keeps every line, so show fewer
        last_shown_s = time.monotonic()
        with capture.global_and_fixture_disabled():
            if passing and reporter.isatty:
                reporter.rewrite(f"  {line}"[: reporter._tw.fullwidth - 1], erase=True)
            else:
                reporter.ensure_newline()
                said = [f"  {line}"]  # which stays one line in a log file
                for one in wrapped(config, said) if reporter.isatty else said:
                    reporter.write_line(one)

    warning = load_warning(os.getloadavg()[0], os.cpu_count() or 1)
    if warning:
        show(warning, False)
    return Progress(plan, show, samples_per_s=source.expected_samples_per_s, budget_s=source.subject.settings.budget_s)


def print_summary(reporter: pytest.TerminalReporter, config: pytest.Config, judgement: Judgement) -> None:
    """Print the outcome with its cause and the report's path; unless -q, what blocks acceptance; with -v everything."""
    is_quiet = config.get_verbosity() < 0
    if not is_quiet:
        reporter.write_sep("=", f"ddpscale: {judgement.sku}", bold=True)
    lines_of = quiet_lines if is_quiet else table_lines if config.get_verbosity() > 0 else brief_lines
    record = config.stash[TOLD].record
    for line, style in lines_of(judgement, reporter._tw.fullwidth, record):
        reporter.write_line(line, **_COLOURS[style])
    if not is_quiet and (line := tested_line(judgement, record)):
        reporter.write_line(line)
    run_directory = source_of(config).run
    if run_directory is not None and (run_directory.path / "report.html").exists():
        reporter.write_line(f"report: {run_directory.path / 'report.html'}")
    for problem in config.stash[TOLD].problems:
        reporter.write_line(problem, red=True)
    if config.stash[TOLD].forgotten:
        reporter.write_line(config.stash[TOLD].forgotten, yellow=True)


@contextmanager
def only_other_failures(reporter: pytest.TerminalReporter) -> Iterator[None]:
    """Let pytest print failures only of a site's own tests; our summary covers the others."""
    kept = dict(reporter.stats)
    for name, reports in kept.items():
        reporter.stats[name] = [one for one in reports if not getattr(one, JUDGED_BY_US, False)]
    try:
        yield
    finally:
        reporter.stats.update(kept)
