"""What a person sees on the terminal: progress while measuring, and the table at the end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ddpscale.plugin.active import TOLD, source_of
from pytest_ddpscale.report.progress import Progress
from pytest_ddpscale.report.terminal import table_lines

if TYPE_CHECKING:
    from pytest_ddpscale.results.notices import Listener
    from pytest_ddpscale.results.verdicts import Judgement

LOG_EVERY_S = 10.0
_COLOURS: dict[str, dict[str, bool]] = {
    "": {}, "header": {"bold": True}, "passed": {"green": True},
    "failed": {"red": True}, "warned": {"yellow": True}, "undecided": {"yellow": True},
}  # fmt: skip


def progress_listener(config: pytest.Config) -> Listener:
    """Shows progress on the terminal, past pytest's capturing."""
    reporter: Any = config.pluginmanager.getplugin("terminalreporter")
    capture: Any = config.pluginmanager.getplugin("capturemanager")
    source = source_of(config)
    if reporter is None or capture is None or source.plan_to_measure is None:
        return lambda record: None

    last_shown_s = 0.0

    def show(line: str, passing: bool) -> None:
        nonlocal last_shown_s
        if passing and not reporter.isatty and time.monotonic() - last_shown_s < LOG_EVERY_S:
            return  # a log file keeps every line: fewer will do
        last_shown_s = time.monotonic()
        with capture.global_and_fixture_disabled():
            if passing and reporter.isatty:
                reporter.rewrite(f"  {line}"[: reporter._tw.fullwidth - 1], erase=True)
            else:
                reporter.ensure_newline()
                reporter.write_line(f"  {line}")

    return Progress(source.plan_to_measure, show, img_per_s=source.expected_img_per_s)


def print_summary(reporter: pytest.TerminalReporter, config: pytest.Config, judgement: Judgement) -> None:
    """The table of requirements, one line with the outcome and why, and where the report lies."""
    reporter.section(f"ddpscale: {judgement.sku}", sep="=", bold=True)
    for line, style in table_lines(judgement, reporter._tw.fullwidth):
        reporter.write_line(line, **_COLOURS[style])
    run_directory = source_of(config).run
    if run_directory is not None and (run_directory.path / "report.md").exists():
        reporter.write_line(f"report: {run_directory.path / 'report.md'}")
    for problem in config.stash[TOLD].problems:
        reporter.write_line(problem, red=True)
    if config.stash[TOLD].forgotten:
        reporter.write_line(config.stash[TOLD].forgotten, yellow=True)
