"""Base of suites: a suite plans studies on the available nodes and reports their results.

Options, launching, the run directory, reports and exit codes are common to all suites. The command line imports every
suite's module, so a suite imports heavy modules only where it uses them.
"""

from __future__ import annotations

import argparse
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from pytest_ddpscale.launch.supervisor import Judge
    from pytest_ddpscale.plan.planner import Pace
    from pytest_ddpscale.plan.study import Plan, Study
    from pytest_ddpscale.run.evidence import Evidence
    from pytest_ddpscale.run.run_json import RunRecord
    from pytest_ddpscale.run.survey_record import Survey
    from pytest_ddpscale.session.sources import Machine, Subject
    from pytest_ddpscale.settings import Settings
    from pytest_ddpscale.suites.suite_report import SuiteReport


# Options of pytest, by attribute of `Settings`, that have an effect on suites …
IN_ROUNDS = ("rounds", "block_s", "confidence")  # … that time blocks in rounds and report intervals
OF_STEPS = (*IN_ROUNDS, "nvtx")  # … whose blocks are steps of a model
OF_TRAINING = (*OF_STEPS, "profile_steps")  # … whose steps train


@dataclass(frozen=True)
class SuiteNodes:
    """The nodes and the SKU for which a suite is planned."""

    subject: Subject
    machine: Machine

    @property
    def settings(self) -> Settings:
        """The user's options."""
        return self.subject.settings

    @property
    def ranks_per_node(self) -> int:
        """GPUs (CPU: ranks) of each node."""
        return self.machine.per_node or 1

    @property
    def world_size(self) -> int:
        """Ranks on all nodes."""
        return self.ranks_per_node * self.machine.cluster.nodes

    def empty_plan(self) -> Plan:
        """A plan without studies, on all nodes."""
        from pytest_ddpscale.plan.study import Plan

        subject, nodes = self.subject, self.machine.cluster.nodes
        return Plan(subject.sku, subject.device_type, (), nodes=nodes, ranks_per_node=self.ranks_per_node)

    def pace(self) -> Pace:
        """How long and how often arms are timed; by default the fewest rounds that give an interval."""
        from pytest_ddpscale.plan.planner import FEWEST_ROUNDS, PACES

        default, settings = PACES[self.subject.device_type], self.settings
        return replace(default, rounds=settings.rounds or FEWEST_ROUNDS, block_s=settings.block_s or default.block_s)


@dataclass(frozen=True)
class MeasuredSuite:
    """Results of a suite's run; `confidence` is that of each interval, 0 … 1."""

    evidence: Evidence
    record: RunRecord
    confidence: float

    @property
    def versions(self) -> dict[str, str]:
        """Of the software, by name."""
        return self.record.versions | self.evidence.versions


class Suite(ABC):
    """One suite.

    Attributes:
        name: of the command.
        help: one line, for the list of commands.
        takes: further options of pytest that have an effect on it, beside `OF_ANY_RUN`; all others are refused.
    """

    name: ClassVar[str]
    help: ClassVar[str]
    takes: ClassVar[tuple[str, ...]] = ()

    def add_options(self, parser: argparse.ArgumentParser) -> None:  # noqa: B027 (a suite may have none)
        """Add the suite's own options to the common ones."""

    @abstractmethod
    def plan(self, arguments: argparse.Namespace, nodes: SuiteNodes) -> Plan:
        """Plan what to measure. Raises BadInput."""

    def judge_of(self, plan: Plan, nodes: SuiteNodes) -> Judge | None:
        """A judge that decides when a study can stop; None measures all rounds."""
        return None

    def unfit_of(self, surveys: Sequence[Survey]) -> dict[str, str]:
        """Why nothing may be measured, by host; `surveys` is empty if the plan has no survey."""
        return {}

    def further(self, arguments: argparse.Namespace, nodes: SuiteNodes, measured: MeasuredSuite) -> Plan | None:
        """A second plan that depends on the first results; None for nothing."""
        return None

    @abstractmethod
    def conclude(self, measured: MeasuredSuite) -> SuiteReport:
        """The report, from the run directory alone, because `ddpscale report` makes it again."""


def why_missing(evidence: Evidence, study_id: str) -> str:
    """Why a study has no value: an error, an interruption or the time limit; empty if none of these."""
    from pytest_ddpscale.report.words.reasons import say

    for reasons in (evidence.errors, evidence.interrupted):
        if study_id in reasons:
            return say(reasons[study_id])
    return "time limit reached" if study_id in evidence.out_of_time else ""


def why_incomplete(evidence: Evidence, study: Study, *, is_measured: bool) -> str:
    """Why values of a study are missing or rest on fewer rounds than planned; empty if it ended as planned.

    Args:
        is_measured: whether all of its values have at least one complete round.
    """
    why = why_missing(evidence, study.id)
    if not is_measured:
        return why or "no complete round"
    return f"after {complete_rounds(evidence, study)} of {study.rounds} rounds: {why}" if why else ""


def incomplete_text(number: int, of: int, what: str) -> list[str]:
    """``1 of 4 batches ended early``, for a headline; nothing if all ended as planned."""
    return [f"{number} of {of} {what} ended early"] if number else []


def complete_rounds(evidence: Evidence, study: Study) -> int:
    """Number of rounds in which every arm of a study was measured."""
    arms = [evidence.columns.arms.get((study.id, arm.name)) for arm in study.arms]
    numbers = [set() if arm is None else set(arm.numbers.tolist()) for arm in arms]
    return len(set.intersection(*numbers)) if numbers else 0
