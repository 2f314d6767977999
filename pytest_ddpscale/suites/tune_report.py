"""Report of tuning: gains confirmed by further launches, settings without effect, and what goes with a gain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pytest_ddpscale.compare.value_change import Estimate
from pytest_ddpscale.judge.stats import Found
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.plan.words import DeviceType
from pytest_ddpscale.suites.pace import geometric_mean_estimate, paces, throughput
from pytest_ddpscale.suites.ratio_text import estimate_texts, ratio_values
from pytest_ddpscale.suites.suite import MeasuredSuite, why_missing
from pytest_ddpscale.suites.suite_report import SuiteReport, SuiteSection, SuiteTable
from pytest_ddpscale.suites.tune_candidates import Candidate, exports
from pytest_ddpscale.suites.tune_judge import WORTH

_RULES = (
    "{name}: the global batch is {batch} in place of {usual}. Multiply the learning rate by {factor:.3g} (linear rule: "
    "SGD, arXiv:1706.02677, with a warm-up of some epochs) or by {root:.3g} (square root: Adam and its kind, "
    "arXiv:2205.10287)."
)


@dataclass(frozen=True)
class TriedSetting:
    """One setting and its result.

    Attributes:
        candidate: the setting.
        screened: throughput relative to the usual settings in the first launch; None if not measured there.
        confirmed: the same ratio over the further launches; None without them.
        why_missing: why it has no value; empty if it has one.
    """

    candidate: Candidate
    screened: Found | None = None
    confirmed: Estimate | None = None
    why_missing: str = ""

    @property
    def is_gain(self) -> bool:
        """Whether further launches confirm a gain that is worth a change."""
        found = self.confirmed
        return found is not None and found.interval[0] > 1 and found.value >= 1 + WORTH

    @property
    def is_recommended(self) -> bool:
        """Whether it is a gain that users can set; uneven batches are not a setting."""
        return self.is_gain and not self.candidate.variant.uneven_share


def promising(measured: MeasuredSuite) -> list[Study]:
    """Studies of the first launch with a gain worth a change, to be measured again."""
    studies = [one for one in measured.evidence.plan.studies if one.launch == 1 and len(one.arms) > 1]
    return [one for one in studies if _looks_faster(_screened(measured, one))]


def _looks_faster(found: Found | None) -> bool:
    if found is None or found.interval is None:
        return False
    return found.interval[0] > 1 and found.value >= 1 + WORTH


def tried_settings(measured: MeasuredSuite) -> list[TriedSetting]:
    """All settings of the plan, the largest confirmed gain first.

    The intervals of all confirmed settings hold together with the requested confidence (Bonferroni). Other launches
    than these decided which settings to confirm.
    """
    plan, evidence = measured.evidence.plan, measured.evidence
    by_candidate: dict[Candidate, list[Study]] = {}
    for study in plan.studies:
        by_candidate.setdefault(candidate_of(study), []).append(study)
    usual = by_candidate.pop(Candidate(), [])
    again = [one for one, studies in by_candidate.items() if any(study.launch > 1 for study in studies)]
    confidence = 1 - (1 - measured.confidence) / max(1, len(again))
    found = []
    for candidate, studies in by_candidate.items():
        first = next((study for study in studies if study.launch == 1), None)
        screened = _screened(measured, first) if first is not None else None
        launches = [_launch_ratio(measured, study, usual) for study in studies if study.launch > 1]
        ratios = [ratio for ratio in launches if ratio is not None]
        confirmed = geometric_mean_estimate(ratios, confidence) if len(ratios) > 2 else None
        missing = next(filter(None, (why_missing(evidence, study.id) for study in studies)), "")
        found.append(TriedSetting(candidate, screened, confirmed, missing))
    return sorted(found, key=lambda one: (-one.is_gain, -(one.confirmed.value if one.confirmed else 0.0)))


def tune_report(measured: MeasuredSuite) -> SuiteReport:
    """The whole report."""
    tried = tried_settings(measured)
    chosen = [one for one in tried if one.is_recommended]
    usual = [one for one in measured.evidence.plan.studies if candidate_of(one) == Candidate()]
    why_not = next(filter(None, (why_missing(measured.evidence, study.id) for study in usual)), "")
    problems = [f"usual settings: {why_not}"] if why_not else []
    problems += [f"{one.candidate.name}: {one.why_missing}" for one in tried if one.why_missing]
    if chosen:
        gains = ", ".join(f"{one.candidate.name} ({_percent(one.confirmed)})" for one in chosen)
        headline = f"{len(chosen)} of {len(tried)} settings are faster: {gains}"
    else:
        headline = f"None of {len(tried)} settings is shown to be faster"
    headline += f"; {len(problems)} not measured" if problems else ""
    sections = [_results(tried, measured)]
    if chosen:
        sections.append(_settings(chosen, measured.evidence.plan))
    values = {
        "settings": [_json(one) for one in tried],
        "recommended": [one.candidate.name for one in chosen],
        "snippet_environment": exports([one.candidate for one in chosen]),
    }
    return SuiteReport(headline, sections, problems, values)


def candidate_of(study: Study) -> Candidate:
    """The setting that a study tries, from its arms and environment."""
    return Candidate(study.arms[-1].variant, study.environment)


def _screened(measured: MeasuredSuite, study: Study) -> Found | None:
    usual, other = study.arms
    return throughput(measured.evidence, study, other, measured.confidence, usual)


def _launch_ratio(measured: MeasuredSuite, study: Study, usual: Sequence[Study]) -> float | None:
    """Throughput ratio of one launch, geometric mean over rounds; variables compare with that launch's plain gang."""
    if len(study.arms) > 1:
        usual_pace, pace = paces(measured.evidence, study, *study.arms[:2])
        return float(np.exp(np.log(pace / usual_pace).mean())) if len(pace) else None
    beside = next((one for one in usual if one.launch == study.launch), None)
    means = [_mean_samples_per_s(measured, one, one.arms[0]) for one in (study, beside) if one is not None]
    return means[0] / means[1] if len(means) == 2 and all(means) else None


def _mean_samples_per_s(measured: MeasuredSuite, study: Study, arm: Arm) -> float:
    """Geometric mean of samples per second over rounds; 0 without rounds."""
    [values] = paces(measured.evidence, study, arm)
    return float(np.exp(np.log(values).mean())) if len(values) else 0.0


def _results(tried: Sequence[TriedSetting], measured: MeasuredSuite) -> SuiteSection:
    columns = ("setting", "first launch", "interval", "further launches", "interval", "says", "note")
    rows = [_row(one, measured.evidence.plan.device_type) for one in tried]
    return SuiteSection(
        "Settings",
        [
            "Throughput with each setting relative to that without it. A gain counts if further launches of new "
            f"processes confirm it, all gains together with {100 * measured.confidence:g} % confidence, and if it is "
            f"at least {100 * WORTH:g} %. Gains do not add up: measure again with the settings that you choose."
        ],
        [SuiteTable(columns, rows, "Result of each setting")],
    )


def _row(one: TriedSetting, device_type: DeviceType) -> tuple[str, ...]:
    first = estimate_texts(one.screened) if one.screened else ("—", "—")
    further = estimate_texts(one.confirmed) if one.confirmed else ("—", "—")
    return (one.candidate.name, *first, *further, _says(one), one.candidate.note(device_type))


def _says(one: TriedSetting) -> str:
    if one.why_missing:
        return "not measured"
    if one.is_gain:
        return "faster"
    found = one.confirmed or one.screened
    if found is None or found.interval is None:
        return "too few rounds"
    if found.interval[1] < 1:
        return "slower"
    if one.confirmed is not None and found.interval[0] > 1:
        return f"faster by less than {100 * WORTH:g} %"
    return "no difference shown"


def _settings(chosen: Sequence[TriedSetting], plan: Plan) -> SuiteSection:
    variables = exports([one.candidate for one in chosen])
    said = ["Use settings that change training only if training may change."]
    usual, ranks = plan.studies[0].workload.batch_size, plan.layout.world_size
    for one in chosen:
        factor = one.candidate.arm(ranks, usual).batch_size / usual
        if one.candidate.changes_batch:
            said.append(
                _RULES.format(name=one.candidate.name, batch=round(ranks * usual * factor), usual=ranks * usual,
                              factor=factor, root=math.sqrt(factor))
            )  # fmt: skip
    said += [f"With world size k, the global batch is k times that of one {plan.device}, and the same rules hold."]
    return SuiteSection("With these settings", said, listings=[variables] if variables else [])


def _percent(found: Estimate | None) -> str:
    assert found is not None  # a gain has been confirmed
    low, high = (100 * (limit - 1) for limit in found.interval)
    return f"{100 * (found.value - 1):+.1f} %, {low:+.1f} … {high:+.1f}"


def _json(one: TriedSetting) -> dict[str, object]:
    return {
        "setting": one.candidate.name, "says": _says(one), "changes": one.candidate.changes_training,
        "first_launch": ratio_values(one.screened),
        "further_launches": ratio_values(one.confirmed),
        "why_missing": one.why_missing,
    }  # fmt: skip
