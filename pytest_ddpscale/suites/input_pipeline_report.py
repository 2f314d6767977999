"""Report of loading: throughput relative to synthetic data, seconds waited, and recommended settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from pytest_ddpscale.judge.metrics import merged
from pytest_ddpscale.judge.stats import Found
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.metric_catalogue import INPUT_PIPELINE_EFFICIENCY
from pytest_ddpscale.plan.study import Study
from pytest_ddpscale.report.digits import ABSENT
from pytest_ddpscale.report.where_time_goes import waited_s_per_step
from pytest_ddpscale.suites.pace import throughput
from pytest_ddpscale.suites.ratio_text import estimate_texts
from pytest_ddpscale.suites.suite import MeasuredSuite, why_missing
from pytest_ddpscale.suites.suite_report import SuiteReport, SuiteSection, SuiteTable
from pytest_ddpscale.util.digits import percent

# Share of the throughput on synthetic data below which loading counts as the bottleneck.
WORTH = 0.95
Answer = Literal["is", "is not", "may be"]


@dataclass(frozen=True)
class LoadedArm:
    """One setting of the loader, or synthetic data.

    Attributes:
        samples_per_s: of each GPU, at the pace of the slowest.
        efficiency: throughput relative to synthetic data, in the same rounds; None for synthetic data, or if synthetic
            data was not measured.
        to_best: throughput relative to the fastest setting; None for synthetic data and for the fastest itself.
        waited_s: seconds per step by the rank that waited most, mean over rounds; None for synthetic data.
        step_s: step time of the slowest rank, mean over rounds.
    """

    arm: Arm
    samples_per_s: Found
    efficiency: Found | None
    to_best: Found | None
    waited_s: float | None
    step_s: float

    @property
    def name(self) -> str:
        """``workers=2,prefetch=4``, or ``data=synthetic``."""
        return self.arm.variant.name

    @property
    def is_slower_than_best(self) -> bool:
        """Whether the arm is shown to be slower than the fastest."""
        return self.to_best is not None and (self.to_best.interval is None or self.to_best.interval[1] < 1)


def loaded_arms(measured: MeasuredSuite) -> list[LoadedArm]:
    """Arms with complete rounds, in the plan's order: synthetic data, then the fewest workers first."""
    evidence, confidence = measured.evidence, measured.confidence
    study = evidence.plan.studies[0]
    synthetic = next(arm for arm in study.arms if arm.data_of(study.workload) == "synthetic")
    pace = {arm: found for arm in study.arms if (found := throughput(evidence, study, arm, confidence)) is not None}
    best = max((arm for arm in pace if arm != synthetic), key=lambda arm: pace[arm].value, default=None)

    def ratio(arm: Arm, baseline: Arm | None) -> Found | None:
        is_apart = baseline is not None and arm not in (synthetic, baseline)
        return throughput(evidence, study, arm, confidence, baseline) if baseline and is_apart else None

    return [
        LoadedArm(arm, found, ratio(arm, synthetic), ratio(arm, best), *_seconds(measured, study, arm))
        for arm, found in pace.items()
    ]


def _seconds(measured: MeasuredSuite, study: Study, arm: Arm) -> tuple[float | None, float]:
    """Seconds waited and total seconds of a step."""
    rounds = merged(measured.evidence.columns, study.id, arm, measured.evidence.plan.layout)
    waited = waited_s_per_step(rounds)
    return None if np.isnan(waited).any() else float(waited.mean()), float(rounds.step_s.mean())


def recommended(arms: Sequence[LoadedArm]) -> LoadedArm | None:
    """The setting with the fewest workers, then batches ahead, not shown slower than the fastest; None without any."""
    return next((one for one in arms if one.waited_s is not None and not one.is_slower_than_best), None)


def bottleneck(arms: Sequence[LoadedArm]) -> Answer:
    """Whether loading is the bottleneck, as far as intervals show.

    It is not if the recommended setting keeps up, and it is if no setting keeps up.
    """
    chosen = recommended(arms)
    limits = [_limits(one.efficiency) for one in arms if one.waited_s is not None]
    if chosen is None or None in limits:
        return "may be"
    if (_limits(chosen.efficiency) or (0.0, 0.0))[0] >= WORTH:
        return "is not"
    return "is" if all(one is not None and one[1] < WORTH for one in limits) else "may be"


def _limits(found: Found | None) -> tuple[float, float] | None:
    return found.interval if found is not None and found.interval is not None else None


def input_pipeline_report(measured: MeasuredSuite) -> SuiteReport:
    """The whole report."""
    arms, study = loaded_arms(measured), measured.evidence.plan.studies[0]
    missing = [arm.variant.name for arm in study.arms if arm not in [one.arm for one in arms]]
    why = why_missing(measured.evidence, study.id)
    problems = [f"{', '.join(missing) or 'some rounds'}: {why or 'no complete round'}"] if missing or why else []
    chosen = recommended(arms)
    answer = bottleneck(arms)
    values = {
        "folder": str(study.workload.data), "arms": [_values(one) for one in arms],
        "recommended": chosen.name if chosen else None, "is_bottleneck": {"is": True, "is not": False}.get(answer),
    }  # fmt: skip
    sections = [_table(arms, measured)] if arms else []
    if chosen is not None:
        sections.append(SuiteSection("What to set", _advice(chosen, answer, measured.confidence)))
    return SuiteReport(_headline(study, chosen, answer), sections, problems, values)


def _headline(study: Study, chosen: LoadedArm | None, answer: Answer) -> str:
    what = f"{study.workload.family.model} in {study.workload.precision} on {study.workload.data_kind} images"
    if chosen is None:
        return f"{what}: no setting of the loader was measured"
    says = f"the input pipeline {answer} the bottleneck"
    if chosen.efficiency is not None:
        value, interval = estimate_texts(chosen.efficiency)
        says += f": {value} the throughput on synthetic data ({interval})"
    return f"{what}: {says}, with {chosen.name}"


def _table(arms: Sequence[LoadedArm], measured: MeasuredSuite) -> SuiteSection:
    interval = f"{percent(measured.confidence)} interval"
    plan = measured.evidence.plan
    rate = f"{plan.unit}/s"
    columns = ["Data", f"{rate} per {plan.device}", interval, "Efficiency", interval, "Of the fastest", interval,
               "Waited s/step", "Of a step"]  # fmt: skip
    said = (
        f"{INPUT_PIPELINE_EFFICIENCY.title}: throughput relative to synthetic data in the same round. Waited: seconds "
        "per step that the rank that waited most was blocked for its next batch, mean over rounds. Waiting may cost "
        "nothing while the device still computes earlier work."
    )
    return SuiteSection("Loading", [said], [SuiteTable(columns, [_row(one) for one in arms])])


def _row(one: LoadedArm) -> list[str]:
    ends = one.samples_per_s.interval if one.samples_per_s.interval else ()
    row = [one.name, f"{one.samples_per_s.value:.4g}", " … ".join(f"{end:.4g}" for end in ends) or ABSENT]
    for ratio in (one.efficiency, one.to_best):
        row += estimate_texts(ratio) if ratio is not None else (ABSENT, ABSENT)
    if one.waited_s is None:
        return [*row, ABSENT, ABSENT]
    return [*row, f"{one.waited_s:.4f}", percent(one.waited_s / one.step_s)]


def _advice(chosen: LoadedArm, answer: Answer, confidence: float) -> list[str]:
    beside = "It is the fastest setting measured."
    if chosen.to_best is not None:
        value, interval = estimate_texts(chosen.to_best)
        beside = f"It reaches {value} of the fastest ({interval})."
    meaning = {
        "is": f"Training waits for its data: with {percent(confidence)} confidence each setting reaches less than "
        f"{percent(WORTH)} of the throughput on synthetic data. More cores, smaller files, or decoding "
        "on the GPU may help.",
        "is not": f"Training does not wait for its data: with {percent(confidence)} confidence it reaches at least "
        f"{percent(WORTH)} of the throughput on synthetic data.",
        "may be": f"Whether loading costs more than {percent(1 - WORTH)} is undecided; more --ddp-rounds narrow the "
        "intervals.",
    }
    return [
        f"{chosen.name}: the fewest workers that are not shown to be slower than the fastest setting. {beside}",
        meaning[answer],
    ]


def _values(one: LoadedArm) -> dict[str, Any]:
    return {
        "data": one.name, "samples_per_s_per_gpu": _value(one.samples_per_s), "efficiency": _value(one.efficiency),
        "to_fastest": _value(one.to_best), "waited_s_per_step": one.waited_s, "step_s": one.step_s,
    }  # fmt: skip


def _value(found: Found | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {"value": found.value, "interval": list(found.interval) if found.interval else None}
