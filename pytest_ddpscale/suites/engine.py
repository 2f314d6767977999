"""What all suites share: a suite plans studies on the available nodes and says with which columns their results are
told.

Options, launching, resuming, the run directory, reports and exit codes are the engine's. A suite is imported only when
its command is typed.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, ClassVar

import numpy as np

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.judge.metrics import Arms, merged
from pytest_ddpscale.judge.stats import Estimate, estimate_of, t_quantile
from pytest_ddpscale.judge.values import samples_of
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.metric_catalogue import Metric, Scale
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS, PACES, Pace, Question
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.report.figures import write_pngs
from pytest_ddpscale.report.while_measuring import Progress, load_warning
from pytest_ddpscale.report.words.reasons import say
from pytest_ddpscale.run.evidence import Evidence, read_evidence
from pytest_ddpscale.run.record_lines import Listener
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.run_json import Ending, RunRecord
from pytest_ddpscale.run.table import ArmRounds
from pytest_ddpscale.session.evidence import EvidenceSource
from pytest_ddpscale.session.open import Machine, Site, Subject, resolve_machine, thresholds_path
from pytest_ddpscale.settings import (
    AUTO,
    OF_ANY_RUN,
    OPTIONS,
    Settings,
    read_value,
    refuse_unread_variables,
    settings_from,
)
from pytest_ddpscale.suites.registry import suite_of
from pytest_ddpscale.suites.results import ON_CPU, Results, facts_of
from pytest_ddpscale.thresholds.loading import load_thresholds
from pytest_ddpscale.util.arrays import FloatArray
from pytest_ddpscale.util.atomic_writing import write_atomically
from pytest_ddpscale.util.document import html_page, markdown_page

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
    def is_cpu(self) -> bool:
        """Whether ranks have no GPU."""
        return self.subject.device_type == "cpu"

    @property
    def ranks_per_node(self) -> int:
        """GPUs (CPU: ranks) of each node."""
        return self.machine.per_node or 1

    @property
    def world_size(self) -> int:
        """Ranks on all nodes."""
        return self.ranks_per_node * self.machine.cluster.nodes

    @property
    def pace(self) -> Pace:
        """How long and how often arms are timed; by default the fewest rounds that give an interval."""
        default, settings = PACES[self.subject.device_type], self.settings
        return replace(default, rounds=settings.rounds or FEWEST_ROUNDS, block_s=settings.block_s or default.block_s)

    def study(self, workload: Workload, arms: Iterable[Arm], rounds: int | None = None, **more: Any) -> Study:
        """A study at that pace, or with other rounds."""
        pace = self.pace
        return Study("weak", workload, tuple(arms), rounds or pace.rounds, pace.block_s, pace.warmup_s, **more)

    def plan(self, studies: Iterable[Study] = (), **more: Any) -> Plan:
        """A plan of studies, on all nodes."""
        nodes, per_node, of = self.machine.cluster.nodes, self.ranks_per_node, self.subject
        return Plan(of.sku, of.device_type, tuple(studies), nodes=nodes, ranks_per_node=per_node, **more)


@dataclass(frozen=True)
class MeasuredSuite:
    """Results of a suite's run, with its run.json; `confidence` is that of each interval, 0 … 1."""

    evidence: Evidence
    confidence: float
    record: RunRecord

    @property
    def plan(self) -> Plan:
        """What was planned."""
        return self.evidence.plan

    def complete(self, study: Study, arm: Arm) -> ArmRounds:
        """The rounds of an arm that all nodes have."""
        layout = self.plan.layout
        rounds = merged(self.evidence.columns, study.id, arm, layout)
        ranks = arm.world_size * (layout.nodes if layout.judged_by_node([arm]) else 1)
        return rounds.of(rounds.present.sum(axis=1) == ranks)

    def paces(self, study: Study, *arms: Arm) -> FloatArray:
        """Samples per second and GPU of arms in the rounds that all of them have, (arms, rounds)."""
        return np.stack(
            [
                of_arm.samples_per_s_per_gpu
                for of_arm in Arms([self.complete(study, arm) for arm in arms], 1).paired.arms
            ]
        )

    def throughput(self, study: Study, arm: Arm, *baseline: Arm) -> Estimate | None:
        """Samples per second and GPU of an arm, at the slowest rank's pace, or over those of another in the same
        rounds.

        With an interval, valid for all rounds together, from eight rounds on; None without a round.
        """
        return self.estimated(np.divide.reduce(self.paces(study, arm, *baseline)))

    def value(self, metric: Metric, study: Study, world_size: int) -> Estimate | None:
        """A metric of a study's workload; None without a round that all nodes have."""
        return self.estimated(samples_of(Question(metric, study.workload, world_size), self.evidence), metric.scale)

    def estimated(self, values: FloatArray, scale: Scale = "factors") -> Estimate | None:
        """Value and interval of rounds; None without a round."""
        return estimate_of(values, scale, self.confidence) if len(values) else None

    @property
    def versions(self) -> dict[str, str]:
        """Of the software, by name."""
        return self.record.versions | self.evidence.versions

    def why_missing(self, study_id: str) -> str:
        """Why a study has no value: an error, an interruption or the time limit; empty if none of these."""
        of, limit = self.evidence, "time limit reached" if study_id in self.evidence.out_of_time else ""
        return say(of.errors.get(study_id) or of.interrupted.get(study_id) or limit)

    def problems(self) -> list[str]:
        """Why studies are missing or rest on fewer rounds than planned."""
        problems = []
        for study in self.plan.studies:
            rounds, why = self.paces(study, *study.arms).shape[1], self.why_missing(study.id)
            if why or not rounds:
                so_far = f"{study.workload.name}: {rounds} of {study.rounds} rounds"
                problems.append(f"{so_far}: {why}" if why else so_far)
        return problems


class Suite(ABC):
    """One suite.

    Attributes:
        name: of the command.
        takes: further options of pytest that have an effect on it, beside `OF_ANY_RUN`; all others are unknown.
    """

    name: ClassVar[str]
    takes: ClassVar[tuple[str, ...]] = ()

    def add_options(self, parser: argparse.ArgumentParser) -> None:  # noqa: B027 (a suite may have none)
        """Add the suite's own options to the common ones."""

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        """Add the suite's own options, those of pytest's that it takes, and what runs it."""
        self.add_options(parser)
        common = parser.add_argument_group("as in pytest --gpu-sku=SKU")
        for option in (OPTIONS[name] for name in OPTIONS if name in (*OF_ANY_RUN, "resume", *self.takes)):
            more: dict[str, Any] = {"action": "store_true"}
            if option.metavar is not None:
                more = {"action": "append" if option.repeats else "store", "metavar": option.metavar}
            common.add_argument(option.flag, dest=option.name, help=option.help, **more)
        parser.set_defaults(
            run=lambda arguments: SuiteSource(self, nodes_of(arguments), arguments).measure_and_report()
        )

    @abstractmethod
    def plan(self, arguments: argparse.Namespace, nodes: SuiteNodes) -> Plan:
        """Plan what to measure. Raises BadInput."""

    def judge_of(self, plan: Plan, nodes: SuiteNodes) -> Any:
        """A judge that decides when a study can stop; None measures all rounds."""
        return None

    def further(self, arguments: argparse.Namespace, nodes: SuiteNodes, measured: MeasuredSuite) -> Plan | None:
        """A second plan that depends on the first results; None for nothing."""
        return None

    @abstractmethod
    def results(self, measured: MeasuredSuite) -> Results:
        """Rows and findings, from the run directory alone, because `ddpscale report` makes them again."""


class SuiteSource(EvidenceSource):
    """One measurement of a suite, new or resumed, by launchers and in a run directory like a session's."""

    def __init__(self, suite: Suite, nodes: SuiteNodes, arguments: argparse.Namespace) -> None:
        plan, resume = suite.plan(arguments, nodes), nodes.settings.resume
        super().__init__(nodes.subject, nodes.machine, plan.layout, RunDirectory.open(resume) if resume else None)
        self._suite, self._nodes, self._arguments = suite, nodes, arguments
        self.plan = self.plan_to_measure = self._first = plan
        self.named = f"{self.subject.sku}-{suite.name}"

    def judge_of(self, plan: Plan) -> Any:
        """The suite's own judge, because thresholds require nothing."""
        return self._suite.judge_of(plan, self._nodes)

    def _open(self) -> None:
        """Begin a run directory, or go on in that of --ddp-resume, which the same command has begun."""
        first, run = self._first, self.earlier
        if run is None:
            super()._open()
            # Even if the run is killed, its reports can be made.
            recorded = {"suite": self._suite.name, "confidence": self.subject.settings.confidence}
            self.measured_run.write_json(self.measured_run.suite_json, recorded)
            return
        self.go_on(run)
        begun, recorded = run.read_plan(), run.read_suite()
        is_begun = {*first.timed, *first.training_runs} <= {*begun.timed, *begun.training_runs}
        if recorded.get("suite") != self._suite.name or not is_begun:
            expected = "the command and options that it was begun with"
            raise OptionError("--ddp-resume", f"{run.path} measures something else", expected)
        super()._open()
        run.write_json(run.suite_json, recorded | {"confidence": self.subject.settings.confidence})

    def measure_and_report(self) -> int:
        """Measure the plan, then a further plan from its results, and report, also if it fails. Returns the exit code.

        Raises:
            KeyboardInterrupt: the user interrupted; measurements so far stay in the run directory.
            BadInput, OSError: the run directory cannot be written.
        """
        self.open_run()
        ending: Ending = "interrupted"
        try:
            if self.plan_to_measure is not None:
                self.measure(self._progress(self.plan_to_measure))
            more, is_first = None, len(self.plan.study_ids) == len(self._first.study_ids)
            if is_first and not self.writing_problem:
                more = self._suite.further(self._arguments, self._nodes, recorded_suite(self.measured_run)[1])
            if more is not None:
                self.measured_run.write_json(self.measured_run.plan_json, self.plan.joined(more))
                self._launch(more, self._progress(more))
            ending = "finished"
        finally:
            self.close(ending)
            self.release()
            code = report_suite(self.measured_run)
        return code

    def _progress(self, plan: Plan) -> Listener:
        """Progress lines: in place on a terminal, at most one a minute in a log."""
        shown_s, is_terminal = -60.0, sys.stderr.isatty()

        def show(line: str, passing: bool) -> None:
            nonlocal shown_s
            if passing and not is_terminal and time.monotonic() - shown_s < 60:
                return
            shown_s, end = time.monotonic(), "\n"
            if is_terminal:
                width, end = (shutil.get_terminal_size().columns - 1, "") if passing else (None, end)
                line = f"\r\x1b[K{line[:width]}"
            print(line, end=end, file=sys.stderr, flush=True)

        if warning := load_warning(os.getloadavg()[0], os.cpu_count() or 1):
            show(warning, False)
        return Progress(plan, show, samples_per_s=self.expected_samples_per_s)


def nodes_of(arguments: argparse.Namespace) -> SuiteNodes:
    """The nodes to measure, from options. Raises BadInput."""
    refuse_unread_variables(os.environ)
    settings = settings_from(vars(arguments), {})
    site = Site(settings, Path.cwd(), Path.cwd(), tuple(sys.argv))
    thresholds = load_thresholds(thresholds_path(site), of_earlier_run=settings.resume is not None)
    sku = AUTO if settings.gpu_sku == AUTO else thresholds.sku_name(settings.gpu_sku)
    return SuiteNodes(*resolve_machine(site, thresholds, sku))


def recorded_suite(run: RunDirectory) -> tuple[Suite, MeasuredSuite]:
    """The suite that a run directory is of, and what it holds. Raises BadInput."""
    recorded = run.read_suite()
    suite = read_value(str(run.suite_json), str(recorded.get("suite")), suite_of)
    return suite, MeasuredSuite(read_evidence(run), recorded.get("confidence", 0.95), run.read_run())


def report_suite(run: RunDirectory) -> int:
    """Make a suite's reports from its run directory. Returns the exit code. Raises BadInput, OSError."""
    return tell(run, *recorded_suite(run))


def tell(run: RunDirectory, suite: Suite, measured: MeasuredSuite) -> int:
    """Print the results and write all of their files. Returns the exit code: 1 if something failed or is missing.

    Raises OSError.
    """
    results, confidence = suite.results(measured), measured.confidence
    if measured.plan.device_type == "cpu":
        results = replace(results, what=f"{results.what}, on a CPU", mark=ON_CPU)
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    print(*results.lines(confidence, columns), sep="\n")
    values = {
        "schema_version": 2, "suite": suite.name, "headline": results.headline, "problems": results.problems,
        "failures": results.failures, "confidence": confidence,
        "tables": {rows.name: rows.json() for rows in results.tables},
    }  # fmt: skip
    for name, content in {run.suite_json.name: values, **results.files}.items():
        run.write_json(run.path / name, content)
    for rows in results.tables:
        write_atomically(run.path / f"{rows.name}.csv", rows.csv())
    if lost := next((picture.caption for picture in results.drawn if not picture.svg), ""):
        print(f"figures {lost}")
    else:
        write_pngs(results.drawn, run.plots)
    facts = facts_of(suite.name, measured.record, measured.evidence.gangs, measured.versions)
    blocks = results.blocks(confidence, facts)
    write_atomically(run.path / "report.md", markdown_page(blocks))
    write_atomically(run.path / "report.html", html_page(results.headline, blocks))
    print(f"report: {run.path / 'report.html'}")
    return int(bool(results.problems or results.failures))


def mean_estimate(values: Sequence[float], confidence: float) -> Estimate:
    """Mean and two-sided Student-t interval of independent rounds (Student 1908), one value per round.

    For numbers of rounds that were fixed beforehand; a single one has no interval.
    """
    mean = fmean(values)
    if len(values) < 2:
        return Estimate(mean, None)
    reach = t_quantile(0.5 + confidence / 2, len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return Estimate(mean, (mean - reach, mean + reach))


def geometric_mean_estimate(values: Sequence[float], confidence: float) -> Estimate:
    """`mean_estimate` of the logarithms: the right mean for ratios and rates."""
    value, interval = mean_estimate([math.log(value) for value in values], confidence)
    return Estimate(math.exp(value), interval and (math.exp(interval[0]), math.exp(interval[1])))
