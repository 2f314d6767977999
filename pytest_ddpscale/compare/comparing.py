"""Comparison of two runs by requirement, or by workload if their SKUs differ: rows of verdicts, joined."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pytest_ddpscale.compare.value_change import Estimate, ValueChange, change_between
from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.history.store import versions_by_host
from pytest_ddpscale.judge.values import values, worst_value
from pytest_ddpscale.plan.metric_catalogue import METRICS, THROUGHPUT_PER_GPU, Metric
from pytest_ddpscale.plan.planner import Question
from pytest_ddpscale.plan.study import Study
from pytest_ddpscale.plan.workload import incomparable_fields
from pytest_ddpscale.report.words.reasons import say
from pytest_ddpscale.run.evidence import Evidence, read_evidence
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.run_json import RunRecord
from pytest_ddpscale.run.verdicts import Judgement, Verdict, read_judged

_LEAST_SHARE = 1e-6  # smallest lower limit relative to the value, for values that err by factors
ALIKE = "no difference shown"
_UNMEASURED = ("not_measured", "error")


@dataclass(frozen=True)
class ComparedRun:
    """A run's measurements and judgement.

    Attributes:
        path: of its directory, as given.
        versions: of the software, by host.
        digest: SHA-256 of its measurements.
    """

    path: str
    record: RunRecord
    evidence: Evidence
    judgement: Judgement
    versions: Mapping[str, Mapping[str, str]]
    digest: str

    @property
    def is_simulated(self) -> bool:
        """Whether no machine was measured."""
        return self.judgement.simulated or self.record.is_simulated(self.evidence.columns.devices)

    @property
    def hosts(self) -> list[str]:
        """Names of the run's nodes, sorted."""
        return sorted({*self.evidence.columns.hosts, *self.evidence.hosts})

    @property
    def requirements(self) -> dict[str, Verdict]:
        """Verdicts on values measured in rounds, by the id of their requirement.

        Those that compare the places of a probe are left out: the values of these places are compared by themselves.
        """
        found = {one.id: (one, METRICS[one.metric]) for one in self.judgement.verdicts}
        return {
            name: one
            for name, (one, metric) in found.items()
            if metric.subject in ("workload", "probe") and not metric.compares_places
        }


def read_compared_run(path: Path) -> ComparedRun:
    """Read a run with its verdicts.

    Raises:
        BadInput: it is not a run directory, contradicts itself, or was not judged.
    """
    run = RunDirectory.open(path)
    record, records, evidence = run.read_run(), run.read_records(), read_evidence(run)
    return ComparedRun(
        str(path), record, evidence, read_judged(run, run), versions_by_host(record, records, evidence),
        run.measurements_sha256(),
    )  # fmt: skip


@dataclass(frozen=True)
class ComparedRequirement:
    """One requirement in both runs: their verdicts, and the change from the first to the second.

    Attributes:
        change: relative to the first value, or a difference if the value may be 0; None if not compared.
        why_not: why it was not compared; empty if it was.
    """

    a: Verdict
    b: Verdict
    change: ValueChange | None = None
    why_not: str = ""

    @property
    def metric(self) -> Metric:
        """What is compared."""
        return METRICS[self.a.metric]

    @property
    def is_ratio(self) -> bool:
        """Whether the change is relative: of what cannot be 0, as a share or a difference of two arms can."""
        return self.metric.scale == "factors" or (self.metric.unit != "fraction" and self.metric.baseline is None)

    @property
    def is_worse(self) -> bool:
        """Whether the second run is certainly worse; of computed results any disagreement is."""
        if self.change is None or self.metric.compares_results:
            return self.change is not None and self.change.size < 0
        return self.change.is_shown and (self.change.size > 0) == self.metric.upper_bound

    @property
    def difference(self) -> str:
        """The change in a word: rates and ratios are faster or slower, costs and shares are more or less."""
        if self.change is None:
            return "not compared"
        if not (self.change.is_shown or self.is_worse):
            return ALIKE
        is_more = self.change.size > 0
        if self.metric.scale == "differences" or self.metric.unit == "samples/J":
            return "more" if is_more else "less"
        return "slower" if is_more == self.metric.upper_bound else "faster"

    @property
    def knows_launches(self) -> bool:
        """Whether both intervals include differences between launches."""
        return None not in (self.a.launch_sd, self.b.launch_sd)

    @property
    def is_lost(self) -> bool:
        """Whether the first run has a value but the second has none to compare with it."""
        return self.change is None and _has_value(self.a)

    def is_worse_by(self, share: float) -> bool:
        """Whether the near end of the interval is worse by more than `share` of the first value, or in points.

        Wrong data is worse at any share, because one wrong rank of many is a small share.
        """
        if not self.is_worse or self.change is None or self.metric.compares_results:
            return self.is_worse
        near = self.change.low if self.metric.upper_bound else -self.change.high
        return near > share * (1.0 if self.is_ratio or self.a.unit == "fraction" else abs(self.a.value or 0.0))

    def as_json(self) -> dict[str, Any]:
        """Everything as JSON types; shares and ratios are numbers, not per cent."""
        said = {name: getattr(self.a, name) for name in ("id", "metric", "workload", "world_size", "unit")}
        for letter, one in (("a", self.a), ("b", self.b)):
            said |= {f"{name}_{letter}": getattr(one, name) for name in ("value", "interval", "place")}
        of_both = ("is_ratio", "difference", "is_worse", "knows_launches", "is_lost", "why_not")
        return (
            said | {name: getattr(self, name) for name in of_both} | {"change": self.change and self.change._asdict()}
        )


@dataclass(frozen=True)
class ComparedRuns:
    """A comparison of two runs.

    Attributes:
        kind: ``generations`` for two SKUs, which are compared only by throughput, each with its own batch.
        confidence: of each interval, 0 … 1; if verdicts have several, the lowest.
        requirements: in the order of the first run.
        only_a: ids of requirements that only the first run was judged by.
        only_b: likewise for the second run.
        lost: ids of requirements with a value in the first run but none to compare with it in the second.
    """

    a: ComparedRun
    b: ComparedRun
    kind: Literal["same SKU", "generations"]
    confidence: float
    requirements: tuple[ComparedRequirement, ...]
    only_a: tuple[str, ...] = ()
    only_b: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()

    def worse_by(self, share: float) -> list[str]:
        """Ids of the requirements in which the second run is certainly worse by more than `share`."""
        return [one.a.id for one in self.requirements if one.is_worse_by(share)]


def compare_runs(a: ComparedRun, b: ComparedRun, confidence: float) -> ComparedRuns:
    """Compare the second run with the first: the values of the verdicts with their intervals.

    Args:
        a: the first run.
        b: the second run.
        confidence: of each interval; verdicts have their own.

    Raises:
        OptionError: the runs have the same measurements, no requirement in common, or verdicts of another confidence.
    """
    if a.digest == b.digest:
        raise OptionError("RUN_DIR", f"{b.path} has the same measurements as {a.path}", "two runs")
    is_same_sku = a.record.sku == b.record.sku
    asked_a, asked_b = (run.requirements if is_same_sku else {} for run in (a, b))
    judged = min((one.confidence for one in (*asked_a.values(), *asked_b.values())), default=confidence)
    if judged != confidence:
        raise OptionError("--confidence", f"found {confidence:g}; the verdicts have {judged:g}", f"{judged:g}",
                          "`pytest --ddp-judge=RUN_DIR --ddp-confidence=C` judges a run again.")  # fmt: skip
    found = tuple(_of_generations(a, b, confidence))
    if is_same_sku:
        both = [(one, asked_b[name]) for name, one in asked_a.items() if name in asked_b]
        found = tuple(_compared(*pair, _why_other_work(*pair, a, b)) for pair in both)
    if not any(one.change for one in found):
        why = f"{found[0].a.id}: {found[0].why_not}" if found else "no requirement is common to both"
        raise OptionError("RUN_DIR", f"{a.path} and {b.path} cannot be compared: {why}", "two runs that measured the "
                          "same")  # fmt: skip
    only_a, only_b = (
        tuple(name for name in ours if name not in theirs) for ours, theirs in ((asked_a, asked_b), (asked_b, asked_a))
    )
    lost = [one.a.id for one in found if one.is_lost] + [name for name in only_a if _has_value(asked_a[name])]
    kind: Literal["same SKU", "generations"] = "same SKU" if is_same_sku else "generations"
    return ComparedRuns(a, b, kind, confidence, found, only_a, only_b, tuple(lost))


def _has_value(verdict: Verdict) -> bool:
    """Whether a value was measured that a later run can lack."""
    return verdict.value is not None and verdict.outcome not in _UNMEASURED


def _compared(a: Verdict, b: Verdict, why_not: str = "") -> ComparedRequirement:
    blank, reasons, limits = ComparedRequirement(a, b), [], []
    for run, one in (("A", a), ("B", b)):
        if one.outcome in _UNMEASURED:
            reasons.append(f"{run}: {one.outcome.replace('_', ' ')}: {one.reason}")
        elif one.value is None or one.interval is None:
            reasons.append(f"{run}: {one.reason}")
        elif blank.is_ratio and one.value <= 0:
            reasons.append(f"{run}: an impossible value was measured")
        else:
            low = max(one.interval[0], _LEAST_SHARE * one.value) if blank.is_ratio else one.interval[0]
            limits.append(Estimate(one.value, (low, one.interval[1])))
    if why_not or reasons:
        return ComparedRequirement(a, b, None, why_not or "; ".join(reasons))
    return ComparedRequirement(a, b, change_between(*limits, by_factors=blank.is_ratio))


def _why_other_work(a: Verdict, b: Verdict, run_a: ComparedRun, run_b: ComparedRun) -> str:
    """Why two requirements of the same name are not comparable; empty if they are."""
    if a.world_size != b.world_size:
        return f"{a.world_size} ranks in A, {b.world_size} in B"
    if a.one_gpu != b.one_gpu:
        return f"the one-GPU baseline is {a.one_gpu} in A, {b.one_gpu} in B"
    if a.compared and b.compared and a.compared.reference_samples_per_s != b.compared.reference_samples_per_s:
        references = (one.reference_samples_per_s for one in (a.compared, b.compared))
        return "relative to {:g} in A, {:g} in B".format(*references)
    trained = [
        [study.workload for study in run.evidence.plan.studies if study.workload.name == verdict.workload]
        for verdict, run in ((a, run_a), (b, run_b))
    ]
    if not all(trained):  # a probe
        return ""
    ours, theirs = (workloads[0] for workloads in trained)
    fields = incomparable_fields(ours, theirs)
    return "; ".join(f"{one} {ours.kernels.get(one)} in A, {theirs.kernels.get(one)} in B" for one in fields)


def _of_generations(a: ComparedRun, b: ComparedRun, confidence: float) -> Iterator[ComparedRequirement]:
    """Throughput per GPU of comparable workloads at equal world sizes, each with its own largest batch."""
    others = _by_work(b)
    for work, study in _by_work(a).items():
        both = [(a, study), (b, others[work])] if work in others else []
        for size in sorted(set.intersection(*(_world_sizes(of) for _, of in both))) if both else ():
            of_a, of_b = (_throughput(run, of, size, confidence, study) for run, of in both)
            yield _compared(of_a, of_b)


def _throughput(run: ComparedRun, of: Study, size: int, confidence: float, named: Study) -> Verdict:
    """As a verdict on it would be, by the name that the first run has for the work."""
    one_gpu: Literal["alone", "ddp"] = "alone" if any(arm.kind == "alone" for arm in of.arms) else "ddp"
    metric, name = THROUGHPUT_PER_GPU, named.workload.name
    question = Question(metric, of.workload, size, one_gpu=one_gpu)
    found, worst = values(run.evidence, question), worst_value(question, run.evidence, confidence)
    reason = say(found.broken) if found.broken else "no complete round"
    if worst is not None and not found.broken:
        reason = f"{int(found.rounds().max())} rounds are too few"
    else:
        worst = None
    return Verdict(
        f"{metric.name}[{name}-{size}gpu]", metric.name, name, size, "warn", {"at_least": 1.0}, "inconclusive",
        worst and worst.value, worst and worst.interval, confidence, reason=reason, place=worst.place if worst else "",
        unit=metric.unit_of(named.workload.family),
    )  # fmt: skip


def _by_work(run: ComparedRun) -> dict[tuple[object, ...], Study]:
    """Weak-scaling studies with training, by the work of one rank; of several batches the largest."""
    weak = [one for one in run.evidence.plan.studies if one.scaling == "weak" and _world_sizes(one)]
    ordered = sorted(weak, key=lambda one: one.workload.batch_size)
    return {tuple(one.workload.kernels.values()): one for one in ordered}


def _world_sizes(study: Study) -> set[int]:
    trained = {arm.world_size for arm in study.arms if arm.kind == "ddp" and arm.placement == "packed"}
    return trained | {1 for arm in study.arms if arm.kind == "alone"}
