"""Comparison of two runs by requirement, or by workload if their SKUs differ."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from pytest_ddpscale.compare.asked_of_run import TOGETHER, AskedOfRun, asked_of
from pytest_ddpscale.compare.compared_run import ComparedRun
from pytest_ddpscale.compare.configuration import ConfigurationDifference, configuration_differences
from pytest_ddpscale.compare.estimated_values import Estimated, Of, estimated, shared_hosts
from pytest_ddpscale.compare.step_percentiles import StepPercentiles, step_percentiles
from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.judge.intervals import Estimate, ValueChange, change_between
from pytest_ddpscale.plan.metric import Metric
from pytest_ddpscale.plan.metric_catalogue import METRICS, THROUGHPUT_PER_GPU
from pytest_ddpscale.plan.planner import Question
from pytest_ddpscale.plan.study import Study
from pytest_ddpscale.plan.workload import incomparable_fields
from pytest_ddpscale.run.verdicts import Verdict

Difference = Literal["faster", "slower", "more", "less", "no difference shown", "not compared"]


@dataclass(frozen=True)
class ComparedRequirement:
    """One requirement in both runs.

    Attributes:
        id: ``metric[workload-8gpu]``.
        workload: its name, or the probe's.
        a: value of the first run, in `unit`, with its interval; None without an interval.
        b: value of the second run, likewise.
        value_a: value of the first run even without an interval; None if it was not measured.
        value_b: value of the second run, likewise.
        change: from the first run to the second; None if not compared.
        is_ratio: whether the change is relative to the first run, instead of a difference.
        difference: the change in a word.
        is_worse: whether the second run is certainly worse.
        nodes: number of nodes of the values.
        of: the worst of the nodes that both runs share, or the mean of all if they share none.
        knows_launches: whether both intervals include differences between launches.
        why_not: why it was not compared; empty if it was.
        is_lost: whether the first run has a value but the second has none to compare with it.
        earlier_runs: number of earlier runs in the mean `a` when comparing with a history; 0 for a single run.
        counts_with: id of the requirement that it is counted with (`run.counting`); empty for itself.
    """

    id: str
    metric: str
    workload: str
    world_size: int
    unit: str
    a: Estimate | None = None
    b: Estimate | None = None
    value_a: float | None = None
    value_b: float | None = None
    rounds_a: int = 0
    rounds_b: int = 0
    change: ValueChange | None = None
    is_ratio: bool = True
    difference: Difference = "not compared"
    is_worse: bool = False
    nodes: int = 1
    of: Of = "worst"
    knows_launches: bool = False
    why_not: str = ""
    is_lost: bool = False
    earlier_runs: int = 0
    counts_with: str = ""

    def is_worse_by(self, share: float) -> bool:
        """Whether the near end of the interval is worse by more than `share` of the first value, or in points.

        Wrong data is worse at any share, because one wrong rank of many is a small share.
        """
        if not self.is_worse or self.change is None:
            return False
        if METRICS[self.metric].compares_results:
            return True
        near = self.change.low if METRICS[self.metric].upper_bound else -self.change.high
        of = 1.0 if self.is_ratio or self.unit == "fraction" or self.a is None else abs(self.a.value)
        return near > share * of


@dataclass(frozen=True)
class ComparedRuns:
    """A comparison of two runs.

    Attributes:
        kind: ``generations`` for two SKUs, which are compared only by throughput, each with its own batch.
        confidence: of each interval, 0 … 1.
        configuration: differences besides the measured values.
        requirements: in the order of the first run.
        only_a: ids of requirements that only the first run was judged by.
        only_b: likewise for the second run.
        lost: ids of requirements with a value in the first run but none to compare with it in the second.
        steps: percentiles of the step time of both.
    """

    a: ComparedRun
    b: ComparedRun
    kind: Literal["same SKU", "generations"]
    confidence: float
    configuration: tuple[ConfigurationDifference, ...]
    requirements: tuple[ComparedRequirement, ...]
    only_a: tuple[str, ...] = ()
    only_b: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    steps: tuple[StepPercentiles, ...] = ()

    def worse_by(self, share: float) -> list[str]:
        """Ids of the requirements in which the second run is certainly worse by more than `share`."""
        return [one.id for one in self.requirements if one.is_worse_by(share)]


def compare_runs(a: ComparedRun, b: ComparedRun, confidence: float) -> ComparedRuns:
    """Compare the second run with the first.

    Raises:
        OptionError: the runs have the same measurements, or no requirement in common.
    """
    if a.digest == b.digest:
        raise OptionError("RUN_DIR", f"{b.path} has the same measurements as {a.path}", "two runs")
    is_same_sku = a.record.sku == b.record.sku
    pairs = list(_of_requirements(a, b) if is_same_sku else _of_generations(a, b))
    found = tuple(_compared(pair, confidence) for pair in pairs)
    if not any(one.change for one in found):
        raise OptionError("RUN_DIR", f"{a.path} and {b.path} cannot be compared: {_why_nothing(found)}", "two runs "
                          "that measured the same")  # fmt: skip
    asked_a, asked_b = (requirements_of(run) if is_same_sku else {} for run in (a, b))
    only_a, only_b = (
        tuple(name for name in ours if name not in theirs) for ours, theirs in ((asked_a, asked_b), (asked_b, asked_a))
    )
    lost = [one.id for one in found if one.is_lost] + [name for name in only_a if _has_value(asked_a[name])]
    return ComparedRuns(
        a, b, "same SKU" if is_same_sku else "generations", confidence, configuration_differences(a, b), found,
        only_a, only_b, tuple(lost), step_percentiles(a, b),
    )  # fmt: skip


def _why_nothing(found: tuple[ComparedRequirement, ...]) -> str:
    return f"{found[0].id}: {found[0].why_not}" if found else "no requirement is common to both"


class _AskedOfBoth(NamedTuple):
    """The questions of one requirement to both runs."""

    id: str
    metric: Metric
    workload: str
    world_size: int
    a: AskedOfRun
    b: AskedOfRun
    values: tuple[float | None, float | None]
    unit: str
    why_not: str = ""
    has_value: bool = True
    counts_with: str = ""


def requirements_of(run: ComparedRun) -> dict[str, Verdict]:
    """Verdicts on values measured in rounds, by the id of their requirement.

    Those that compare the places of a probe are left out: the values of these places are compared by themselves.
    """
    found = {one.id: METRICS[one.metric] for one in run.judgement.verdicts}
    kept = {name for name, metric in found.items() if metric.subject in ("workload", "probe")}
    kept -= {name for name, metric in found.items() if metric.compares_places}
    return {one.id: one for one in run.judgement.verdicts if one.id in kept}


def _of_requirements(a: ComparedRun, b: ComparedRun) -> Iterator[_AskedOfBoth]:
    others = requirements_of(b)
    for identity, verdict in requirements_of(a).items():
        other = others.get(identity)
        if other is not None:
            asked = asked_of(a, verdict), asked_of(b, other)
            why_not = _why_other_work(verdict, other, *asked)
            yield _AskedOfBoth(
                identity, METRICS[verdict.metric], verdict.workload, verdict.world_size, *asked,
                (verdict.value, other.value), verdict.unit, why_not, _has_value(verdict), other.counts_with,
            )  # fmt: skip


def _has_value(verdict: Verdict) -> bool:
    """Whether a value was measured that a later run can lack."""
    return verdict.value is not None and verdict.outcome not in ("not_measured", "error")


def _why_other_work(a: Verdict, b: Verdict, asked_a: AskedOfRun, asked_b: AskedOfRun) -> str:
    """Why two requirements of the same name are not comparable; empty if they are."""
    if a.world_size != b.world_size:
        return f"{a.world_size} ranks in A, {b.world_size} in B"
    for one, run in ((asked_a, "A"), (asked_b, "B")):
        if one.why_not:
            return f"{run}: {one.why_not}"
    if a.one_gpu != b.one_gpu:
        return f"the one-GPU baseline is {a.one_gpu} in A, {b.one_gpu} in B"
    if asked_a.workload is None or asked_b.workload is None:
        return ""
    fields = incomparable_fields(asked_a.workload, asked_b.workload)
    ours, theirs = asked_a.workload.kernels, asked_b.workload.kernels
    return "; ".join(f"{one} {ours.get(one)} in A, {theirs.get(one)} in B" for one in fields)


def _of_generations(a: ComparedRun, b: ComparedRun) -> Iterator[_AskedOfBoth]:
    """Throughput per GPU of comparable workloads at equal world sizes, each with its own largest batch."""
    others = _by_work(b)
    for work, study in _by_work(a).items():
        other = others.get(work)
        if other is None:
            continue
        for size in sorted(_world_sizes(study) & _world_sizes(other)):
            of_a, of_b = (
                AskedOfRun(run, Question(THROUGHPUT_PER_GPU, of.workload, size, one_gpu=_one_gpu(of)))
                for run, of in ((a, study), (b, other))
            )
            name = f"{THROUGHPUT_PER_GPU.name}[{study.workload.name}-{size}gpu]"
            unit = THROUGHPUT_PER_GPU.unit_of(study.workload.family)
            yield _AskedOfBoth(name, THROUGHPUT_PER_GPU, study.workload.name, size, of_a, of_b, (None, None), unit)


def _by_work(run: ComparedRun) -> dict[tuple[object, ...], Study]:
    """Weak-scaling studies with training, by the work of one rank; of several batches the largest."""
    weak = [one for one in run.evidence.plan.studies if one.scaling == "weak" and one.launch == 1]
    studies = [one for one in weak if _world_sizes(one)]
    ordered = sorted(studies, key=lambda one: one.workload.batch_size)
    return {tuple(one.workload.kernels.values()): one for one in ordered}


def _world_sizes(study: Study) -> set[int]:
    trained = {arm.world_size for arm in study.arms if arm.kind == "ddp" and arm.placement == "packed"}
    return trained | {1 for arm in study.arms if arm.kind == "alone"}


def _one_gpu(study: Study) -> Literal["alone", "ddp"]:
    return "alone" if any(arm.kind == "alone" for arm in study.arms) else "ddp"


def _compared(asked: _AskedOfBoth, confidence: float) -> ComparedRequirement:
    metric, scale = asked.metric, asked.metric.compared_scale
    is_ratio = scale == "factors"
    blank = ComparedRequirement(
        asked.id, metric.name, asked.workload, asked.world_size, asked.unit, value_a=asked.values[0],
        value_b=asked.values[1], is_ratio=is_ratio, why_not=asked.why_not,
        is_lost=bool(asked.why_not) and asked.has_value, counts_with=asked.counts_with,
    )  # fmt: skip
    if asked.why_not:
        return blank
    launches = asked.a.launches(), asked.b.launches()
    hosts = shared_hosts(*launches)
    a = estimated(asked.a, launches[0], hosts, metric, scale, confidence)
    b = estimated(asked.b, launches[1], hosts, metric, scale, confidence)
    change = change_between(a.limits, b.limits, by_factors=is_ratio) if a.limits and b.limits else None
    value_a = _told(a, asked.values[0])
    return replace(
        blank, a=a.limits, b=b.limits, value_a=value_a, value_b=_told(b, asked.values[1]),
        rounds_a=a.rounds, rounds_b=b.rounds, change=change, difference=difference_of(change, metric),
        is_worse=is_worse(change, metric), is_lost=change is None and asked.has_value and value_a is not None,
        nodes=len([host for host in hosts if host != TOGETHER]) or 1, of="worst" if hosts else "mean",
        knows_launches=a.knows_launches and b.knows_launches,
        why_not="; ".join(f"{run}: {one.why_not}" for one, run in ((a, "A"), (b, "B")) if one.why_not),
    )  # fmt: skip


def _told(one: Estimated, of_verdict: float | None) -> float | None:
    """The verdict's value, which reports show and which includes the thresholds' numbers; else the estimate."""
    return one.value if of_verdict is None else of_verdict


def is_worse(change: ValueChange | None, metric: Metric) -> bool:
    """Whether a change is certainly for the worse; for computed results any disagreement is."""
    if change is None:
        return False
    if metric.compares_results:
        return change.size < 0
    return change.is_shown and (change.size > 0) == metric.upper_bound


def difference_of(change: ValueChange | None, metric: Metric) -> Difference:
    """The change in a word: rates and ratios are faster or slower, costs and shares are more or less."""
    if change is None:
        return "not compared"
    if not (change.is_shown or is_worse(change, metric)):
        return "no difference shown"
    if metric.scale == "differences" or metric.unit == "samples/J":
        return "more" if change.size > 0 else "less"
    return "slower" if (change.size > 0) == metric.upper_bound else "faster"
