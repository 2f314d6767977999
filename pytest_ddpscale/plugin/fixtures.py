"""Fixtures of acceptance tests: `verdict`, and `requirement` and `run` for a site's own tests."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ddpscale.plugin.items import session_of
from pytest_ddpscale.util.printable import shell_line

if TYPE_CHECKING:
    from pytest_ddpscale.run.verdicts import Verdict
    from pytest_ddpscale.session.session import AcceptanceSession
    from pytest_ddpscale.thresholds.cases import AnyCase

_LOG_EVERY_S = 60.0


class Run:  # every pytest session creates the class, and a dataclass or named tuple takes half a millisecond
    """The measurements of this session, made when first needed."""

    def __init__(self, session: AcceptanceSession) -> None:
        self.session = session

    @property
    def sku(self) -> str:
        """Canonical SKU name."""
        return self.session.sku

    @property
    def directory(self) -> Path:
        """The run directory."""
        run = self.session.source.run
        assert run is not None  # opened before the first test
        return run.path

    def samples(self, metric: str, workload: str, world_size: int) -> list[float]:
        """Per-round values of a metric, in its unit, for a test of your own.

        Empty if nothing could be measured.

        Raises:
            OptionError: no requirement has that metric, workload and world size, or the plan does not measure it.
        """
        return self.session.samples(metric, workload, world_size)


class RequirementNotMet(AssertionError):
    """A requirement that did not pass: failed, inconclusive or not measured."""

    def __init__(self, verdict: Verdict, explanation: str) -> None:
        super().__init__(explanation)
        self.verdict = verdict


class ItemVerdict:
    """The verdict on one item's requirement, measured and judged when first needed."""

    def __init__(self, case: AnyCase, run: Run) -> None:
        self.case, self.run = case, run

    @property
    def verdict(self) -> Verdict:
        """Outcome, value, interval, bound and culprits."""
        session = self.run.session
        try:
            return session.judge(self.case)
        except KeyboardInterrupt:
            # Otherwise pytest shows a line of our code, and how to see its traceback.
            raise pytest.exit.Exception(session.interim.interruption or "interrupted") from None

    @property
    def passed(self) -> bool:
        """Whether the requirement passed; nothing undecided passes."""
        return self.verdict.passed

    def explain(self) -> str:
        """Value, interval, bound, margin, culprits, and the command that reruns it."""
        return explained(self.run.session, self.case, self.verdict)

    def check(self) -> None:
        """Pass or fail the item by its verdict.

        Raises:
            RequirementNotMet: it did not pass; the plugin shows the explanation, or a warning if it only warns.
        """
        if not self.passed:
            raise RequirementNotMet(self.verdict, self.explain())


class JudgeableRequirement:
    """One requirement of thresholds.yaml, the value of the `requirement` fixture."""

    def __init__(self, case: AnyCase) -> None:
        self.case = case

    def judge(self, run: Run) -> ItemVerdict:
        """The verdict on this requirement. A test calls its `check` last, after any checks of its own."""
        return ItemVerdict(self.case, run)


def explained(session: AcceptanceSession, case: AnyCase, verdict: Verdict) -> str:
    """What a report says of one verdict, with the command that measures only this requirement again."""
    from pytest_ddpscale.report.explain import explain

    return explain(verdict, case.where, shell_line([*session.source.again, "-k", case.id]))


@pytest.fixture
def requirement(request: pytest.FixtureRequest) -> JudgeableRequirement:
    """One requirement of the thresholds file, for a test marked ``requirement("metric")``."""
    return JudgeableRequirement(request.param)


@pytest.fixture(scope="session")
def run(request: pytest.FixtureRequest) -> Run:
    """The measurements of this session."""
    session = session_of(request.config)
    _show_progress(session, request.config)
    return Run(session)


@pytest.fixture
def verdict(requirement: JudgeableRequirement, run: Run) -> ItemVerdict:
    """The verdict on one requirement, for a test marked ``requirement("metric")`` that calls ``verdict.check()``."""
    return requirement.judge(run)


def _show_progress(session: AcceptanceSession, config: pytest.Config) -> None:
    """Have the progress of the session's run shown on the terminal, bypassing pytest's capturing."""
    from pytest_ddpscale.report.while_measuring import load_warning

    reporter: Any = config.pluginmanager.getplugin("terminalreporter")
    capture: Any = config.pluginmanager.getplugin("capturemanager")
    if session.source.plan_to_measure is None or reporter is None or capture is None:
        return
    last_shown_s = 0.0

    def show(line: str, passing: bool) -> None:
        nonlocal last_shown_s
        if passing and not reporter.isatty and time.monotonic() - last_shown_s < _LOG_EVERY_S:
            return  # a log file keeps every line, so show fewer
        last_shown_s, line = time.monotonic(), f"  {line}"
        with capture.global_and_fixture_disabled():
            if passing and reporter.isatty:
                reporter.rewrite(line[: reporter._tw.fullwidth - 1], erase=True)
                return
            reporter.ensure_newline()
            reporter.write_line(line)

    if warning := load_warning(os.getloadavg()[0], os.cpu_count() or 1):
        show(warning, False)
    session.interim.show = show
