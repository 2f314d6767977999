"""A requirement, judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pytest_ddpscale.plan.metric import Unit
from pytest_ddpscale.plan.metric_catalogue import GENERATION_RATIO, METRICS, THROUGHPUT_PER_GPU
from pytest_ddpscale.plan.study import OneGpu, Placement
from pytest_ddpscale.results.coverage import Coverage
from pytest_ddpscale.results.run_directory import read_file
from pytest_ddpscale.results.run_json import ThresholdsUsed
from pytest_ddpscale.thresholds.waiver import Waiver

VerdictOutcome = Literal["passed", "failed", "inconclusive", "not_measured", "error"]
RunOutcome = Literal["accepted", "accepted_with_waivers", "rejected", "incomplete", "partial"]
ACCEPTING: frozenset[RunOutcome] = frozenset({"accepted", "accepted_with_waivers"})
# What code has to know of a verdict beyond its outcome; notes say it to people.
Flag = Literal[
    "undecided",  # more rounds may fail further places
    "host-bound",  # devices waited for their host, so that more rounds decide nothing
    "implausible",  # a value that no hardware reaches, so that more rounds decide nothing
    "wrong-data",  # results were wrong, whatever the speed: nobody can waive that
    "this-launch-only",  # launches are known to differ by more than the interval of a single one says
    "partly-known",  # it fails somewhere, and elsewhere it is undecided or not measured: nor that
]
WRONG_DATA: Literal["wrong-data"] = "wrong-data"
THIS_LAUNCH_ONLY: Literal["this-launch-only"] = "this-launch-only"
PARTLY_KNOWN: Literal["partly-known"] = "partly-known"
_OF_THROUGHPUT = (THROUGHPUT_PER_GPU.name, GENERATION_RATIO.name)
VERDICTS_SCHEMA_VERSION: Literal[5] = 5


@dataclass(frozen=True)
class Culprit:
    """Who is to blame: a GPU, a node, or a link, of which `peer_host` and so on are the other end.

    Attributes:
        gpu_index: local rank of the device on its host; None for a whole node.
        gpu_uuid: as NVML has it; ``cpu`` without a GPU; None for a whole node.
        evidence: what was seen, in numbers.
        is_certain: False if either of two may be the odd one, if it stands out by too little to explain the failure, or
            if most nodes fail alike: no machine is drained for that.
        computed_wrong: whether it is named for wrong data, whatever its speed.
        slowdown: its step time without communication over that of its peers; None of what is not slow in computing.
        peers: how many ranks that is relative to; None with `slowdown`, and of a whole node.
        slow_rounds: how many rounds `slowdown` is of; None where `peers` is.
        rounds: how many there were.
    """

    kind: Literal["gpu", "node", "link"]
    host: str
    gpu_index: int | None
    gpu_uuid: str | None
    evidence: str
    peer_host: str | None = None
    peer_gpu_index: int | None = None
    peer_gpu_uuid: str | None = None
    is_certain: bool = True
    computed_wrong: bool = False
    slowdown: float | None = None
    peers: int | None = None
    slow_rounds: int | None = None
    rounds: int | None = None


@dataclass(frozen=True)
class GenerationComparison:
    """Both throughputs of a generation ratio, in images per second and GPU.

    Attributes:
        img_per_s: measured here.
        reference_img_per_s: of the reference.
        reference: which that is, a SKU or a run.
        source: where its number is from.
    """

    img_per_s: float
    reference_img_per_s: float
    reference: str
    source: str


@dataclass(frozen=True)
class Verdict:
    """One requirement judged.

    Attributes:
        id: ``metric[workload-8gpu]``, the test item's name.
        metric: name in the catalogue.
        world_size: ranks that trained together.
        severity: whether a failure rejects the run.
        bound: ``{"at_least": x}`` or ``{"at_most": x}``, in `unit`.
        value: point estimate, in `unit`; None if nothing was measured.
        interval: confidence interval of the value, in `unit`; None if there is none.
        confidence: of the interval, 0 … 1.
        rounds: how many stand behind it, in all launches.
        launches: of new processes that measured it; the interval of several is that of their means.
        launch_sd: relative standard deviation between them; of one launch that between earlier runs, if the history
            knows it; else None.
        reason: one sentence: why this outcome.
        provisional: the bound has no published source.
        source: where the bound comes from, for the reader.
        notes: what the reader should know, such as ``host-bound``.
        flags: what code has to know.
        compared: both sides of a ratio; None of what is none, or was not measured.
        precision: how wide half of the interval may be, relative to the value; None where nobody asked for that.
        one_gpu: how the one GPU was trained that it is of, or relative to: without DDP (``alone``) or under it; None of
            what times no single GPU, or both ways.
        waiver: by which it does not reject, though it failed; None of all others.
        published: the value that the bound comes from, in `unit`; None if nobody published one.
        p_value: of a failure by rounds: how likely values as bad as these are at most, at any of all rounds, if the
            bound is kept; for all places together. None of all others.
        unit: of value, interval and bound: the metric's.
        margin: distance of the value from the bound, relative to the bound: positive on the good side.
        correlation: of successive rounds, -1 … 1; None where it is not known.
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
    precision: float | None = None
    waiver: Waiver | None = None
    launches: int = 1
    launch_sd: float | None = None
    published: float | None = None
    p_value: float | None = None
    correlation: float | None = None
    one_gpu: OneGpu | None = None
    unit: Unit = field(init=False, default="x")
    margin: float | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if self.metric not in METRICS or not any(self.bound.values()):
            raise ValueError(f"a verdict on {self.metric!r} with bound {self.bound}; expected a metric and its bound")
        if self.is_waived and (self.outcome != "failed" or {WRONG_DATA, PARTLY_KNOWN} & set(self.flags)):
            raise ValueError(f"{self.id} is waived; expected a failure that is known in full, of correct data")
        object.__setattr__(self, "unit", METRICS[self.metric].unit)
        if self.value is not None:
            difference = self.value - self.bound_value
            better = difference if "at_least" in self.bound else -difference
            object.__setattr__(self, "margin", better / self.bound_value)

    @property
    def passed(self) -> bool:
        """Only ``passed`` is a pass."""
        return self.outcome == "passed"

    @property
    def is_waived(self) -> bool:
        """Whether it failed and somebody answers for that."""
        return self.waiver is not None

    def blocks(self, *, allows_unmeasured: bool = False) -> bool:
        """Whether a machine cannot be accepted as long as this is so, whatever else is kept.

        Wrong data does, whatever the severity. What is waived does not.
        What only warns does not, unless nothing is known of it: a machine is accepted for
        what was measured. A check that only warns could reject nothing, so that nobody waits for it either. Nor for
        anything, if somebody said that not everything need be measured.
        """
        if self.outcome == "not_measured":
            is_waited_for = self.severity == "fail" or METRICS[self.metric].subject != "check"
            return is_waited_for and not allows_unmeasured
        if WRONG_DATA in self.flags:
            return not self.passed
        if self.is_waived:
            return False
        return self.outcome == "error" or (not self.passed and self.severity == "fail")

    @property
    def may_reject_by_chance(self) -> bool:
        """Whether it could reject a machine that keeps its bound."""
        return self.severity == "fail" and METRICS[self.metric].errs_by_chance

    @property
    def shows_uniform_loss(self) -> bool:
        """Whether it compares throughput with what was published, and so sees a loss of all GPUs alike."""
        return self.published is not None and self.metric in _OF_THROUGHPUT

    @property
    def is_open(self) -> bool:
        """Whether further rounds may decide it, or fail further places."""
        may_be_decided = self.outcome == "inconclusive" and not self._is_beyond_rounds
        return may_be_decided or "undecided" in self.flags

    @property
    def half_width(self) -> float | None:
        """Distance of the value from the further end of its interval, in `unit`; None without an interval."""
        if self.value is None or self.interval is None:
            return None
        low, high = self.interval
        return max(self.value - low, high - self.value)

    @property
    def is_precise(self) -> bool:
        """Whether the interval is as narrow as was asked for."""
        if self.precision is None or self.half_width is None or self.value is None:
            return False
        return self.half_width <= self.precision * self.value

    @property
    def is_too_wide(self) -> bool:
        """Whether the interval is wider than was asked for, and further rounds may narrow it."""
        is_asked = self.precision is not None and self.half_width is not None
        return is_asked and not self.is_precise and not self._is_beyond_rounds

    @property
    def _is_beyond_rounds(self) -> bool:
        """Whether no number of rounds would change what is in the way."""
        return not {"host-bound", "implausible"}.isdisjoint(self.flags)

    @property
    def bound_value(self) -> float:
        """The bound's number."""
        return next(iter(self.bound.values()))


@dataclass(frozen=True)
class Blocker:
    """One reason why a machine is not accepted.

    Attributes:
        kind: ``requirement``; ``test``: an item that was skipped, or failed for something else than its verdict;
            ``run``: something about the run as a whole.
        name: id of the requirement, name of the test, or ``acceptance``.
        reason: one sentence.
    """

    kind: Literal["requirement", "test", "run"]
    name: str
    reason: str


@dataclass(frozen=True)
class LoweredBound:
    """A requirement that a site's thresholds ask less of than the file that they extend.

    Attributes:
        requirement: in words.
        was: the bound of the file below, in the metric's unit.
        now: the site's; None if it is not asked at all.
        only_warns: whether a failure rejected before and does not now.
    """

    requirement: str
    metric: str
    was: float
    now: float | None
    only_warns: bool = False


@dataclass(frozen=True)
class UniformLoss:
    """How much slower than published all GPUs alike may be without a requirement that shows it.

    Attributes:
        fraction: of the published value, 0 … 1, by the workload that limits it most; 0 if they are no slower there.
        largest: the same by the workload that limits it least.
        confidence: of both, 0 … 1.
        requirement: id of the one that limits it most.
        workloads: how many were compared.
    """

    fraction: float
    largest: float
    confidence: float
    requirement: str
    workloads: int


@dataclass(frozen=True)
class LastAcceptance:
    """The latest earlier run of the same nodes that was accepted, beside this one.

    Attributes:
        began: when that run did, ISO 8601 in UTC.
        run: where its directory was.
        compared: how many requirements both have a value with an interval of.
        least_throughput: smallest ratio of throughput per GPU, this run ÷ that one; None if neither has any.
        most_throughput: largest ratio.
        worse: ids of the requirements that are shown to be worse now.
    """

    began: str
    run: str
    outcome: RunOutcome
    compared: int
    least_throughput: float | None = None
    most_throughput: float | None = None
    worse: tuple[str, ...] = ()


@dataclass(frozen=True)
class Judgement:
    """All verdicts of a run and what they come to: the content of verdicts.json.

    Attributes:
        reason: one sentence: why this outcome.
        verdicts: in the order of the thresholds file.
        notes: what the reader should know about the whole run, such as where it was imported from.
        basis: by which thresholds file, on which measurements and when it was judged, with digests; of an earlier run
            also `judged_by`, `site` and `ticket`, where that was said.
        coverage: what of the machine was tested; None where nothing could be.
        allows_unmeasured: whether somebody said that not everything need be measured (--ddp-allow-incomplete).
        simulated: whether no machine was measured.
        extends: the files that the thresholds file of `basis` extends, the nearest first.
        lowered: what it asks less of than they do.
        altered: what else of the SKU is not as they have it, in words.
        uniform_loss: how large a loss of all GPUs alike could hide; None if no published throughput was kept.
        family_confidence: at which failures are corrected for the number of requirements; None if they are not.
        last_acceptance: of the same nodes; None if the history has none.
        blockers: all that keeps the machine from being accepted: what items, reports and the exit code show as
            failures. Whoever makes a judgement says what there is besides requirements.
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
    family_confidence: float | None = None
    last_acceptance: LastAcceptance | None = None
    schema_version: Literal[5] = VERDICTS_SCHEMA_VERSION

    def __post_init__(self) -> None:
        blocking = filter(self.is_blocked_by, self.verdicts)
        blockers = (*(Blocker("requirement", one.id, one.reason) for one in blocking), *self.other_blockers)
        object.__setattr__(self, "blockers", blockers)

    @property
    def accepts(self) -> bool:
        """Whether the machine is accepted, with waivers or without."""
        return self.outcome in ACCEPTING

    @property
    def waived(self) -> list[Verdict]:
        """Requirements that failed and that somebody answers for."""
        return [verdict for verdict in self.verdicts if verdict.is_waived]

    @property
    def other_blockers(self) -> list[Blocker]:
        """What besides requirements keeps the machine from being accepted."""
        return [blocker for blocker in self.blockers if blocker.kind != "requirement"]

    def is_blocked_by(self, verdict: Verdict) -> bool:
        """Whether a requirement is among that."""
        return verdict.blocks(allows_unmeasured=self.allows_unmeasured)


def read_judgement(path: Path) -> Judgement:
    """The content of a verdicts.json.

    Raises:
        RunDirectoryError: it is missing or broken, contradicts itself, or a newer version wrote it.
    """
    return read_file(path, Judgement, VERDICTS_SCHEMA_VERSION)
