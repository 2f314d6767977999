"""What an acceptance test may ask for: `requirement` and `run`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_ddpscale.launch.supervisor import Listener
    from pytest_ddpscale.results.verdicts import Verdict
    from pytest_ddpscale.session.session import AcceptanceSession
    from pytest_ddpscale.thresholds.cases import AnyCase


@dataclass(frozen=True)
class Run:
    """The measurements of this session; the first question has them made.

    Attributes:
        session: the acceptance session behind it.
        listener: where progress is shown while measuring.
    """

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

        What the plan did not foresee is measured by a further launch.

        Args:
            metric: a name of the catalogue, such as ``throughput_per_gpu``.
            workload: a workload of this SKU.
            world_size: ranks that train together.

        Returns:
            One value per round; empty if nothing could be measured.

        Raises:
            OptionError: no such metric or workload, or more ranks than devices.
        """
        return self.session.samples(metric, workload, world_size, self.listener)


@dataclass(frozen=True)
class JudgedRequirement:
    """A verdict, ready to be asserted.

    Attributes:
        verdict: what was concluded.
        where: ``file:line`` of the requirement.
        rerun: the command that measures just this again.
    """

    verdict: Verdict
    where: str
    rerun: str

    def __repr__(self) -> str:
        """Short, as that of `Run`."""
        return f"<{self.verdict.id}: {self.verdict.outcome}>"

    @property
    def passed(self) -> bool:
        """Whether the requirement passed; nothing undecided passes."""
        return self.verdict.passed

    def explain(self) -> str:
        """Value, interval, bound, margin, who is slow, and the command that reruns it."""
        from pytest_ddpscale.report.explain import explain

        return explain(self.verdict, self.where, self.rerun)


@dataclass(frozen=True)
class JudgeableRequirement:
    """One line of thresholds.yaml, as the fixture `requirement` hands it out.

    Attributes:
        case: the requirement and its workload.
        rerun: the command that measures just this again.
    """

    case: AnyCase
    rerun: str

    def __repr__(self) -> str:
        """Short, as that of `Run`."""
        return f"<{self.case.id}>"

    def judge(self, run: Run) -> JudgedRequirement:
        """The verdict on this requirement."""
        return JudgedRequirement(run.session.judge(self.case, run.listener), self.case.where, self.rerun)


@pytest.fixture
def requirement(request: pytest.FixtureRequest) -> JudgeableRequirement:
    """One requirement of the thresholds file, for a test marked ``requirement("metric")``."""
    from pytest_ddpscale.plugin.selection import rerun_command

    if not hasattr(request, "param"):
        raise pytest.UsageError(
            f"{request.node.nodeid} asks for `requirement` without saying of which metric; "
            'expected @pytest.mark.requirement("weak_scaling_efficiency") or another metric on it.'
        )
    return JudgeableRequirement(request.param, rerun_command(request.node))


@pytest.fixture(scope="session")
def run(request: pytest.FixtureRequest) -> Run:
    """The measurements of this session."""
    from pytest_ddpscale.plugin.active import session_of
    from pytest_ddpscale.plugin.console import progress_listener

    return Run(session_of(request.config), progress_listener(request.config))
