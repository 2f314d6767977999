"""Where a session's evidence is from: a run that it measures, one that it goes on with, or an earlier one as it is.

`EvidenceSource` is what the session asks of all three. `MeasureSource` and `ResumeSource` have modules of their own.
What reads and judges evidence is loaded where it is used: `pytest --collect-only` needs none of it, nor its numpy.
"""

from __future__ import annotations

import gc
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_ddpscale.errors import OptionError, WritingError
from pytest_ddpscale.launch.launcher import Cluster
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.metric_catalogue import THROUGHPUT_PER_GPU, TRAINING_METRICS
from pytest_ddpscale.plan.planner import Question
from pytest_ddpscale.plan.study import DeviceType, Plan
from pytest_ddpscale.results.notices import Listener
from pytest_ddpscale.results.run_directory import RunDirectory
from pytest_ddpscale.results.run_json import Ending, ThresholdsUsed
from pytest_ddpscale.results.run_lock import RunLock
from pytest_ddpscale.results.run_opening import judging_directory
from pytest_ddpscale.results.run_record import binding_notes
from pytest_ddpscale.results.verdicts import Judgement, LoweredBound
from pytest_ddpscale.session.again import command_again
from pytest_ddpscale.session.references import refuse_itself, with_measured_references
from pytest_ddpscale.settings import Settings
from pytest_ddpscale.thresholds.cases import AnyCase, cases_for, device_type, training_cases
from pytest_ddpscale.thresholds.changes import altered_parts, own_bounds, weaker_bounds
from pytest_ddpscale.thresholds.loading import ThresholdsFile
from pytest_ddpscale.thresholds.model import Requirement

if TYPE_CHECKING:
    from pytest_ddpscale.evidence.evidence import Evidence
    from pytest_ddpscale.history.baseline import Baseline

THIS_MACHINE = Cluster()


@dataclass(frozen=True)
class Site:
    """Where the session runs and what it was asked.

    Attributes:
        collect_only: measures nothing, so that no device is needed.
        asked: options of its command line on how to measure and judge, by flag; empty for a switch.
        paths: of tests, where any were named.
    """

    settings: Settings
    rootdir: Path
    invocation_dir: Path
    argv: tuple[str, ...] = ()
    collect_only: bool = False
    asked: Mapping[str, str] = field(default_factory=dict)
    paths: tuple[str, ...] = ()


@dataclass(frozen=True)
class Subject:
    """What is judged, by its canonical name, and by what."""

    site: Site
    thresholds: ThresholdsFile
    sku: str

    @property
    def settings(self) -> Settings:
        """What the user asked for."""
        return self.site.settings

    @property
    def device_type(self) -> DeviceType:
        """``cpu`` or ``cuda``."""
        return device_type(self.thresholds.thresholds.skus[self.sku])

    @property
    def extends(self) -> tuple[ThresholdsUsed, ...]:
        """The files that the thresholds file extends, the nearest first."""
        return tuple(ThresholdsUsed(path, sha256) for path, sha256 in self.thresholds.extended)

    @cached_property
    def lowered(self) -> tuple[LoweredBound, ...]:
        """What the thresholds file asks less of than those that it extends."""
        changes = weaker_bounds(self.thresholds, self.sku)
        return tuple(_lowered(change.was, change.now) for change in changes if change.was is not None)

    @cached_property
    def altered(self) -> tuple[str, ...]:
        """What else of the SKU is not as in the files that the thresholds file extends."""
        return altered_parts(self.thresholds, self.sku)

    def own_bounds(self, cases: Sequence[AnyCase]) -> set[str]:
        """Ids of those among cases whose published bounds the files that the thresholds file extends do not have."""
        own = own_bounds(self.thresholds, self.sku)
        return {case.id for case in cases if case.requirement.key() in own}

    def cases(self, layout: Layout) -> list[AnyCase]:
        """Every requirement of the SKU, as asked of that many nodes and GPUs."""
        return with_measured_references(cases_for(self.thresholds, self.sku, layout))

    def evidence_of_nothing(self, plan: Plan | None = None) -> Evidence:
        """What a run says of which nothing was measured, though it may have been planned."""
        from pytest_ddpscale.evidence.columns import Columns
        from pytest_ddpscale.evidence.evidence import Evidence

        return Evidence(plan or Plan(self.sku, self.device_type, ()), Columns(), {})


def _lowered(was: Requirement, now: Requirement | None) -> LoweredBound:
    """A change of a requirement that asks less."""
    only_warns = now is not None and (was.severity, now.severity) == ("fail", "warn")
    return LoweredBound(str(was), was.metric, was.bound, now.bound if now else None, only_warns)


@dataclass(frozen=True)
class Machine:
    """What there is to measure.

    Attributes:
        cluster: the nodes.
        devices: GPUs (CPU: ranks) that may be used, on all nodes; None if unknown, as on a laptop that only plans.
        gpus_asked: that each node should have, if that is more than this one has.
        silent: what is known of GPUs that are missing here, or do not answer.
    """

    cluster: Cluster = THIS_MACHINE
    devices: int | None = None
    gpus_asked: int | None = None
    silent: tuple[str, ...] = ()

    @property
    def per_node(self) -> int | None:
        """Devices of each node; None if unknown."""
        return None if self.devices is None else self.devices // self.cluster.nodes

    def without(self, unfit: Mapping[str, str]) -> Machine | None:
        """The nodes that are fit; None if there are none, or if they cannot be chosen."""
        others = self.cluster.without(unfit)
        if others is None or self.per_node is None:
            return None
        return replace(self, cluster=others, devices=self.per_node * others.nodes)


class EvidenceSource(ABC):
    """Where a session's evidence is from; by itself it measures nothing, and leaves no trace but verdicts and reports.

    Attributes:
        subject: what is judged, and by what.
        machine: what there is to measure; nothing is known of it where nothing is measured.
        cases: every requirement of the SKU.
        selected: those that are asked; fewer nodes may be left to ask them of once nodes were looked at.
        announcement: what follows "ddpscale judges by FILE" on the terminal.
        plan: all that is or was to be measured; None before anything is selected.
        plan_to_measure: what of it this session measures; None for nothing.
        run: where verdicts and reports go; None before it is opened.
        measured_run: the run that holds the measurements; that of a session that measures is there once it is opened.
        evidence: what was measured; None before it is.
        writing_problem: why not all could be written; empty if it was.
    """

    announcement = ""
    measured_run: RunDirectory

    def __init__(self, subject: Subject, machine: Machine, layout: Layout) -> None:
        self.subject = subject
        self.machine = machine
        self.cases = subject.cases(layout)
        self.selected: list[AnyCase] = []
        self.plan: Plan | None = None
        self.plan_to_measure: Plan | None = None
        self.run: RunDirectory | None = None
        self.evidence: Evidence | None = None
        self.writing_problem = ""
        self._lock: RunLock | None = None

    @abstractmethod
    def select(self, cases: Sequence[AnyCase]) -> None:
        """Settle what is asked, and plan exactly that.

        Raises:
            RunDirectoryError: the run that is to be judged or resumed is broken.
            OptionError: the run that is to be resumed was begun on other devices.
        """

    @abstractmethod
    def _open(self) -> None:
        """Lock the run directory, make what is not there, and record what is about to happen."""

    @abstractmethod
    def why_not(self, case: AnyCase) -> str | None:
        """What is lacking for a requirement; None if nothing is."""

    @abstractmethod
    def covering(self, question: Question | None, listener: Listener) -> Evidence:
        """Evidence that covers a question, measured beyond the plan if need and means be; None asks for none."""

    def question(self, metric: str, workload: str, world_size: int) -> Question:
        """What a test of the site's own asks.

        Raises:
            OptionError: no such metric or workload, or more ranks than there are devices.
        """
        askable = [name for name, definition in TRAINING_METRICS.items() if not definition.takes_sku]
        if metric not in askable:
            raise OptionError("run.samples", f"found metric {metric!r}", f"one of {', '.join(askable)}")
        workloads = self.subject.thresholds.thresholds.skus[self.subject.sku].workloads
        if workload not in workloads:
            raise OptionError("run.samples", f"found workload {workload!r}", f"one of {', '.join(workloads)}")
        if self.machine.devices is not None and world_size > self.machine.devices:
            raise OptionError("run.samples", f"found world size {world_size}", f"at most {self.machine.devices}")
        asked = Question(TRAINING_METRICS[metric], workloads[workload], world_size)
        with_ddp = replace(asked, one_gpu="ddp")
        required = [case.question for case in training_cases(self.cases)]
        return with_ddp if with_ddp in required and asked not in required else asked

    @property
    def expected_img_per_s(self) -> dict[str, float]:
        """Throughput of one GPU that the thresholds expect, by workload; for estimates of time only."""
        training = [case.requirement for case in training_cases(self.cases)]
        throughput = [requirement for requirement in training if requirement.definition is THROUGHPUT_PER_GPU]
        return {r.workload: r.source.measured or r.bound for r in throughput if r.world_size == 1}

    @cached_property
    def again(self) -> tuple[str, ...]:
        """The command that measures it again: as the run recorded it, or what is known of one that did not."""
        return self.measured_run.read_run().again or command_again(self.subject, self.machine)

    def measure(self, listener: Listener) -> None:  # noqa: B027 (nothing, unless a source measures)
        """See to it that what is planned was measured, once."""

    def close(self, status: Ending) -> None:  # noqa: B027 (an earlier run keeps its record)
        """Record how the session ended."""

    def judged_for(self) -> dict[str, str]:
        """By whom, where and for which ticket an earlier run is judged; what is measured has that in its run.json."""
        return {}

    def remember(self, judgement: Judgement, history_file: Path | None) -> str:
        """Add a new run to the site's history. Returns why that failed; empty if it did not, or if there is none."""
        return ""

    def open_run(self) -> None:
        """Make the run directory and record what is about to happen.

        Raises:
            RunDirectoryError: it cannot be written, another process writes it, or the run that is to be judged or
                resumed is broken.
        """
        try:
            self._open()
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Let other processes write the run directory: the last thing a session does with it."""
        if self._lock is not None:
            self._lock.release()

    def measured_so_far(self) -> Evidence | None:
        """What was measured, also where measuring was cut short; None if it did not begin."""
        if self.evidence is None and self.run is not None and self.run.measurements_jsonl.exists():
            return self._read(self.run)
        return self.evidence

    def _read(self, run: RunDirectory) -> Evidence:
        """What a run holds. Raises RunDirectoryError."""
        from pytest_ddpscale.evidence.evidence import DIED, read_evidence

        # What is read lives as long as the session: the collector need not look through it again and again. Where
        # somebody's tests have loaded triton it has to: that prints warnings at exit about what is never collected.
        gc.disable()
        try:
            return read_evidence(run, self.writing_problem or DIED)
        finally:
            gc.enable()
            if "triton" not in sys.modules:
                gc.freeze()

    def _read_earlier(self, run: RunDirectory) -> Evidence:
        """The same of a run of another session, whose baseline may be broken: found later, that would look like a
        requirement that is not kept.
        """
        from pytest_ddpscale.session.past_runs import kept_baseline

        evidence = self._read(run)
        kept_baseline(run)
        return evidence

    def keep_baseline(self, baseline: Baseline) -> None:
        """Write down what earlier runs a verdict was made of, beside that verdict."""
        if self.run is not None and not self.writing_problem and not self.run.baseline_json.exists():
            with self._writing(self.run):
                self.run.write_json(self.run.baseline_json, baseline)

    @property
    def is_simulated(self) -> bool:
        """Whether no machine was measured."""
        devices = self.evidence.columns.devices if self.evidence else frozenset[str]()
        return self.measured_run.read_run().is_simulated(devices)

    def notes(self) -> tuple[str, ...]:
        """What a reader has to know of how this was measured."""
        record, records = self.measured_run.read_run(), self.measured_run.read_records()
        from pytest_ddpscale.verdict.device_notes import device_notes
        from pytest_ddpscale.verdict.rank_notes import rank_notes

        of_devices = (*rank_notes(self.evidence), *device_notes(self.evidence)) if self.evidence else ()
        left_out = [f"{host} was left out: {why}" for host, why in record.left_out.items()]
        of_run = (*left_out, *binding_notes(records), *record.resumption_notes())
        of_lock = (self._lock.note,) if self._lock and self._lock.note else ()
        not_asked = [f"{one.where}: {one.found}" for one in self.subject.thresholds.warnings.get(self.subject.sku, ())]
        return (*of_devices, *of_run, *of_lock, *not_asked)

    @contextmanager
    def _writing(self, run: RunDirectory) -> Iterator[None]:
        """A disk that is full while measuring ends the measuring, not the session: what was measured is judged."""
        try:
            yield
        except WritingError as error:
            self.writing_problem = str(error)
        except OSError as error:
            self.writing_problem = str(run.unwritten(run.path, error))


class JudgeSource(EvidenceSource):
    """An earlier run as it is, of that layout: nothing is measured."""

    def __init__(self, subject: Subject, earlier: RunDirectory, layout: Layout) -> None:
        super().__init__(subject, Machine(), layout)
        self.measured_run = earlier
        self.announcement = f" what {earlier.path} holds: nothing is measured"

    def select(self, cases: Sequence[AnyCase]) -> None:
        """Read what was measured: a broken run is refused before any item runs."""
        self.selected = list(cases)
        refuse_itself(self.cases, self.measured_run)
        self.plan = self.measured_run.read_plan()
        self.evidence = self._read_earlier(self.measured_run)

    def _open(self) -> None:
        self.run, self._lock = judging_directory(self.measured_run, self.subject.settings.run_dir)

    def judged_for(self) -> dict[str, str]:
        """What this session was told: the run that was measured keeps what its own was."""
        settings = self.subject.settings
        told = {"judged_by": settings.operator, "site": settings.site, "ticket": settings.ticket}
        return {name: given for name, given in told.items() if given}

    def why_not(self, case: AnyCase) -> str | None:
        """What the thresholds say that it lacks: what was measured shows the rest."""
        return case.missing or None

    def covering(self, question: Question | None, listener: Listener) -> Evidence:
        """All there is."""
        assert self.evidence is not None  # read when selected
        return self.evidence

    def notes(self) -> tuple[str, ...]:
        """Those of the earlier run as well, and first of all that it is one."""
        kept = self.measured_run.read_run().notes
        return (f"judged from {self.measured_run.path}, nothing was measured", *kept, *super().notes())
