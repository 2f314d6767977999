"""Verdicts on requirements, and the judgement of a run: verdicts.json."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from pytest_ddpscale.errors import RunDirectoryError
from pytest_ddpscale.families import FAMILIES
from pytest_ddpscale.plan.arm import OneGpu, Placement
from pytest_ddpscale.plan.metric_catalogue import GENERATION_RATIO, METRICS, THROUGHPUT_PER_GPU
from pytest_ddpscale.run.coverage import Coverage
from pytest_ddpscale.run.place import Culprit as Culprit  # most take it from here
from pytest_ddpscale.run.reason import Reason
from pytest_ddpscale.run.run_directory import JUDGED, RunDirectory, broken_file, read_file
from pytest_ddpscale.run.run_json import ThresholdsUsed
from pytest_ddpscale.run.strict_json import strict_json
from pytest_ddpscale.thresholds.waiver import Waiver

VerdictOutcome = Literal["passed", "failed", "inconclusive", "not_measured", "error"]
RunOutcome = Literal["accepted", "accepted_with_waivers", "rejected", "incomplete", "partial"]
ACCEPTING: frozenset[RunOutcome] = frozenset({"accepted", "accepted_with_waivers"})
# Properties of a verdict for code; notes are for people.
Flag = Literal[
    "undecided",  # more rounds may fail further places
    "host-bound",  # devices waited for their host, so more rounds decide nothing
    "implausible",  # the value exceeds the hardware's limit, so more rounds decide nothing
    "wrong-data",  # results were wrong, whatever the speed; cannot be waived
    "this-launch-only",  # launches differ by more than the interval of a single one
    "interrupted",  # its study was interrupted, so that --ddp-resume measures it
    "by-variable",  # an environment variable, not hardware, decides it, so more rounds decide nothing
    "partly-known",  # it fails at some places and is undecided or not measured at others; cannot be waived
]
CauseId = Literal[
    "wrong-data",
    "memory-errors",
    "lost-node",
    "lost-gpu",
    "missing-gpus",
    "gpu-error",
    "slow-node-link",
    "slow-gpu-link",
    "slow-host-link",
    "nvlink-down",
    "slow-transport",
    "slow-communication",
    "slow-gpu",
    "slow-node",
    "slow-training",
    "uniform-loss",
    "slow-computing",
    "slow-scaling",
    "regression",
    "throttling",
    "topology",
    "software",
    "disk",
    "foreign-processes",
    "mig",
    "requirement-not-met",
    "environment",
    "host-bound",
    "implausible-value",
    "undecided",
    "interrupted",
    "error-in-run",
    "not-measured",
    "test-failed",
    "run-not-accepted",
]
Category = Literal["ISOLATE", "CHECK", "MONITOR"]
WRONG_DATA: Final = "wrong-data"
THIS_LAUNCH_ONLY: Final = "this-launch-only"
BY_VARIABLE: Final = "by-variable"
PARTLY_KNOWN: Final = "partly-known"
# Of the other nodes' median: where most nodes fail, and where most may.
_FAR_APART, _HARDLY_APART = 0.05, 0.005
_OF_THROUGHPUT = (THROUGHPUT_PER_GPU.name, GENERATION_RATIO.name)
VERDICTS_SCHEMA_VERSION = 8


@dataclass(frozen=True)
class GenerationComparison:
    """Both throughputs of a generation ratio, in samples per second and GPU.

    Attributes:
        samples_per_s: measured here.
        reference_samples_per_s: of the reference.
        reference: a SKU or a run.
        source: of the reference's number.
        unit: of both.
    """

    samples_per_s: float
    reference_samples_per_s: float
    reference: str
    source: str
    unit: str


@dataclass(frozen=True)
class AgainstSlowest:
    """Weak scaling against the slowest GPU instead of a typical one.

    Attributes:
        value: fraction.
        interval: of the value; None if there are too few rounds for one.
        place: the slowest GPU.
        behind: its own time over the median of its peers', less 1.
    """

    value: float
    interval: tuple[float, float] | None
    place: str
    behind: float


@dataclass(frozen=True)
class Verdict:
    """The verdict on one requirement.

    Attributes:
        id: ``metric[workload-8gpu]``, the test item's name.
        metric: name in the catalogue.
        world_size: ranks that trained together.
        severity: whether a failure rejects the run.
        bound: ``{"at_least": x}`` or ``{"at_most": x}``, in `unit`.
        value: point estimate, in `unit`; None if nothing was measured.
        interval: confidence interval of the value, in `unit`; None if there is none.
        confidence: of the interval, 0 … 1.
        rounds: number of measured rounds.
        launch_sd: relative standard deviation between earlier runs, if the history has it; else None.
        reason: one sentence: why this outcome.
        provisional: the bound has no published source.
        source: where the bound comes from, for the reader.
        notes: for the reader, such as ``host-bound``.
        flags: for code.
        compared: both sides of a ratio; None for other metrics, or if not measured.
        one_gpu: whether the single GPU that the metric times or compares with was trained without DDP (``alone``) or
            under it; None if there is no such GPU, or both ways are used.
        waiver: the waiver by which this failure does not reject; else None.
        published: published value that the bound is derived from, in `unit`; None without one.
        place: GPU, pair or node of the value: the worst of those with this outcome; empty if the value is of all.
        unit: of value, interval and bound: the metric's, for the family of the workload; of an unknown family the
            metric's own.
        margin: distance of the value from the bound, relative to the bound; positive on the good side.
        correlation: of successive rounds, -1 … 1; None if unknown.
        against_slowest: weak scaling against the slowest GPU, if the spread of its GPUs was looked at; else None.
        because: why this outcome, in codes, of which `reason` is the sentence; None if that was written in words.
        remarks: the same of `notes`.
    """

    id: str
    metric: str
    workload: str
    world_size: int
    severity: Literal["fail", "warn"]
    bound: dict[str, float]
    outcome: VerdictOutcome
    value: float | None = None
    interval: tuple[float, float] | None = None
    confidence: float = 0.95
    rounds: int = 0
    reason: str = ""
    provisional: bool = False
    source: str = ""
    notes: tuple[str, ...] = ()
    culprits: tuple[Culprit, ...] = ()
    flags: tuple[Flag, ...] = ()
    placement: Placement = "packed"
    compared: GenerationComparison | None = None
    waiver: Waiver | None = None
    launch_sd: float | None = None
    published: float | None = None
    correlation: float | None = None
    one_gpu: OneGpu | None = None
    place: str = ""
    unit: str = ""
    against_slowest: AgainstSlowest | None = None
    because: Reason | None = None
    remarks: tuple[Reason, ...] = ()
    margin: float | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if self.metric not in METRICS or not any(self.bound.values()):
            raise ValueError(f"a verdict on {self.metric!r} with {self.bound}; expected a metric and a bound")
        is_known = not {WRONG_DATA, PARTLY_KNOWN} & set(self.flags)
        if self.is_waived and not (is_known and (self.outcome == "failed" or self.is_unreadable)):
            raise ValueError(f"{self.id} is waived; expected a fully known failure with correct data")
        metric = METRICS[self.metric]
        is_known = self.unit in {metric.unit_of(family) for family in FAMILIES.values()}
        object.__setattr__(self, "unit", self.unit if is_known else metric.unit)
        if self.value is not None:
            better = self.value - self.bound_value if "at_least" in self.bound else self.bound_value - self.value
            object.__setattr__(self, "margin", better / self.bound_value)

    @property
    def passed(self) -> bool:
        """Whether it passed; every other outcome is no pass."""
        return self.outcome == "passed"

    @property
    def code(self) -> str:
        """Why it has its outcome, in a word for code: values.csv has it."""
        if WRONG_DATA in self.flags:
            return WRONG_DATA
        code = self.because.main.code if self.because else "text"
        return self.outcome if code == "text" else code

    @property
    def is_unreadable(self) -> bool:
        """Whether it was not measured only because a driver does not give a utilization, or a wrong one.

        Another node that further rounds may fail is no matter of the driver.
        """
        whys, lacking = (self.because,), 1
        if self.because and self.because.code == "nodes-missing":
            measured, planned, _, whys = self.because.args
            lacking = planned - len(measured)
        unread = [reason for reason in whys if reason and reason.code == "not-read" and reason.args[1:]]
        return len(unread) == len(whys) == lacking and "undecided" not in self.flags

    @property
    def is_waived(self) -> bool:
        """Whether it failed, or is unreadable, and has a waiver."""
        return self.waiver is not None

    def blocks(self, *, allows_unmeasured: bool = False) -> bool:
        """Whether this verdict prevents acceptance of the machine.

        Wrong data does, whatever the severity. A waived failure does not. A requirement of severity ``warn`` prevents
        it only if it broke or was not measured, because a machine is accepted for what was measured; a check that only
        warns does not even then. With `allows_unmeasured`, no unmeasured requirement does.
        """
        if self.outcome == "not_measured" and not self.is_waived:
            is_waited_for = self.severity == "fail" or METRICS[self.metric].subject != "check"
            return is_waited_for and not allows_unmeasured
        if WRONG_DATA in self.flags:
            return not self.passed
        if self.is_waived:
            return False
        return self.outcome == "error" or (not self.passed and self.severity == "fail")

    @property
    def was_left_for_time(self) -> bool:
        """Whether --ddp-budget ran out before it was decided."""
        return any(reason.code == "budget-spent" for reason in self.remarks)

    @property
    def shows_uniform_loss(self) -> bool:
        """Whether it compares throughput with a reference, published or the site's own, to show a loss of all."""
        return self.published is not None and self.metric in _OF_THROUGHPUT

    @property
    def is_uniform_loss(self) -> bool:
        """Whether throughput is below the value that its bound comes from, and no device is named as slow for it."""
        is_alike = all(culprit.slowdown is None for culprit in self.culprits)
        is_other = not {WRONG_DATA, BY_VARIABLE}.isdisjoint(self.flags)
        return self.outcome == "failed" and self.shows_uniform_loss and is_alike and not is_other

    @property
    def accused(self) -> tuple[Culprit, ...]:
        """Its culprits without those that are as good as the others: a loss that all share accuses nobody.

        Most places are no measure of a loss that some escape: these reach the bound.
        """
        shared = next((reason.args for reason in self.remarks if reason.code == "most-fail-alike"), None)
        apart, typical = _HARDLY_APART if shared is None else _FAR_APART, []
        if shared is not None and any(shared[3:]):  # places that passed
            typical = [self.bound_value]
        return tuple(
            culprit for culprit in self.culprits if culprit.is_certain or not _is_alike(culprit, apart, typical)
        )

    @property
    def is_open(self) -> bool:
        """Whether further rounds may decide it, or fail further places."""
        may_be_decided = {"host-bound", "implausible", BY_VARIABLE}.isdisjoint(self.flags)
        return (self.outcome == "inconclusive" and may_be_decided) or "undecided" in self.flags

    @property
    def bound_value(self) -> float:
        """The bound's number."""
        return next(iter(self.bound.values()))


def _is_alike(culprit: Culprit, apart: float, typical: Sequence[float]) -> bool:
    """Whether a GPU or node is named for its value alone, which is no further than this from the others' median, nor
    from these.
    """
    why, median = culprit.because, None
    if why.code == "all-may-be-slow":
        why = why.args[0]
    if why.code == "node-alone":
        _, value, _, others, median = why.args
        median = median if others else None
    elif why.code == "misses" and culprit.kind != "link":
        *_, value, _, median = why.args
    return median is not None and all(abs(value - one) <= apart * abs(one) for one in (median, *typical))


@dataclass(frozen=True)
class NextStep:
    """What somebody does next: an action, and the command to paste; empty without one."""

    action: str
    command: str = ""


@dataclass(frozen=True)
class CauseRecord:
    """A cause in verdicts.json, with what to do about it.

    Attributes:
        id: a kind of cause (`report/words/cause_kinds.py`).
        severity: of its kind.
        category: ``ISOLATE``, ``CHECK`` or ``MONITOR``.
        sentence: who or what, in numbers, without a full stop.
        next_steps: in order.
        culprits: the devices named for it, the most certain first.
        explains: names of the blockers that it explains; of a MONITOR, of the requirements that only warn.
    """

    id: CauseId
    severity: int
    category: Category
    sentence: str
    next_steps: tuple[NextStep, ...]
    culprits: tuple[Culprit, ...]
    explains: tuple[str, ...]


@dataclass(frozen=True)
class Blocker:
    """One reason why a machine is not accepted.

    Attributes:
        kind: ``requirement``; ``test``: an item that was skipped, or failed for a reason other than its verdict;
            ``run``: a reason on the run as a whole.
        name: id of the requirement, name of the test, or ``acceptance``.
        reason: one sentence.
        cause: what kind of cause the run as a whole has; empty for requirements and tests.
    """

    kind: Literal["requirement", "test", "run"]
    name: str
    reason: str
    cause: CauseId | Literal[""] = ""


@dataclass(frozen=True)
class LoweredBound:
    """A requirement that a site's thresholds make weaker than the file that they extend.

    Attributes:
        requirement: description.
        unit: of both bounds.
        was: the bound in the extended file.
        now: the site's bound; None if the requirement is removed.
        only_warns: whether a failure rejected before and now only warns.
    """

    requirement: str
    metric: str
    unit: str
    was: float
    now: float | None
    only_warns: bool = False


@dataclass(frozen=True)
class UniformLoss:
    """Upper limit of a loss, relative to the reference throughput, that is common to all GPUs.

    Attributes:
        fraction: of the reference, published or the site's own, 0 … 1, from the workload that limits it most; 0 if that
            is no slower.
        largest: the same from the workload that limits it least.
        confidence: of both, 0 … 1.
        requirement: id of the requirement that limits it most.
        workloads: number of compared workloads.
    """

    fraction: float
    largest: float
    confidence: float
    requirement: str
    workloads: int


@dataclass(frozen=True)
class Judgement:
    """All verdicts of a run and its outcome: the content of verdicts.json.

    Attributes:
        reason: one sentence: why this outcome.
        verdicts: in the order of the thresholds file.
        notes: for the reader, on the whole run, such as where it was imported from.
        basis: thresholds file, measurements and time of the judgement, with digests; for an earlier run also
            the notes of who judged it, their keys after `JUDGED_NOTE`.
        coverage: tested parts of the machine; None if nothing could be tested.
        allows_unmeasured: whether requirements may stay unmeasured (--ddp-allow-incomplete).
        simulated: whether no machine was measured.
        extends: the files that the thresholds file of `basis` extends, the nearest first.
        lowered: requirements that it makes weaker.
        altered: other changes to the SKU, described.
        uniform_loss: upper limit of a loss common to all GPUs; None if no requirement on throughput with
            a reference passed, or if any shows such a loss.
        not_selected: number of the SKU's requirements that no selected test item judges.
        unfinished: whether measuring was interrupted or killed, so that ``--ddp-resume`` can measure the rest.
        requirements: those that the verdicts rest on, compiled, in JSON types (`thresholds.cases`).
        requirements_sha256: their digest.
        causes: what explains the blockers, then what only warns, as reports tell it; only in verdicts.json.
        remarks: codes of the notes, in their order.
        rehearsed: what --ddp-rehearse found, if nothing but the simulation stands in the way: ``would be accepted, …``.
        blockers: all reasons against acceptance, which items, reports and the exit code show as failures. Those on
            requirements are added here; the caller passes the others.
    """

    sku: str
    outcome: RunOutcome
    reason: str
    verdicts: tuple[Verdict, ...]
    notes: tuple[str, ...] = ()
    basis: Mapping[str, str] = field(default_factory=dict)
    coverage: Coverage | None = None
    allows_unmeasured: bool = False
    simulated: bool = False
    blockers: tuple[Blocker, ...] = ()
    extends: tuple[ThresholdsUsed, ...] = ()
    lowered: tuple[LoweredBound, ...] = ()
    altered: tuple[str, ...] = ()
    uniform_loss: UniformLoss | None = None
    not_selected: int = 0
    unfinished: bool = False
    causes: tuple[CauseRecord, ...] = ()
    requirements: tuple[dict[str, Any], ...] = ()
    requirements_sha256: str = ""
    schema_version: int = VERDICTS_SCHEMA_VERSION
    remarks: tuple[Reason, ...] = ()
    rehearsed: str = ""

    def __post_init__(self) -> None:
        blocking = filter(self.is_blocked_by, self.verdicts)
        blockers = (*(Blocker("requirement", verdict.id, verdict.reason) for verdict in blocking), *self.other_blockers)
        object.__setattr__(self, "blockers", blockers)
        digest = hashlib.sha256(strict_json(self.requirements).encode()).hexdigest()
        if self.requirements_sha256 not in ("", digest):
            raise ValueError("requirements changed since they were judged by")
        object.__setattr__(self, "requirements_sha256", digest)

    @property
    def accepts(self) -> bool:
        """Whether the machine is accepted, with waivers or without."""
        return self.outcome in ACCEPTING

    def notes_of(self, *codes: str) -> list[str]:
        """The notes of these codes."""
        return [note for note, why in zip(self.notes, self.remarks, strict=False) if why.code in codes]

    @property
    def other_notes(self) -> list[str]:
        """The notes without those on a loss that no bound rejects and on variables, which reports show elsewhere."""
        elsewhere = self.notes_of("unseen-loss", "variable")
        return [note for note in self.notes if note not in elsewhere]

    @property
    def waived(self) -> list[Verdict]:
        """Failed requirements with a waiver."""
        return [verdict for verdict in self.verdicts if verdict.is_waived]

    @property
    def other_blockers(self) -> list[Blocker]:
        """Reasons against acceptance other than requirements."""
        return [blocker for blocker in self.blockers if blocker.kind != "requirement"]

    def is_blocked_by(self, verdict: Verdict) -> bool:
        """Whether a verdict is a reason against acceptance."""
        return verdict.blocks(allows_unmeasured=self.allows_unmeasured)


def read_judgement(path: Path) -> Judgement:
    """The content of a verdicts.json.

    Raises:
        RunDirectoryError: it is missing or broken, contradicts itself, or a newer version wrote it.
    """
    judgement = read_file(path, Judgement, VERDICTS_SCHEMA_VERSION)
    is_blocked = judgement.other_blockers or any(verdict.blocks() for verdict in judgement.verdicts)
    best = "partial" if judgement.not_selected else "accepted_with_waivers" if judgement.waived else "accepted"
    if judgement.outcome not in ("incomplete", *(["rejected"] if is_blocked else ["partial", best])):
        raise broken_file(path, f"says {judgement.outcome}, against its verdicts and blockers")
    return judgement


def open_judged(path: Path) -> tuple[RunDirectory, RunDirectory]:
    """The directories of a run's measurements and of its verdicts and reports; the latter may have none yet.

    Args:
        path: a run directory, or one that ``--ddp-judge`` made, such as ``RUN/judged-2``.

    Raises:
        RunDirectoryError: it is neither, is broken, or the judged run is missing or has changed.
    """
    judged = RunDirectory(path)
    if judged.run_json.is_file() or not judged.verdicts_json.is_file():
        return RunDirectory.open(path), judged
    basis = read_judgement(judged.verdicts_json).basis
    named = Path(basis.get("measurements_path", "")).parent
    # As typed, relative to where pytest was started; inside the run itself; or next to it, if both were moved.
    for place in (named, path.parent, path.parent / named.name):
        run = RunDirectory(place)
        if run.run_json.is_file() and run.measurements_sha256() == basis.get("measurements_sha256"):
            return RunDirectory.open(place), judged
    raise RunDirectoryError(
        str(path), f"holds verdicts on {named}, which is missing or has changed", "the judged run, unchanged",
        f"Judge it again with `pytest --ddp-judge={named}`, or start where it lies.",
    )  # fmt: skip


def read_judged(run: RunDirectory, judged: RunDirectory) -> Judgement:
    """The verdicts in `judged` on the measurements in `run`.

    Those of a run that still measures, or was killed, are on a part of it, and accept and reject nothing.

    Raises:
        RunDirectoryError: it was never judged, verdicts.json is broken, or the run has changed since.
    """
    if not judged.verdicts_json.exists():
        judge = f"Judge it with `pytest --ddp-judge={run.path}`."
        raise RunDirectoryError(str(run.path), "was never judged", "verdicts", judge)
    judgement = read_judgement(judged.verdicts_json)
    changed = [JUDGED[key] for key, digest in run.digests().items() if judgement.basis.get(key) != digest]
    if changed and not (judgement.outcome == "incomplete" and judgement.unfinished):
        raise RunDirectoryError(
            str(judged.verdicts_json), f"was made from another {', '.join(changed)} than {run.path} has now",
            "unchanged files",
            f"Restore them, or judge them as they are: `pytest --ddp-judge={run.path}`.",
        )  # fmt: skip
    return judgement
