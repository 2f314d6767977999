"""A requirement against what was measured."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pytest_ddpscale.metrics.rounds import ArmRound, arm_rounds, rounds_begun
from pytest_ddpscale.metrics.samples import (
    Sample,
    efficiency_samples,
    generation_ratio_samples,
    peak_memory_samples,
    strong_speedup_samples,
    throughput_samples,
    utilization_samples,
)
from pytest_ddpscale.plan.metric import baseline_arm, measured_arm, required_arms
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS, Question
from pytest_ddpscale.plan.study import Arm, Plan, Scaling, Study
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.results.records import Measurement
from pytest_ddpscale.thresholds.cases import Case
from pytest_ddpscale.thresholds.model import Source
from pytest_ddpscale.verdict.evidence import Evidence
from pytest_ddpscale.verdict.statistics import (
    Estimate,
    geometric_mean_estimate,
    mean_estimate,
    single_sample_estimate,
)
from pytest_ddpscale.verdict.verdict import Culprit, Verdict

# Below this, a GPU under strong scaling waits for its host: published ResNet-152 rows show 58-74 %
# there, while every row that scales shows 95 % and more (willgpaik/pytorch-ddp-scaling-benchmark).
HOST_BOUND_UTILIZATION = 0.90
_MOST_PLAUSIBLE = {"device_utilization": 1.0, "weak_scaling_efficiency": 1.1}
SINGLE_SAMPLE_NOTE = (
    "one imported sample: the interval comes from the standard deviation of its steps, taken as independent"
)
SINGLE_VALUE_NOTE = "one imported value: it has no interval of its own"


def judge(case: Case, evidence: Evidence, confidence: float) -> Verdict:
    """The verdict on one requirement.

    Args:
        case: the requirement.
        evidence: what was measured.
        confidence: of the two-sided interval, 0 … 1.

    Returns:
        ``passed`` if the whole interval is on the good side of the bound, ``failed`` if the whole
        interval is on the bad side, ``inconclusive`` if the bound lies inside or there are too few
        rounds, ``not_measured`` without data, ``error`` if the study broke.
    """
    blank = _blank(case, confidence)
    question = case.question
    study = matching_study(evidence.plan, question)
    if study is None:
        return replace(blank, reason=_why_no_study(evidence.plan, question))
    if study.id in evidence.errors:
        return replace(blank, outcome="error", reason=evidence.errors[study.id])
    rounds = _rounds(question, study, evidence.measurements)
    samples = _samples(question, rounds, case.reference_img_per_s)
    if not samples:
        return replace(blank, reason=_why_no_samples(question, study, rounds))
    verdict = _against_bound(blank, case, samples, confidence)
    verdict = _with_missing_rounds(verdict, _begun(question, study, evidence.measurements))
    verdict = _with_plausibility(verdict, evidence.plan)
    return _with_blame(_with_host_bound(verdict, case, evidence.plan, rounds.measured), rounds.measured)


def samples_of(question: Question, evidence: Evidence) -> list[Sample]:
    """Per-round values of what a question asks, in the metric's unit; empty if it was not measured."""
    study = matching_study(evidence.plan, question)
    return _samples(question, _rounds(question, study, evidence.measurements), None) if study else []


def covers(plan: Plan, question: Question) -> bool:
    """Whether the plan has every arm that the question needs."""
    study = matching_study(plan, question)
    return study is not None and set(_arms(question)) <= set(study.arms)


def matching_study(plan: Plan, question: Question) -> Study | None:
    """The study that trained exactly this, whatever the workload is called there.

    Of several, the one with most of the arms that the question needs.
    """
    scaling, needed = question.metric.scaling, set(_arms(question))
    same = [
        s for s in plan.studies if s.scaling == scaling and not _differences(scaling, s.workload, question.workload)
    ]
    return max(same, key=lambda study: len(needed & set(study.arms)), default=None)


def _arms(question: Question) -> list[Arm]:
    return required_arms(question.metric, question.workload, question.world_size)


def _differences(scaling: Scaling, one: Workload, other: Workload) -> list[str]:
    """``field found, required`` for each field that makes them different training."""
    batch = "batch_size" if scaling == "weak" else "global_batch_size"
    fields = ("model", "precision", batch, "image_size", "memory_format", "compile", "num_classes", "cudnn_benchmark")
    pairs = [(field, getattr(one, field), getattr(other, field)) for field in fields]
    return [f"{field} {found}, required {required}" for field, found, required in pairs if found != required]


def _why_no_study(plan: Plan, question: Question) -> str:
    scaling, workload = question.metric.scaling, question.workload
    near = [s for s in plan.studies if s.scaling == scaling and _is_near(s.workload, workload)]
    if near:
        return f"measured differently: {'; '.join(_differences(scaling, near[0].workload, workload))}"
    return f"{scaling} scaling of {workload.name} was not measured in this run"


def _is_near(one: Workload, other: Workload) -> bool:
    """Whether they are meant to be the same: by name, or by what is trained in which precision."""
    return one.name == other.name or (one.model, one.precision) == (other.model, other.precision)


def _blank(case: Case, confidence: float) -> Verdict:
    requirement = case.requirement
    key = "at_most" if requirement.definition.upper_bound else "at_least"
    return Verdict(
        id=case.id,
        metric=requirement.metric,
        workload=requirement.workload,
        world_size=requirement.world_size,
        severity=requirement.severity,
        bound={key: requirement.bound},
        outcome="not_measured",
        confidence=confidence,
        provisional=requirement.provisional,
        source=_source_text(requirement.source),
    )


def _source_text(source: Source) -> str:
    measured = f"measured {source.measured:g}" if source.measured is not None else ""
    margin = f"margin {source.margin_pct:g} %" if source.margin_pct is not None else ""
    parts = [part for part in (measured, margin, source.reference, source.reasoning) if part]
    return "; ".join(parts)


@dataclass(frozen=True)
class _Rounds:
    """Complete rounds of the arm in question and of its baseline ``alone``."""

    measured: dict[int, ArmRound]
    alone: dict[int, ArmRound]


def _rounds(question: Question, study: Study, measurements: Sequence[Measurement]) -> _Rounds:
    measured = measured_arm(question.metric, question.workload, question.world_size)
    alone = baseline_arm(question.metric, question.workload)
    return _Rounds(arm_rounds(measurements, study.id, measured), arm_rounds(measurements, study.id, alone))


def _begun(question: Question, study: Study, measurements: Sequence[Measurement]) -> int:
    """How many rounds there should be: those from which any rank of any arm in question reported."""
    return len(set().union(*(rounds_begun(measurements, study.id, arm) for arm in _arms(question))))


def _samples(question: Question, rounds: _Rounds, reference_img_per_s: float | None) -> list[Sample]:
    name, measured, alone = question.metric.name, rounds.measured, rounds.alone
    if name == "generation_ratio":
        assert reference_img_per_s is not None  # the thresholds model saw to it
        return generation_ratio_samples(measured, reference_img_per_s)
    samples: dict[str, Callable[[], list[Sample]]] = {
        "throughput_per_gpu": lambda: throughput_samples(measured),
        "weak_scaling_efficiency": lambda: efficiency_samples(measured, alone),
        "strong_scaling_speedup": lambda: strong_speedup_samples(measured, alone, question.world_size),
        "strong_scaling_efficiency": lambda: efficiency_samples(measured, alone),
        "device_utilization": lambda: utilization_samples(measured),
        "peak_memory_gib": lambda: peak_memory_samples(measured),
    }
    return samples[name]()


def _why_no_samples(question: Question, study: Study, rounds: _Rounds) -> str:
    if not rounds.measured:
        return f"no complete round of {question.world_size} ranks in {study.id}"
    if question.metric.relative_to_alone:
        return f"{study.id} has no complete round of the arm alone to compare with"
    return f"{question.metric.name} could not be read on every rank"


def _against_bound(blank: Verdict, case: Case, samples: list[Sample], confidence: float) -> Verdict:
    values = [sample.value for sample in samples]
    if not all(_is_possible(value, blank.metric) for value in values):
        return replace(blank, outcome="error", rounds=len(values), reason=f"an impossible value was measured: {values}")
    estimate, note = _estimate(case, samples, confidence)
    notes = (note,) if note else ()
    if estimate is None:
        return replace(
            blank,
            outcome="inconclusive",
            value=statistics.fmean(values),
            rounds=len(values),
            reason=f"{len(values)} rounds; expected at least {FEWEST_ROUNDS}",
        )
    low, high = estimate.interval
    bound, upper = case.requirement.bound, case.requirement.definition.upper_bound
    good, bad = (high <= bound, low > bound) if upper else (low >= bound, high < bound)
    verdict = replace(blank, value=estimate.value, interval=(low, high), rounds=len(values), notes=notes)
    if good:
        return replace(verdict, outcome="passed", reason="the whole interval keeps the bound")
    if bad:
        return replace(verdict, outcome="failed", reason="the whole interval misses the bound")
    return replace(verdict, outcome="inconclusive", reason="the bound lies inside the interval: more rounds are needed")


def _with_missing_rounds(verdict: Verdict, begun: int) -> Verdict:
    """Rounds with a rank or a reading missing may be the very ones that would have failed."""
    if verdict.outcome not in ("passed", "failed") or verdict.rounds >= begun:
        return verdict
    reason = f"only {verdict.rounds} of {begun} rounds are complete: what is missing may be what would decide"
    return replace(verdict, outcome="inconclusive", reason=reason)


def _with_plausibility(verdict: Verdict, plan: Plan) -> Verdict:
    """GPUs are not more than busy, nor clearly faster together than alone: then the measurement is wrong."""
    limit = _MOST_PLAUSIBLE.get(verdict.metric)
    if plan.device_type != "cuda" or limit is None or verdict.value is None or verdict.value <= limit:
        return verdict
    reason = f"implausible: {verdict.value:.3g} is more than {limit:g}; the measurement or its baseline was disturbed"
    return replace(verdict, outcome="inconclusive", reason=reason)


def _is_possible(value: float, metric: str) -> bool:
    """A device may have idled all the time; nothing else that is measured can be zero."""
    return math.isfinite(value) and (value > 0 or (value == 0 and metric == "device_utilization"))


def _estimate(case: Case, samples: list[Sample], confidence: float) -> tuple[Estimate | None, str]:
    """Value and interval, and what to know about it; None with too few rounds."""
    values = [sample.value for sample in samples]
    unbounded_above = (
        case.requirement.definition.unit in ("img/s", "x") or case.requirement.definition.relative_to_alone
    )
    if len(samples) == 1 and samples[0].relative_error is not None:
        note = SINGLE_SAMPLE_NOTE if samples[0].relative_error > 0 else SINGLE_VALUE_NOTE
        return single_sample_estimate(values[0], samples[0].relative_error, confidence), note
    if len(values) < FEWEST_ROUNDS:
        return None, ""
    # Rates and ratios err by factors, shares of time and amounts of memory by differences.
    return (geometric_mean_estimate if unbounded_above else mean_estimate)(values, confidence), ""


def _with_host_bound(verdict: Verdict, case: Case, plan: Plan, measured: dict[int, ArmRound]) -> Verdict:
    """Strong scaling on GPUs that wait for their host says nothing about the GPUs or their links."""
    if case.requirement.definition.scaling != "strong" or plan.device_type != "cuda":
        return verdict
    busy = [sample.value for sample in utilization_samples(measured)]
    if not busy or statistics.fmean(busy) >= HOST_BOUND_UTILIZATION:
        return verdict
    reason = (
        f"host-bound: devices were {statistics.fmean(busy):.0%} busy (below {HOST_BOUND_UTILIZATION:.0%}), so "
        f"{case.workload.global_batch_size} images are too few for {case.requirement.world_size} GPUs to say anything"
    )
    return replace(verdict, outcome="inconclusive", reason=reason)


def _with_blame(verdict: Verdict, measured: dict[int, ArmRound]) -> Verdict:
    """Name the least busy device when utilization is what failed."""
    if verdict.metric != "device_utilization" or verdict.outcome != "failed":
        return verdict
    idle = [r.least_busy for r in measured.values() if r.least_busy is not None]
    ranks = [rank.rank for rank in idle]
    most_often = statistics.mode(ranks)
    rank = next(rank for rank in idle if rank.rank == most_often)
    evidence = f"least busy of {verdict.world_size} in {ranks.count(most_often)} of {len(ranks)} rounds"
    culprit = Culprit("gpu", rank.host, rank.local_rank, rank.device, evidence)
    return replace(verdict, culprits=(culprit,))
