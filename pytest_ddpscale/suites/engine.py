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
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.judge.metrics import merged
from pytest_ddpscale.judge.stats import Found, estimate_of, t_quantile
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.metric_catalogue import Scale
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS, PACES, Pace
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.report.words.reasons import say
from pytest_ddpscale.run.evidence import Evidence, read_evidence
from pytest_ddpscale.run.record_lines import Listener
from pytest_ddpscale.run.run_directory import RunDirectory, broken_file
from pytest_ddpscale.run.run_json import Ending, RunRecord
from pytest_ddpscale.run.survey_record import Survey
from pytest_ddpscale.session.evidence import EvidenceSource
from pytest_ddpscale.session.open import Machine, Site, Subject, look, thresholds_path
from pytest_ddpscale.settings import OPTIONS, Settings, confidence_level, refuse_unread_variables, settings_from
from pytest_ddpscale.suites.results import Results, facts_of
from pytest_ddpscale.thresholds.loading import load_thresholds
from pytest_ddpscale.util.arrays import FloatArray
from pytest_ddpscale.util.atomic_writing import write_atomically
from pytest_ddpscale.util.document import html_page, markdown_page

if TYPE_CHECKING:
    from pytest_ddpscale.launch.supervisor import Judge

SUITE_SCHEMA_VERSION = 2
NOT_ALL_WELL = 1  # exit code if something failed or could not be measured
_LOG_EVERY_S = 60.0
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
    def empty_plan(self) -> Plan:
        """A plan without studies, on all nodes."""
        subject, nodes = self.subject, self.machine.cluster.nodes
        return Plan(subject.sku, subject.device_type, (), nodes=nodes, ranks_per_node=self.ranks_per_node)

    @property
    def pace(self) -> Pace:
        """How long and how often arms are timed; by default the fewest rounds that give an interval."""
        default, settings = PACES[self.subject.device_type], self.settings
        return replace(default, rounds=settings.rounds or FEWEST_ROUNDS, block_s=settings.block_s or default.block_s)

    def study(self, workload: Workload, arms: Iterable[Arm], rounds: int | None = None, **more: Any) -> Study:
        """A study at that pace, or with other rounds."""
        pace = self.pace
        return Study("weak", workload, tuple(arms), rounds or pace.rounds, pace.block_s, pace.warmup_s, **more)

    def plan(self, studies: Iterable[Study], **more: Any) -> Plan:
        """A plan of studies."""
        return replace(self.empty_plan, studies=tuple(studies), **more)


@dataclass(frozen=True)
class Measured:
    """What was measured so far; `confidence` is that of each interval, 0 … 1."""

    evidence: Evidence
    confidence: float

    @property
    def plan(self) -> Plan:
        """What was planned."""
        return self.evidence.plan

    def paces(self, study: Study, *arms: Arm) -> FloatArray:
        """Samples per second and GPU of arms in the rounds that all of them have, (arms, rounds)."""
        found = [merged(self.evidence.columns, study.id, arm, self.plan.layout) for arm in arms]
        numbers = reduce(np.intersect1d, (one.numbers for one in found))
        return np.stack([one.samples_per_s_per_gpu[np.isin(one.numbers, numbers)] for one in found])

    def throughput(self, study: Study, arm: Arm, baseline: Arm | None = None) -> Found | None:
        """Samples per second and GPU of an arm, at the slowest rank's pace, or over those of another in the same
        rounds.

        With an interval, valid for all rounds together, from eight rounds on; None without a round.
        """
        measured, *compared = self.paces(study, arm, *([] if baseline is None else [baseline]))
        return self.estimated(measured / compared[0] if compared else measured)

    def estimated(self, values: FloatArray, scale: Scale = "factors") -> Found | None:
        """Value and interval of rounds; None without a round."""
        return estimate_of(values, scale, self.confidence) if len(values) else None


@dataclass(frozen=True)
class MeasuredSuite(Measured):
    """Results of a suite's run, with its run.json."""

    record: RunRecord

    @property
    def versions(self) -> dict[str, str]:
        """Of the software, by name."""
        return self.record.versions | self.evidence.versions

    def why_missing(self, study_id: str) -> str:
        """Why a study has no value: an error, an interruption or the time limit; empty if none of these."""
        of, limit = self.evidence, "time limit reached" if study_id in self.evidence.out_of_time else ""
        return say(of.errors.get(study_id) or of.interrupted.get(study_id) or limit)

    def problems(self, lacking: Collection[str] = ()) -> list[str]:
        """Why arms of studies are missing or rest on fewer rounds than planned, and what is `lacking` by study id."""
        found, of = [], self.evidence.columns
        for study in self.plan.studies:
            numbers = {arm.name: merged(of, study.id, arm, self.plan.layout).numbers.tolist() for arm in study.arms}
            rounds, why = len(set.intersection(*map(set, numbers.values()))), self.why_missing(study.id)
            missing, name = [arm for arm, of_arm in numbers.items() if not of_arm], study.workload.name
            if missing or not rounds or study.id in lacking:
                named = f" ({', '.join(missing)})" if 0 < len(missing) < len(numbers) else ""
                found.append(f"{name}{named}: {why or 'no complete round'}")
            elif why:
                found.append(f"{name}: after {rounds} of {study.rounds} rounds: {why}")
        return found


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
    def results(self, measured: MeasuredSuite) -> Results:
        """Rows and findings, from the run directory alone, because `ddpscale report` makes them again."""


class SuiteSource(EvidenceSource):
    """One measurement of a suite, new or resumed, by launchers and in a run directory like a session's."""

    def __init__(self, suite: Suite, nodes: SuiteNodes, arguments: argparse.Namespace) -> None:
        resume, layout = nodes.settings.resume, Layout(nodes.machine.cluster.nodes, nodes.ranks_per_node)
        super().__init__(nodes.subject, nodes.machine, layout, RunDirectory.open(resume) if resume else None)
        self._suite, self._nodes, self._arguments = suite, nodes, arguments
        self.plan = self.plan_to_measure = self._first = suite.plan(arguments, nodes)

    @property
    def named(self) -> str:
        """Name of the run directory, after the time."""
        return f"{self.subject.sku}-{self._suite.name}"

    def judge_of(self, plan: Plan) -> Judge | None:
        """The suite's own judge, because thresholds require nothing."""
        return self._suite.judge_of(plan, self._nodes)

    def unfit_of(self, plan: Plan, surveys: Sequence[Survey], **_: bool) -> dict[str, str]:
        """Why the suite refuses to measure, by host."""
        return self._suite.unfit_of(surveys)

    def _open(self) -> None:
        """Begin a run directory, or go on in that of --ddp-resume, which the same command has begun."""
        name, first, run = self._suite.name, self._first, self.earlier
        if run is None:
            super()._open()
            # Even if the run is killed, its reports can be made.
            said = {"suite": name, "confidence": self.subject.settings.confidence}
            self.measured_run.write_json(self.measured_run.suite_json, said)
            return
        self.refuse_other_devices(first)
        begun = run.read_plan()
        there = (*begun.timed, *begun.training_runs)
        if run.read_suite().get("suite") != name or not {*first.timed, *first.training_runs} <= {*there}:
            expected = "the command and options that it was begun with"
            raise OptionError("--ddp-resume", f"{run.path} measures something else", expected)
        super()._open()

    def measure_and_close(self) -> None:
        """Measure the plan, then a further plan from its results, and record how the run ended.

        Raises:
            KeyboardInterrupt: the user interrupted; measurements so far stay in the run directory.
            RunDirectoryError: the run directory cannot be written.
        """
        ending: Ending = "interrupted"
        try:
            assert self.plan is not None  # since it was made
            if self.plan_to_measure is not None:
                self.measure(self._progress(self.plan_to_measure))
            is_whole = len(self.plan.study_ids) > len(self._first.study_ids)
            if not self.writing_problem and not is_whole:
                more = self._suite.further(self._arguments, self._nodes, self.measured_suite())
                if more is not None:
                    self.measured_run.write_json(self.measured_run.plan_json, self.plan.joined(more))
                    self._launch(more, self._progress(more))
            ending = "finished"
        finally:
            self.close(ending)
            self.release()

    def measured_suite(self) -> MeasuredSuite:
        """Results so far. Raises RunDirectoryError if the run directory cannot be read."""
        return measured_suite(self.measured_run, self.subject.settings.confidence)

    def _progress(self, plan: Plan) -> Listener:
        """Progress lines: in place on a terminal, at most one a minute in a log."""
        from pytest_ddpscale.report.while_measuring import Progress, load_warning

        last_shown_s, is_terminal = -_LOG_EVERY_S, sys.stderr.isatty()

        def show(line: str, passing: bool) -> None:
            nonlocal last_shown_s
            if passing and not is_terminal and time.monotonic() - last_shown_s < _LOG_EVERY_S:
                return
            last_shown_s = time.monotonic()
            width = os.get_terminal_size(sys.stderr.fileno()).columns - 1 if is_terminal and passing else None
            start, end = ("\r\x1b[K", "" if passing else "\n") if is_terminal else ("", "\n")
            print(f"{start}{line[:width]}", end=end, file=sys.stderr, flush=True)

        if warning := load_warning(os.getloadavg()[0], os.cpu_count() or 1):
            show(warning, False)
        return Progress(plan, show, samples_per_s=self.expected_samples_per_s)


def measured_suite(run: RunDirectory, confidence: float) -> MeasuredSuite:
    """What a run directory holds. Raises RunDirectoryError."""
    return MeasuredSuite(read_evidence(run), confidence, run.read_run())


def run_suite(suite: Suite, arguments: argparse.Namespace) -> int:
    """Plan, measure and report. Returns the exit code. Raises BadInput, OSError."""
    source = SuiteSource(suite, nodes_of(arguments), arguments)
    source.open_run()
    try:
        source.measure_and_close()
    except KeyboardInterrupt:
        tell(suite, source.measured_run, source.measured_suite())
        raise
    return tell(suite, source.measured_run, source.measured_suite())


def nodes_of(arguments: argparse.Namespace) -> SuiteNodes:
    """The nodes to measure, from options. Raises BadInput."""
    refuse_unread_variables(os.environ)
    settings = replace(settings_from(vars(arguments), {}), unfit="stop")  # a suite never measures unfit nodes
    site = Site(settings, Path.cwd(), Path.cwd(), tuple(sys.argv))
    thresholds = load_thresholds(thresholds_path(site), of_earlier_run=settings.resume is not None)
    asked = settings.gpu_sku
    sku = asked if asked == OPTIONS["gpu_sku"].default else thresholds.sku_name(asked)
    return SuiteNodes(*look(site, thresholds, sku))


def suite_told(run: RunDirectory, suite_of: Callable[[str], Suite | None]) -> tuple[Suite, MeasuredSuite]:
    """The suite that a run directory is of, and what it holds. Raises RunDirectoryError."""
    said = run.read_suite()
    if (suite := suite_of(str(said.get("suite")))) is None:
        raise broken_file(run.suite_json, f"suite {said.get('suite')!r}, which is none of this version")
    try:
        confidence = confidence_level(str(said.get("confidence", OPTIONS["confidence"].default)))
    except ValueError as error:
        raise broken_file(run.suite_json, f"confidence {said['confidence']!r}; expected {error}") from None
    return suite, measured_suite(run, confidence)


def tell(suite: Suite, run: RunDirectory, measured: MeasuredSuite) -> int:
    """Print the results and write all of their files. Returns the exit code. Raises OSError."""
    from pytest_ddpscale.report.figures import write_pngs

    found, confidence = suite.results(measured), measured.confidence
    drawn = found.drawn
    for line in found.lines(confidence, shutil.get_terminal_size().columns if sys.stdout.isatty() else None):
        print(line)
    values = {
        "schema_version": SUITE_SCHEMA_VERSION, "suite": suite.name, "headline": found.headline,
        "problems": list(found.problems), "failures": list(found.failures), "confidence": confidence,
        "tables": {rows.name: rows.json() for rows in found.tables}, **found.values,
    }  # fmt: skip
    for name, content in {run.suite_json.name: values, **found.files}.items():
        run.write_json(run.path / name, content)
    for rows in found.tables:
        write_atomically(run.path / f"{rows.name}.csv", rows.csv())
    if lost := next((one.caption for one in drawn if not one.svg), ""):
        print(f"figures {lost}")
    else:
        write_pngs(drawn, run.plots)
    facts = facts_of(suite.name, measured.record, measured.evidence.gangs, measured.versions)
    blocks = found.document(facts, confidence, drawn)
    write_atomically(run.path / "report.md", markdown_page(blocks))
    write_atomically(run.path / "report.html", html_page(found.headline, blocks))
    print(f"report: {run.path / 'report.html'}")
    return NOT_ALL_WELL if found.problems or found.failures else 0


def mean_estimate(values: Sequence[float], confidence: float) -> Found:
    """Mean and two-sided Student-t interval of independent rounds (Student 1908), one value per round.

    For numbers of rounds that were fixed beforehand; a single one has no interval.
    """
    mean = fmean(values)
    if len(values) < 2:
        return Found(mean, None)
    reach = t_quantile(0.5 + confidence / 2, len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return Found(mean, (mean - reach, mean + reach))


def geometric_mean_estimate(values: Sequence[float], confidence: float) -> Found:
    """`mean_estimate` of the logarithms: the right mean for ratios and rates."""
    value, interval = mean_estimate([math.log(value) for value in values], confidence)
    return Found(math.exp(value), interval and (math.exp(interval[0]), math.exp(interval[1])))
