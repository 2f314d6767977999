"""Measures a suite's plan like a session: with its launchers, run directory, records and limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pytest_ddpscale.launch.supervisor import Judge
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.run.evidence import read_evidence
from pytest_ddpscale.run.record_lines import Listener
from pytest_ddpscale.run.run_json import Ending
from pytest_ddpscale.run.survey_record import Survey
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
        """Name of the run directory, after the time."""
        return f"{self.subject.sku}-{self._suite.name}"

    def judge_of(self, plan: Plan) -> Judge | None:
        """The suite's own judge, because thresholds require nothing."""
        return self._suite.judge_of(plan, self._nodes)

    def unfit_of(self, plan: Plan, surveys: Sequence[Survey]) -> dict[str, str]:
        """Why the suite refuses to measure, by host."""
        return self._suite.unfit_of(surveys)

    def measure_and_close(
        self, listener_of: Callable[[Plan], Listener], further: Callable[[MeasuredSuite], Plan | None]
    ) -> None:
        """Measure the plan, then a further plan from its results, and record how the run ended.

        Args:
            listener_of: returns the listener for the records of a plan.
            further: returns a second plan from the first results; None for nothing.

        Raises:
            KeyboardInterrupt: the user interrupted; measurements so far stay in the run directory.
            RunDirectoryError: the run directory cannot be written.
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
        """Results so far. Raises RunDirectoryError if the run directory cannot be read."""
        return MeasuredSuite(
            read_evidence(self.measured_run), self.measured_run.read_run(), self.subject.settings.confidence
        )
