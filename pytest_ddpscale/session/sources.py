"""Sources of a session's evidence: a new run, a resumed run, or an earlier run as it is.

`EvidenceSource` is their interface; `MeasureSource` and `ResumeSource` have their own modules.
"""

from __future__ import annotations

import gc
import shlex
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_ddpscale.errors import OptionError, RunDirectoryError, WritingError
from pytest_ddpscale.launch.launcher import Cluster
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.metric_catalogue import THROUGHPUT_PER_GPU
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.plan.words import DeviceType
from pytest_ddpscale.run.reason import Reason, because
from pytest_ddpscale.run.record_lines import Listener
from pytest_ddpscale.run.records import gangs_by_number
from pytest_ddpscale.run.run_directory import RunDirectory, RunLock, judging_directory
from pytest_ddpscale.run.run_json import JUDGED_NOTE, Ending, ThresholdsUsed
from pytest_ddpscale.run.verdicts import Judgement, LoweredBound, Verdict, read_judgement
from pytest_ddpscale.settings import Settings
from pytest_ddpscale.thresholds.cases import AnyCase, cases_for, device_type, training_cases
from pytest_ddpscale.thresholds.changes import altered_parts, own_bounds, weaker_bounds
from pytest_ddpscale.thresholds.loading import ThresholdsFile
from pytest_ddpscale.util.listing import alike, first_few
from pytest_ddpscale.util.masking import masked_arguments

if TYPE_CHECKING:
    from pytest_ddpscale.history.regression import Baseline
    from pytest_ddpscale.run.evidence import Evidence

THIS_MACHINE = Cluster()


@dataclass(frozen=True)
class Site:
    """Where the session runs, and its options.

    Attributes:
        collect_only: whether nothing is measured, so that no device is needed.
        asked: command-line options about how to measure and judge, by flag; empty for a switch.
        paths: test paths named on the command line.
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
    """The SKU to judge, by canonical name, and the thresholds to judge it by."""

    site: Site
    thresholds: ThresholdsFile
    sku: str

    @property
    def settings(self) -> Settings:
        """The user's options."""
        return self.site.settings

    @property
    def device_type(self) -> DeviceType:
        """``cpu`` or ``cuda``."""
        return device_type(self.thresholds.thresholds.skus[self.sku])

    @property
    def extends(self) -> tuple[ThresholdsUsed, ...]:
        """The files that the thresholds file extends, the nearest first."""
        return tuple(ThresholdsUsed(path, sha256) for path, sha256 in self.thresholds.extended)

    @property
    def used(self) -> ThresholdsUsed:
        """The thresholds file and those that it extends, with digests."""
        return ThresholdsUsed(str(self.thresholds.path), self.thresholds.sha256, self.extends)

    @cached_property
    def lowered(self) -> tuple[LoweredBound, ...]:
        """Bounds that the thresholds file lowers relative to the files it extends."""
        found, sku = [], self.thresholds.thresholds.skus[self.sku]
        for change in weaker_bounds(self.thresholds, self.sku):
            if (was := change.was) is not None:
                now = change.now
                only_warns = now is not None and (was.severity, now.severity) == ("fail", "warn")
                other = f", now {now.one_gpu_text}" if now is not None and now.one_gpu != was.one_gpu else ""
                unit, bound = sku.unit_of(was), now.bound if now else None
                found.append(LoweredBound(f"{was}{other}", was.metric, unit, was.bound, bound, only_warns))
        return tuple(found)

    @cached_property
    def altered(self) -> tuple[str, ...]:
        """Other parts of the SKU that differ from the files that the thresholds file extends."""
        return altered_parts(self.thresholds, self.sku)

    def own_bounds(self, cases: Sequence[AnyCase]) -> set[str]:
        """Ids of the cases whose published bounds are not in the files that the thresholds file extends."""
        own = own_bounds(self.thresholds, self.sku)
        return {case.id for case in cases if case.requirement.key() in own}

    def unseen_loss(self, required: Sequence[AnyCase], selected: Sequence[AnyCase]) -> Reason | None:
        """Which loss of speed no bound of a run rejects, whatever it measures; None if that needs no remark."""
        from pytest_ddpscale.judge.outcome import remark_on_unseen_loss

        return remark_on_unseen_loss(self.device_type, required, selected)

    def command_again(self, machine: Machine) -> tuple[str, ...]:
        """The command that measures the same again, from any directory or machine that reaches its nodes.

        Its words are SKU, launcher, nodes, command-line options and paths, with secrets masked. Append `-k` with a
        requirement's id to select one.
        """
        command = ["pytest", f"--gpu-sku={self.sku}", *self._thresholds_option]
        given = dict(self.site.asked)
        per_node, cluster = self.settings.gpus_per_node, machine.cluster
        if cluster.launcher != THIS_MACHINE.launcher:  # name the nodes, which may be others where the command is typed
            given = {"--ddp-launcher": cluster.launcher, "--ddp-nodes": str(cluster.nodes), **given}
            per_node = per_node or machine.per_node
        if per_node is not None:
            given["--ddp-gpus-per-node"] = str(per_node)
        command += [f"{flag}={value}" if value else flag for flag, value in given.items()]
        return tuple(masked_arguments([*command, *self.site.paths]))

    def calibrate_command(self, run: Path, *, is_simulated: bool) -> str:
        """The command that computes bounds, which extend its thresholds, from a run, as one line for a shell.

        Others may be added to the run; a simulated one has to be allowed.
        """
        allowed = ["--allow-simulated"] if is_simulated else []
        return shlex.join(["ddpscale", "calibrate", str(run), *self._thresholds_option, *allowed])

    @property
    def _thresholds_option(self) -> list[str]:
        return [] if self.settings.thresholds is None else [f"--thresholds={self.settings.thresholds}"]

    def cases(self, layout: Layout) -> list[AnyCase]:
        """All requirements of the SKU for that number of nodes and GPUs."""
        return cases_for(self.thresholds, self.sku, layout)

    def evidence_of_nothing(self, plan: Plan | None = None) -> Evidence:
        """Evidence of a run, planned or not, of which nothing was measured."""
        from pytest_ddpscale.run.evidence import Evidence
        from pytest_ddpscale.run.table import Columns

        return Evidence(plan or Plan(self.sku, self.device_type, ()), Columns(), {})


@dataclass(frozen=True)
class Machine:
    """The nodes and devices to measure.

    Attributes:
        cluster: the nodes.
        devices: GPUs (CPU: ranks) that may be used, on all nodes; None if unknown, as on a laptop that only plans.
        gpus_asked: requested GPUs per node, if more than this node has.
        silent: messages about GPUs that are missing here or do not answer.
        lacks_gpus: whether no GPU answers here, so that the check of GPUs is all that can be judged; `devices` are then
            those that should be there.
    """

    cluster: Cluster = THIS_MACHINE
    devices: int | None = None
    gpus_asked: int | None = None
    silent: tuple[str, ...] = ()
    lacks_gpus: bool = False

    @property
    def devices_present(self) -> int | None:
        """Devices that may be used; None if unknown."""
        return 0 if self.lacks_gpus else self.devices

    @property
    def per_node(self) -> int | None:
        """Devices of each node; None if unknown."""
        return None if self.devices is None else self.devices // self.cluster.nodes

    def without(self, unfit: Mapping[str, str]) -> Machine | None:
        """The machine without unfit nodes; None if none are left, or if a scheduler chooses the nodes."""
        others = self.cluster.without(unfit)
        if others is None or self.per_node is None:
            return None
        return replace(self, cluster=others, devices=self.per_node * others.nodes)


class EvidenceSource(ABC):
    """A session's source of evidence; the base measures nothing and writes only verdicts and reports.

    Attributes:
        subject: SKU and thresholds.
        machine: nodes and devices to measure; without content if nothing is measured.
        cases: all requirements of the SKU.
        selected: the selected requirements; replaced if unfit nodes are left out.
        announcement: text after "ddpscale judges by FILE" on the terminal.
        plan: the whole plan; None before requirements are selected.
        plan_to_measure: the part that this session measures; None for nothing.
        run: directory for verdicts and reports; None before it is opened.
        measured_run: the run with the measurements; a session that measures has it once opened.
        evidence: the measurements; None before they exist.
        writing_problem: why some records could not be written; empty if all were.
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
        """Set the selected requirements, and plan exactly those.

        Raises:
            RunDirectoryError: the run to judge or resume is broken.
            OptionError: the run to resume was started on other devices.
        """

    @abstractmethod
    def _open(self) -> None:
        """Lock the run directory, creating it if missing, and record the session's start."""

    @abstractmethod
    def why_not(self, case: AnyCase) -> str | None:
        """Why a requirement cannot be measured or judged; None if it can."""

    @abstractmethod
    def measured(self, listener: Listener) -> Evidence:
        """The evidence, measured first if necessary."""

    @property
    def expected_samples_per_s(self) -> dict[str, float]:
        """Expected throughput of one GPU by workload, from the thresholds; only for time estimates."""
        training = [case.requirement for case in training_cases(self.cases)]
        throughput = [requirement for requirement in training if requirement.definition is THROUGHPUT_PER_GPU]
        return {r.workload: r.source.measured or r.bound for r in throughput if r.world_size == 1}

    @cached_property
    def again(self) -> tuple[str, ...]:
        """The command that measures it again: as recorded in the run, else reconstructed."""
        return self.measured_run.read_run().again or self.subject.command_again(self.machine)

    def measure(self, listener: Listener) -> None:  # noqa: B027 (nothing, unless a source measures)
        """Measure the plan, once."""

    def close(self, status: Ending) -> None:  # noqa: B027 (an earlier run keeps its record)
        """Record how the session ended."""

    def judged_for(self) -> dict[str, str]:
        """Notes of who judges an earlier run, as in a judgement's basis; a measured run has its own in run.json."""
        return {}

    def remember(self, judgement: Judgement, history_file: Path) -> str:
        """Add a new run to the site's history. Returns why that failed; empty if it did not."""
        return ""

    def open_run(self) -> None:
        """Open the run directory and record the session's start.

        Raises:
            RunDirectoryError: it cannot be written, another process writes it, or the run to judge or resume is
                broken.
        """
        try:
            self._open()
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Release the lock of the run directory; the session does not use it after that."""
        if self._lock is not None:
            self._lock.release()

    def measured_so_far(self) -> Evidence | None:
        """The measurements, even of an interrupted run; None if measuring did not begin."""
        if self.evidence is None and self.run is not None and self.run.measurements_jsonl.exists():
            return self._read(self.run)
        return self.evidence

    def _read(self, run: RunDirectory) -> Evidence:
        """The evidence in a run. Raises RunDirectoryError."""
        from pytest_ddpscale.run.evidence import DIED, read_evidence

        # The evidence lives as long as the session, so freeze it to spare the garbage collector. Not if other tests
        # have loaded triton, which prints warnings at exit about objects that are never collected.
        gc.disable()
        try:
            return read_evidence(run, self.writing_problem or DIED)
        finally:
            gc.enable()
            if "triton" not in sys.modules:
                gc.freeze()

    def _read_earlier(self, run: RunDirectory) -> Evidence:
        """The evidence in another session's run; also checks its baseline, so that a broken one is refused early and
        does not look like a failed requirement.
        """
        from pytest_ddpscale.session.past_runs import kept_baseline

        evidence = self._read(run)
        kept_baseline(run)
        return evidence

    def keep_baseline(self, baseline: Baseline) -> None:
        """Save the baseline that a verdict used, beside the verdict."""
        if self.run is not None and not self.writing_problem and not self.run.baseline_json.exists():
            with self._writing(self.run):
                self.run.write_json(self.run.baseline_json, baseline)

    @property
    def is_simulated(self) -> bool:
        """Whether the measurements are simulated."""
        devices = self.evidence.columns.devices if self.evidence else frozenset[str]()
        return self.measured_run.read_run().is_simulated(devices)

    def notes(self, verdicts: Sequence[Verdict]) -> tuple[Reason, ...]:
        """Notes for the reader about how this was measured, and about ranks that no verdict names."""
        record, records = self.measured_run.read_run(), self.measured_run.read_records()
        from pytest_ddpscale.judge.checks import device_notes
        from pytest_ddpscale.judge.slow import pace_notes, rank_notes

        seen = self.evidence
        limit = self.subject.thresholds.thresholds.skus[self.subject.sku].peers.computing
        of_devices = (*rank_notes(seen, limit, verdicts), *pace_notes(seen), *device_notes(seen)) if seen else ()
        of_run = alike({host: f"{host} was left out: {why}" for host, why in record.left_out.items()})
        unbound = dict[str, dict[str, None]]()  # ranks by reason
        for gang in gangs_by_number(records).values():
            for number, rank in enumerate(gang.ranks):
                unbound.setdefault(rank.numa_note, {})[f"rank {number} on {rank.place.host}"] = None
        of_run += [f"{first_few([*ranks], 1)}: {reason}" for reason, ranks in unbound.items() if reason]
        resumed = record.resumption_notes(self.subject.thresholds.digests)
        of_lock = (self._lock.note,) if self._lock and self._lock.note else ()
        unseen = filter(None, [self.subject.unseen_loss(self.cases, self.selected)])
        said = [[because("text", one) for one in some] for some in (of_run, of_lock)]
        return (*unseen, *of_devices, *said[0], *resumed, *said[1])

    @contextmanager
    def _writing(self, run: RunDirectory) -> Iterator[None]:
        """Catch write errors: a full disk ends measuring but not the session, which judges what was measured."""
        try:
            yield
        except WritingError as error:
            self.writing_problem = str(error)
        except OSError as error:
            self.writing_problem = str(run.unwritten(run.path, error))


def measured_layout(earlier: RunDirectory) -> Layout:
    """The nodes of an earlier run, with all devices of each, whether ranks used them or not.

    Raises:
        RunDirectoryError: its plan or run.json is broken.
    """
    plan, present = earlier.read_plan(), earlier.read_run().devices_present
    if any(study.launch > 1 for study in plan.studies):
        path, found = str(earlier.plan_json), "has studies of several launches"
        raise RunDirectoryError(path, found, "one launch", "Runs on several days measure several.")
    per_node = -(-(present or 0) // plan.nodes)
    return Layout(plan.nodes, max(per_node, plan.layout.ranks_per_node))


class JudgeSource(EvidenceSource):
    """An earlier run as it is; nothing is measured."""

    def __init__(self, subject: Subject, earlier: RunDirectory) -> None:
        super().__init__(subject, Machine(), measured_layout(earlier))
        self.measured_run = earlier
        self.announcement = f"; evidence from {earlier.path} (no new measurement)"

    def select(self, cases: Sequence[AnyCase]) -> None:
        """Read the measurements, so that a broken run is refused before any item runs."""
        self.selected = list(cases)
        self.plan = self.measured_run.read_plan()
        self.evidence = self._read_earlier(self.measured_run)
        if self.subject.settings.rehearse and not self.is_simulated:
            found = f"found {self.measured_run.path}, a run of a real machine"
            raise OptionError("--ddp-rehearse", found, "a simulated run", "Leave it out to judge this run.")

    def _open(self) -> None:
        self.run, self._lock = judging_directory(self.measured_run, self.subject.settings.run_dir)

    def judged_for(self) -> dict[str, str]:
        """Notes of this session; the measured run keeps its own."""
        return {JUDGED_NOTE + key: said for key, said in self.subject.settings.note}

    def why_not(self, case: AnyCase) -> str | None:
        """What the thresholds declare missing; the measurements show the rest."""
        return case.missing or None

    def measured(self, listener: Listener) -> Evidence:
        """All evidence of the run."""
        assert self.evidence is not None  # read when selected
        return self.evidence

    def notes(self, verdicts: Sequence[Verdict]) -> tuple[Reason, ...]:
        """Also the earlier run's notes, after a note that it is an earlier run."""
        record = self.measured_run.read_run()
        judged = because("judged-from", str(self.measured_run.path))
        cut = because("text", f"run.json says {record.status}: its session did not end regularly, or still runs")
        of_run = (because("text", note) for note in record.notes)
        return (judged, *self._of_a_part(), *[cut] * record.is_unfinished, *of_run, *super().notes(verdicts))

    def _of_a_part(self) -> list[Reason]:
        """A note where a part is judged of a run that is rejected as a whole."""
        whole = self.measured_run.verdicts_json
        if len(self.selected) == len(self.cases) or not whole.exists():
            return []
        try:
            judged = read_judgement(whole)
        except RunDirectoryError:
            return []
        why = f"only a part is judged here: the verdicts.json of the run itself rejects it ({judged.reason})"
        return [because("text", why)] * (judged.outcome == "rejected")
