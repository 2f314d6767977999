"""Comparison of two runs by requirement, or by workload if their SKUs differ."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from pytest_ddpscale.compare.compared_run import ComparedRun
from pytest_ddpscale.compare.configuration import ConfigurationDifference, configuration_differences
from pytest_ddpscale.compare.value_change import Estimate, ValueChange, change_between
from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.judge.values import values, worst_value
from pytest_ddpscale.plan.metric_catalogue import METRICS, THROUGHPUT_PER_GPU, Metric
from pytest_ddpscale.plan.planner import Question
from pytest_ddpscale.plan.study import Study
from pytest_ddpscale.plan.workload import Workload, incomparable_fields
from pytest_ddpscale.report.words.reasons import say
from pytest_ddpscale.run.verdicts import Verdict

_LEAST_SHARE = 1e-6  # smallest lower limit relative to the value, for values that err by factors
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
        place_a: where the first run's value is: the worst of the places judged by themselves; empty if it is of all.
        place_b: where the second run's is, likewise.
        knows_launches: whether both intervals include differences between launches.
        why_not: why it was not compared; empty if it was.
        is_lost: whether the first run has a value but the second has none to compare with it.
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
    change: ValueChange | None = None
    is_ratio: bool = True
    difference: Difference = "not compared"
    is_worse: bool = False
    place_a: str = ""
    place_b: str = ""
    knows_launches: bool = False
    why_not: str = ""
    is_lost: bool = False

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
        confidence: of each interval, 0 … 1; if verdicts have several, the lowest.
        configuration: differences besides the measured values.
        requirements: in the order of the first run.
        only_a: ids of requirements that only the first run was judged by.
        only_b: likewise for the second run.
        lost: ids of requirements with a value in the first run but none to compare with it in the second.
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

    def worse_by(self, share: float) -> list[str]:
        """Ids of the requirements in which the second run is certainly worse by more than `share`."""
        return [one.id for one in self.requirements if one.is_worse_by(share)]


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
    asked_a, asked_b = (requirements_of(run) if is_same_sku else {} for run in (a, b))
    judged = min((one.confidence for one in (*asked_a.values(), *asked_b.values())), default=confidence)
    if judged != confidence:
        raise OptionError("--confidence", f"found {confidence:g}; the verdicts have {judged:g}", f"{judged:g}",
                          "`pytest --ddp-judge=RUN_DIR --ddp-confidence=C` judges a run again.")  # fmt: skip
    found = tuple(_of_requirements(a, b) if is_same_sku else _of_generations(a, b, confidence))
    if not any(one.change for one in found):
        raise OptionError("RUN_DIR", f"{a.path} and {b.path} cannot be compared: {_why_nothing(found)}", "two runs "
                          "that measured the same")  # fmt: skip
    only_a, only_b = (
        tuple(name for name in ours if name not in theirs) for ours, theirs in ((asked_a, asked_b), (asked_b, asked_a))
    )
    lost = [one.id for one in found if one.is_lost] + [name for name in only_a if _has_value(asked_a[name])]
    return ComparedRuns(
        a, b, "same SKU" if is_same_sku else "generations", confidence, configuration_differences(a, b), found,
        only_a, only_b, tuple(lost),
    )  # fmt: skip


def _why_nothing(found: tuple[ComparedRequirement, ...]) -> str:
    return f"{found[0].id}: {found[0].why_not}" if found else "no requirement is common to both"


def requirements_of(run: ComparedRun) -> dict[str, Verdict]:
    """Verdicts on values measured in rounds, by the id of their requirement.

    Those that compare the places of a probe are left out: the values of these places are compared by themselves.
    """
    found = {one.id: METRICS[one.metric] for one in run.judgement.verdicts}
    kept = {name for name, metric in found.items() if metric.subject in ("workload", "probe")}
    kept -= {name for name, metric in found.items() if metric.compares_places}
    return {one.id: one for one in run.judgement.verdicts if one.id in kept}


class _Reached(NamedTuple):
    """What one run reached: the value with its interval, and at which place; or why it cannot be compared."""

    value: float | None = None
    interval: tuple[float, float] | None = None
    place: str = ""
    knows_launches: bool = False
    why_not: str = ""


def _of_requirements(a: ComparedRun, b: ComparedRun) -> Iterator[ComparedRequirement]:
    others = requirements_of(b)
    for identity, verdict in requirements_of(a).items():
        other = others.get(identity)
        if other is not None:
            blank = ComparedRequirement(
                identity, verdict.metric, verdict.workload, verdict.world_size, verdict.unit,
                is_lost=_has_value(verdict),
            )  # fmt: skip
            yield _compared(blank, _of_verdict(verdict), _of_verdict(other), _why_other_work(verdict, other, a, b))


def _has_value(verdict: Verdict) -> bool:
    """Whether a value was measured that a later run can lack."""
    return verdict.value is not None and verdict.outcome not in ("not_measured", "error")


def _of_verdict(verdict: Verdict) -> _Reached:
    why_not = verdict.reason if verdict.value is None or verdict.interval is None else ""
    if verdict.outcome in ("not_measured", "error"):
        why_not = f"{verdict.outcome.replace('_', ' ')}: {verdict.reason}"
    knows_launches = verdict.launch_sd is not None
    return _Reached(verdict.value, verdict.interval, verdict.place, knows_launches, why_not)


def _why_other_work(a: Verdict, b: Verdict, run_a: ComparedRun, run_b: ComparedRun) -> str:
    """Why two requirements of the same name are not comparable; empty if they are."""
    if a.world_size != b.world_size:
        return f"{a.world_size} ranks in A, {b.world_size} in B"
    if a.one_gpu != b.one_gpu:
        return f"the one-GPU baseline is {a.one_gpu} in A, {b.one_gpu} in B"
    if a.compared and b.compared and a.compared.reference_samples_per_s != b.compared.reference_samples_per_s:
        references = (one.reference_samples_per_s for one in (a.compared, b.compared))
        return "relative to {:g} in A, {:g} in B".format(*references)
    ours, theirs = _workload(a, run_a), _workload(b, run_b)
    if ours is None or theirs is None:
        return ""
    fields = incomparable_fields(ours, theirs)
    return "; ".join(f"{one} {ours.kernels.get(one)} in A, {theirs.kernels.get(one)} in B" for one in fields)


def _workload(verdict: Verdict, run: ComparedRun) -> Workload | None:
    """What was trained; None for a probe."""
    workloads = (study.workload for study in run.evidence.plan.studies)
    return next((one for one in workloads if one.name == verdict.workload), None)


def _of_generations(a: ComparedRun, b: ComparedRun, confidence: float) -> Iterator[ComparedRequirement]:
    """Throughput per GPU of comparable workloads at equal world sizes, each with its own largest batch."""
    others, metric = _by_work(b), THROUGHPUT_PER_GPU
    for work, study in _by_work(a).items():
        other = others.get(work)
        if other is None:
            continue
        for size in sorted(_world_sizes(study) & _world_sizes(other)):
            of_a, of_b = (_throughput(run, of, size, confidence) for run, of in ((a, study), (b, other)))
            name, unit = f"{metric.name}[{study.workload.name}-{size}gpu]", metric.unit_of(study.workload.family)
            has_value = of_a.value is not None
            blank = ComparedRequirement(name, metric.name, study.workload.name, size, unit, is_lost=has_value)
            yield _compared(blank, of_a, of_b)


def _throughput(run: ComparedRun, study: Study, size: int, confidence: float) -> _Reached:
    """As a verdict on it would have it."""
    question = Question(THROUGHPUT_PER_GPU, study.workload, size, one_gpu=_one_gpu(study))
    found, worst = values(run.evidence, question), worst_value(question, run.evidence, confidence)
    if found.broken is not None or worst is None:
        return _Reached(why_not=say(found.broken) if found.broken else "no complete round")
    why_not = "" if worst.interval else f"{int(found.rounds().max())} rounds are too few"
    return _Reached(worst.value, worst.interval, worst.place, why_not=why_not)


def _by_work(run: ComparedRun) -> dict[tuple[object, ...], Study]:
    """Weak-scaling studies with training, by the work of one rank; of several batches the largest."""
    weak = [one for one in run.evidence.plan.studies if one.scaling == "weak"]
    studies = [one for one in weak if _world_sizes(one)]
    ordered = sorted(studies, key=lambda one: one.workload.batch_size)
    return {tuple(one.workload.kernels.values()): one for one in ordered}


def _world_sizes(study: Study) -> set[int]:
    trained = {arm.world_size for arm in study.arms if arm.kind == "ddp" and arm.placement == "packed"}
    return trained | {1 for arm in study.arms if arm.kind == "alone"}


def _one_gpu(study: Study) -> Literal["alone", "ddp"]:
    return "alone" if any(arm.kind == "alone" for arm in study.arms) else "ddp"


def _compared(blank: ComparedRequirement, a: _Reached, b: _Reached, why_not: str = "") -> ComparedRequirement:
    metric = METRICS[blank.metric]
    # By difference if it may be 0: a share, or a difference of two arms.
    is_ratio = metric.scale == "factors" or (metric.unit != "fraction" and metric.baseline is None)
    reasons = (f"{run}: {one.why_not}" for one, run in ((a, "A"), (b, "B")) if one.why_not)
    limits = [_limits(one, is_ratio=is_ratio) for one in (a, b)]
    found = replace(
        blank, a=limits[0], b=limits[1], value_a=a.value, value_b=b.value, place_a=a.place, place_b=b.place,
        is_ratio=is_ratio, knows_launches=a.knows_launches and b.knows_launches,
        why_not=why_not or "; ".join(reasons),
    )  # fmt: skip
    if found.a is None or found.b is None or found.why_not:
        return replace(found, why_not=found.why_not or "an impossible value was measured")
    change = change_between(found.a, found.b, by_factors=is_ratio)
    return replace(
        found, change=change, difference=difference_of(change, metric), is_worse=is_worse(change, metric), is_lost=False
    )


def _limits(one: _Reached, *, is_ratio: bool) -> Estimate | None:
    """None without an interval; for a ratio above 0."""
    if one.value is None or one.interval is None or (is_ratio and one.value <= 0):
        return None
    low, high = one.interval
    return Estimate(one.value, (max(low, _LEAST_SHARE * one.value) if is_ratio else low, high))


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
