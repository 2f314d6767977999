"""What an acceptance test may ask for: `verdict`; and `requirement` and `run`, for tests of a site's own."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_ddpscale.results.notices import Listener
    from pytest_ddpscale.results.verdicts import Verdict
    from pytest_ddpscale.session.session import AcceptanceSession
    from pytest_ddpscale.session.sources import EvidenceSource
    from pytest_ddpscale.thresholds.cases import AnyCase


@dataclass(eq=False, repr=False)  # made at the start of every pytest session: more would take longer
class Run:
    """The measurements of this session; the first question has them made, and shows progress to the listener."""

    session: AcceptanceSession
    listener: Listener

    def __repr__(self) -> str:
        """Short: pytest asks for it at each failed assertion, and all evidence is behind it."""
        return f"<Run of {self.session.sku}>"

    @property
    def sku(self) -> str:
        """Canonical SKU name."""
        return self.session.sku

    @property
    def directory(self) -> Path:
        """Where everything measured is kept."""
        assert self.session.run is not None  # opened before the first test
        return self.session.run.path

    def samples(self, metric: str, workload: str, world_size: int) -> list[float]:
        """Per-round values of a metric, in its unit, for a test of your own.

        What the plan did not foresee is measured by a further launch. Empty if nothing could be measured.

        Raises:
            OptionError: no such metric or workload of this SKU, or more ranks than devices.
        """
        return self.session.samples(metric, workload, world_size, self.listener)


class RequirementNotMet(AssertionError):
    """A requirement that did not pass: failed, inconclusive or not measured."""

    def __init__(self, verdict: Verdict, explanation: str) -> None:
        super().__init__(explanation)
        self.verdict = verdict


@dataclass(eq=False, repr=False)  # made at the start of every pytest session: more would take longer
class ItemVerdict:
    """The verdict on one item's requirement; the first question has it measured and judged."""

    requirement: JudgeableRequirement
    run: Run

    def __repr__(self) -> str:
        """Short, as that of `Run`."""
        return f"<verdict on {self.requirement.case.id}>"

    @cached_property
    def verdict(self) -> Verdict:
        """What was concluded: outcome, value, interval, bound, culprits."""
        return self.run.session.judge(self.requirement.case, self.run.listener)

    @property
    def passed(self) -> bool:
        """Whether the requirement passed; nothing undecided passes."""
        return self.verdict.passed

    def explain(self) -> str:
        """Value, interval, bound, margin, who is slow, and the command that reruns it."""
        from pytest_ddpscale.report.explain import explain

        return explain(self.verdict, self.requirement.case.where, self.requirement.rerun)

    def check(self) -> None:
        """End the item by its verdict.

        Raises:
            RequirementNotMet: it did not pass; the plugin shows the explanation, and a mere warning as one.
        """
        if not self.passed:
            raise RequirementNotMet(self.verdict, self.explain())


@dataclass(eq=False, repr=False)  # made at the start of every pytest session: more would take longer
class JudgeableRequirement:
    """One line of thresholds.yaml, as `requirement` hands it out."""

    case: AnyCase
    source: EvidenceSource

    def __repr__(self) -> str:
        """Short, as that of `Run`."""
        return f"<{self.case.id}>"

    @property
    def rerun(self) -> str:
        """The command that measures just this again."""
        from pytest_ddpscale.report.text import rerun_command

        return rerun_command(self.source.again, self.case.id)

    def judge(self, run: Run) -> ItemVerdict:
        """The verdict on this requirement. A test ends with its `check`, after whatever else it looks at."""
        return ItemVerdict(self, run)


@pytest.fixture
def requirement(request: pytest.FixtureRequest) -> JudgeableRequirement:
    """One requirement of the thresholds file, for a test marked ``requirement("metric")``."""
    from pytest_ddpscale.plugin.active import source_of

    if not hasattr(request, "param"):
        raise pytest.UsageError(
            f"{request.node.nodeid} asks for `requirement` without saying of which metric; "
            'expected @pytest.mark.requirement("weak_scaling_efficiency") or another metric on it.'
        )
    return JudgeableRequirement(request.param, source_of(request.config))


@pytest.fixture(scope="session")
def run(request: pytest.FixtureRequest) -> Run:
    """The measurements of this session."""
    from pytest_ddpscale.plugin.active import session_of
    from pytest_ddpscale.plugin.console import progress_listener

    return Run(session_of(request.config), progress_listener(request.config))


@pytest.fixture
def verdict(requirement: JudgeableRequirement, run: Run) -> ItemVerdict:
    """The verdict on one requirement, for a test marked ``requirement("metric")``: ``verdict.check()`` is all of it."""
    return requirement.judge(run)
