"""The sweep of collectives as a test of an acceptance run, with its own run directory.

Most sizes have no bound, so the test runs only with ``-m collectives``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_ddpscale.results.notices import Listener
    from pytest_ddpscale.session.measure import MeasureSource
    from pytest_ddpscale.suites.suite import SuiteNodes

MARK = "collectives"
_FIXTURE = "collective_sweep"


@dataclass(eq=False, repr=False)  # every pytest session creates the class, so keep that fast
class CollectiveSweep:
    """The sweep on the nodes of this session."""

    config: pytest.Config
    source: MeasureSource

    def __repr__(self) -> str:
        """Short, because pytest prints it at each failed assertion."""
        return f"<sweep of collectives on {self.source.subject.sku}>"

    def check(self) -> None:
        """Measure, write the report, and pass or fail the test.

        Raises:
            pytest.fail.Exception: a result was wrong, a bound was not met, or something could not be measured.
            BadInput: the run directory already holds a sweep.
        """
        from pytest_ddpscale.suites.collectives_suite import Collectives, sweep_plan
        from pytest_ddpscale.suites.suite_source import SuiteSource
        from pytest_ddpscale.suites.suite_views import write_suite_reports

        nodes = self._nodes()
        if nodes.world_size < 2:
            pytest.skip("a collective needs at least two ranks; there is one")
        suite, plan = Collectives(), sweep_plan(nodes)
        source = SuiteSource(suite, nodes, plan)
        source.open_run()
        source.measure_and_close(lambda plan: self._listener(source), lambda measured: None)
        measured = source.measured_suite()
        report = suite.conclude(measured)
        write_suite_reports(source.measured_run, suite.name, report, measured.record, measured.confidence)
        said = [*report.failures, *(f"not measured: {problem}" for problem in report.problems)]
        if said:
            page = source.measured_run.path / "report.html"
            pytest.fail("\n".join([report.headline, *said, f"report: {page}"]), pytrace=False)

    def _nodes(self) -> SuiteNodes:
        """The session's nodes and settings, except for the run directory, rounds and block length."""
        from dataclasses import replace

        from pytest_ddpscale.suites.suite import SuiteNodes

        subject, run = self.source.subject, self.source.measured_run
        settings = replace(subject.settings, run_dir=run.path / MARK, rounds=None, block_s=None)
        return SuiteNodes(replace(subject, site=replace(subject.site, settings=settings)), self.source.machine)

    def _listener(self, source: MeasureSource) -> Listener:
        from pytest_ddpscale.plugin.console import progress_of

        assert source.plan_to_measure is not None
        return progress_of(self.config, source.plan_to_measure, {})


@pytest.fixture
def collective_sweep(request: pytest.FixtureRequest) -> CollectiveSweep:
    """The sweep of collectives, for a test marked ``collectives`` that calls ``collective_sweep.check()``."""
    from pytest_ddpscale.plugin.active import session_of
    from pytest_ddpscale.session.measure import MeasureSource
    from pytest_ddpscale.session.resume import ResumeSource

    source = session_of(request.config).source
    if not isinstance(source, MeasureSource) or isinstance(source, ResumeSource):
        pytest.skip("the sweep runs only in a new measurement, not with --ddp-judge or --ddp-resume")
    if source.was_refused:
        pytest.skip("nodes are unfit, so nothing was launched on them")
    return CollectiveSweep(request.config, source)


def is_unasked(collected: pytest.Item | pytest.Collector) -> bool:
    """Whether the item is a sweep without ``-m collectives``."""
    is_sweep = isinstance(collected, pytest.Item) and _FIXTURE in getattr(collected, "fixturenames", ())
    return is_sweep and MARK not in collected.config.option.markexpr
