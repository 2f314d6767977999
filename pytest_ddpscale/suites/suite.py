"""What a suite is: it plans studies on the nodes there are, and says what they have shown.

All else is common to all suites: options, launching, the run directory, reports, exit codes. A suite is one module that
is loaded with the command line, so that it loads what it needs where it needs it.
"""

from __future__ import annotations

import argparse
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from pytest_ddpscale.evidence.evidence import Evidence
    from pytest_ddpscale.launch.supervisor import Judge
    from pytest_ddpscale.plan.planner import Pace
    from pytest_ddpscale.plan.study import Plan
    from pytest_ddpscale.results.run_json import RunRecord
    from pytest_ddpscale.results.survey_record import Survey
    from pytest_ddpscale.session.sources import Machine, Subject
    from pytest_ddpscale.settings import Settings
    from pytest_ddpscale.suites.suite_report import SuiteReport


@dataclass(frozen=True)
class SuiteNodes:
    """What a suite is planned for."""

    subject: Subject
    machine: Machine

    @property
    def settings(self) -> Settings:
        """What the user asked for."""
        return self.subject.settings

    @property
    def ranks_per_node(self) -> int:
        """GPUs (CPU: ranks) of each node."""
        return self.machine.per_node or 1

    @property
    def world_size(self) -> int:
        """On all nodes."""
        return self.ranks_per_node * self.machine.cluster.nodes

    def empty_plan(self) -> Plan:
        """A plan without studies, on all of them."""
        from pytest_ddpscale.plan.study import Plan

        subject, nodes = self.subject, self.machine.cluster.nodes
        return Plan(subject.sku, subject.device_type, (), nodes=nodes, ranks_per_node=self.ranks_per_node)

    def pace(self) -> Pace:
        """How long and how often arms are timed: the fewest rounds that give an interval, unless more are asked for."""
        from pytest_ddpscale.plan.planner import FEWEST_ROUNDS, PACES

        default, settings = PACES[self.subject.device_type], self.settings
        return replace(default, rounds=settings.rounds or FEWEST_ROUNDS, block_s=settings.block_s or default.block_s)


@dataclass(frozen=True)
class MeasuredSuite:
    """What there is to conclude from; `confidence` is of each interval, 0 … 1."""

    evidence: Evidence
    record: RunRecord
    confidence: float


class Suite(ABC):
    """One of them.

    Attributes:
        name: of the command.
        help: one line, for the list of commands.
    """

    name: ClassVar[str]
    help: ClassVar[str]

    def add_options(self, parser: argparse.ArgumentParser) -> None:  # noqa: B027 (nothing, unless it has some)
        """Its own, beside those that all have."""

    @abstractmethod
    def plan(self, arguments: argparse.Namespace, nodes: SuiteNodes) -> Plan:
        """What is to be measured. Raises BadInput."""

    def judge_of(self, plan: Plan, nodes: SuiteNodes) -> Judge | None:
        """Who knows when a study has told enough; None measures all rounds."""
        return None

    def unfit_of(self, surveys: Sequence[Survey]) -> dict[str, str]:
        """By host, why nothing is measured; surveys are there if the plan asks for them."""
        return {}

    def further(self, arguments: argparse.Namespace, nodes: SuiteNodes, measured: MeasuredSuite) -> Plan | None:
        """What is to be measured once that is known; None for nothing."""
        return None

    @abstractmethod
    def conclude(self, measured: MeasuredSuite) -> SuiteReport:
        """What was found, from a run directory alone: it is said again by `ddpscale report`."""


def why_missing(evidence: Evidence, study_id: str) -> str:
    """Why a study has no value: it broke, was cut short or ran out of time; empty if nothing of that."""
    if study_id in evidence.errors:
        return evidence.errors[study_id]
    if study_id in evidence.interrupted:
        return evidence.interrupted[study_id]
    return "time was up" if study_id in evidence.out_of_time else ""
