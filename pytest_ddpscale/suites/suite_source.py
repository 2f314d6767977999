"""Measures a suite's plan as a session measures what thresholds ask for: launchers, run directory, records, limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pytest_ddpscale.evidence.evidence import read_evidence
from pytest_ddpscale.launch.supervisor import Judge
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.results.notices import Listener
from pytest_ddpscale.results.run_json import Ending
from pytest_ddpscale.results.survey_record import Survey
from pytest_ddpscale.session.measure import MeasureSource
from pytest_ddpscale.suites.suite import MeasuredSuite, Suite, SuiteNodes


class SuiteSource(MeasureSource):
    """One measurement of a suite."""

    def __init__(self, suite: Suite, nodes: SuiteNodes, plan: Plan) -> None:
        super().__init__(nodes.subject, nodes.machine, Layout(nodes.machine.cluster.nodes, nodes.ranks_per_node))
        self._suite, self._nodes = suite, nodes
        self.plan = self.plan_to_measure = plan

    @property
    def named(self) -> str:
        """What its run directory is called, behind the time."""
        return f"{self.subject.sku}-{self._suite.name}"

    def judge_of(self, plan: Plan) -> Judge | None:
        """The suite's own: nothing is asked for by thresholds."""
        return self._suite.judge_of(plan, self._nodes)

    def unfit_of(self, plan: Plan, surveys: Sequence[Survey]) -> dict[str, str]:
        """What the suite will not measure."""
        return self._suite.unfit_of(surveys)

    def measure_and_close(
        self, listener_of: Callable[[Plan], Listener], further: Callable[[MeasuredSuite], Plan | None]
    ) -> None:
        """Measure the plan, then what comes of it, and record how that ended.

        Args:
            listener_of: who is told of records while a plan is measured.
            further: what is to be measured once that is known; None for nothing.

        Raises:
            KeyboardInterrupt: somebody ended it; what was measured stays in the run directory.
            RunDirectoryError: it cannot be written.
        """
        ending: Ending = "interrupted"
        try:
            assert self.plan is not None  # since it was made
            self.measure(listener_of(self.plan))
            more = further(self.measured_suite()) if not self.writing_problem else None
            if more is not None:
                self.measured_run.write_json(self.measured_run.plan_json, self.plan.joined(more))
                self._launch(more, listener_of(more))
            ending = "finished"
        finally:
            self.close(ending)
            self.release()

    def measured_suite(self) -> MeasuredSuite:
        """What there is to conclude from. Raises RunDirectoryError: it cannot be read."""
        return MeasuredSuite(
            read_evidence(self.measured_run), self.measured_run.read_run(), self.subject.settings.confidence
        )
