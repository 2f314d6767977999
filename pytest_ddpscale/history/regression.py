"""A run beside the past of its nodes: ``no_regression``, and intervals of a single launch.

Every earlier run of the same places was a launch. Their values vary by noise of rounds, which is small with many
rounds, and by differences between launches. The history has throughput only, so ratios cannot be widened. Where
earlier runs differ by more than `OF_LAUNCH`, which intervals on GPUs have anyway, their deviation takes its place.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from pytest_ddpscale.history.key_values import KeyValue, KeyValueSeries, key_values_of, known_versions
from pytest_ddpscale.history.prediction import (
    FEWEST_VALUES,
    LEAST_SPREAD,
    MOST_VALUES,
    Compared,
    Reference,
    compared,
    references,
)
from pytest_ddpscale.history.store import NodeRun, node_runs, reading
from pytest_ddpscale.judge.answer import blank_verdict
from pytest_ddpscale.judge.coverage import notes_on_variables
from pytest_ddpscale.judge.stats import OF_LAUNCH, t_quantile
from pytest_ddpscale.plan.metric_catalogue import THROUGHPUT_PER_GPU
from pytest_ddpscale.plan.planner import Question
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.reason import because
from pytest_ddpscale.run.verdicts import BY_VARIABLE, PARTLY_KNOWN, THIS_LAUNCH_ONLY, WRONG_DATA, Culprit, Flag, Verdict
from pytest_ddpscale.thresholds.cases import AnyCase, Case, NodeCase
from pytest_ddpscale.util.digits import percent
from pytest_ddpscale.util.listing import first_few

BASELINE_SCHEMA_VERSION: Literal[2] = 2
_HOW_TO_BEGIN_ANEW = "ddpscale history --forget NODE"
_GpusByKind = Mapping[KeyValueSeries, Mapping[str, KeyValueSeries]]


@dataclass(frozen=True)
class Baseline:
    """Earlier values of a run's places: enough to judge `no_regression` again without the history.

    Attributes:
        before: only runs that started before this moment count, ISO 8601 in UTC.
        past: summary of the latest twenty values of each series.
        versions: of the software in those runs, by host and name, oldest first, each once.
        places: series of each GPU in the latest of those runs with values of the most GPUs of its node, sorted.
    """

    sku: str
    before: str
    past: tuple[tuple[KeyValueSeries, Reference], ...] = ()
    versions: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    places: tuple[KeyValueSeries, ...] = ()
    schema_version: Literal[2] = BASELINE_SCHEMA_VERSION


def read_baseline(history_file: Path, sku: str, hosts: Collection[str], before_iso: str) -> Baseline:
    """The hosts' values in runs of a SKU that started before a moment (ISO 8601 in UTC, whole seconds).

    Rejected runs and regressed values are left out, because a broken node must not become its own baseline. Simulated
    runs have SKUs of their own, ``simulated …``.

    Raises:
        HistoryError: the history does not exist or cannot be used.
    """
    past: dict[KeyValueSeries, Reference] = {}
    versions: dict[str, dict[str, tuple[str, ...]]] = {}
    places: set[KeyValueSeries] = set()
    with reading(history_file) as connection:
        for host in sorted(hosts):
            runs = node_runs(connection, sku, host, before_iso)
            past |= references(run.norm for run in runs)
            places |= fullest_places([one.series for one in run.values] for run in runs if run.counts)
            versions[host] = versions_seen(runs)
    return Baseline(sku, before_iso, tuple(past.items()), versions, tuple(sorted(places)))


def versions_seen(runs: Iterable[NodeRun]) -> dict[str, tuple[str, ...]]:
    """Every version of each software in the latest twenty runs that count, oldest first, each once."""
    seen = defaultdict[str, dict[str, None]](dict)
    for run in [run for run in runs if run.counts][-MOST_VALUES:]:
        for name, version in run.versions.items():
            seen[name][version] = None
    return {name: tuple(found) for name, found in sorted(seen.items())}


def version_changes(before: Mapping[str, tuple[str, ...]], now: Mapping[str, str]) -> list[str]:
    """Software that had another version in any earlier run: ``torch 2.14.0 before, 2.15.0 now``.

    A change may explain a drift before any GPU does. Versions that either side does not record are not compared.
    """
    others = {name: [one for one in seen if one != now.get(name, one)] for name, seen in sorted(before.items())}
    return [f"{name} {', '.join(versions)} before, {now[name]} now" for name, versions in others.items() if versions]


def fullest_places(runs: Iterable[Iterable[KeyValueSeries]]) -> set[KeyValueSeries]:
    """For each kind of value, the GPUs' series in the latest run with values of the most GPUs.

    The very latest run may have lacked a GPU, and earlier runs may contain a replaced one. Runs are of one host, oldest
    first.
    """
    fullest: dict[KeyValueSeries, Mapping[str, KeyValueSeries]] = {}
    for run in runs:
        fullest |= {kind: gpus for kind, gpus in _by_kind(run).items() if len(gpus) >= len(fullest.get(kind, ()))}
    return {series for gpus in fullest.values() for series in gpus.values()}


def missing_gpus(before: Iterable[KeyValueSeries], now: Iterable[KeyValueSeries]) -> list[str]:
    """Every GPU that lacks a kind of value which other GPUs of its node still have: ``GPU-… on n1``.

    A kind that no GPU of the node has now was not measured. If as many GPUs have it as before (in `fullest_places`),
    a missing GPU was replaced.
    """
    told, found = _by_kind(now), set[tuple[str, str]]()
    for kind, gpus in _by_kind(before).items():
        if 0 < len(still := told.get(kind, {})) < len(gpus):
            found |= {(kind.host, gpu) for gpu in gpus if gpu not in still}
    return [f"{gpu} on {host}" for host, gpu in sorted(found)]


def _by_kind(run: Iterable[KeyValueSeries]) -> _GpusByKind:
    """The GPUs with each kind of value. The world size does not distinguish kinds, because fewer GPUs may be left."""
    found = defaultdict[KeyValueSeries, dict[str, KeyValueSeries]](dict)
    for one in run:
        if one.gpu:
            found[one._replace(gpu="", world_size=0)][one.gpu] = one
    return found


def judge_regression(case: NodeCase, evidence: Evidence, baseline: Baseline | None, confidence: float) -> Verdict:
    """The verdict on ``no_regression``: no value may be below the least ratio to earlier runs, by joint intervals.

    Returns:
        ``passed`` if every value is certainly above the bound; ``failed`` if any is certainly below it;
        ``inconclusive`` in between, with too little or no history, and if a GPU with values in earlier runs has none
        now. ``not_measured`` if the run has no values.
    """
    blank, current, plan = blank_verdict(case, confidence), key_values_of(evidence), evidence.plan
    if not current:
        reason = "nothing was measured to compare with earlier runs: also select tests that measure (-m node_health)"
        if plan.studies or plan.probes:
            reason = "the run has no value to compare with earlier runs"
        return replace(blank, reason=reason)
    undecided = replace(blank, outcome="inconclusive")
    if baseline is None:
        return replace(undecided, reason="there is no history of these nodes (--ddp-history)")
    found = compared(current, dict(baseline.past), confidence)
    if not found:
        reason = f"none of its {len(current)} values has {FEWEST_VALUES} earlier runs to compare with"
        return replace(undecided, reason=reason)
    verdict = _by_ratios(undecided, case.requirement.bound, found, current, baseline, evidence)
    is_slowed = any(one.args[3:] == ("slows", "") for one in notes_on_variables(evidence, [case]))
    if verdict.outcome == "failed" and is_slowed:
        return replace(verdict, culprits=(), flags=(*verdict.flags, BY_VARIABLE))
    return verdict


def _by_ratios(
    undecided: Verdict, bound: float, found: Sequence[Compared], current: Sequence[KeyValue], baseline: Baseline,
    evidence: Evidence,
) -> Verdict:  # fmt: skip
    """By the smallest ratio, whose interval is above a bound if all are, and below it if any is."""
    known, fewest = {one.value.series for one in found}, min(one.past.number for one in found)
    without_past = [one for one in current if one.series not in known]
    notes = [f"compared with at least {fewest} earlier runs, by prediction intervals"]
    if without_past:
        notes.append(f"{len(without_past)} values have too few earlier runs to compare with")
    for host, survey in sorted(evidence.surveys.items()):
        changes = version_changes(baseline.versions.get(host, {}), known_versions(survey.versions))
        notes += [f"{host}: since then {'; '.join(changes)}"] * bool(changes)
    # Nodes and GPUs without any value that has enough earlier runs, such as a replaced GPU.
    strangers = sorted({one.where for one in without_past} - {one.value.where for one in found})
    missing = missing_gpus(baseline.places, [one.series for one in current])
    # The smallest ratio may be known well enough to meet the bound, so the smallest lower limit is named.
    least_known, fallen = min(found, key=lambda one: one.low), [one for one in found if one.high < bound]
    verdict = replace(
        undecided, value=min(one.ratio for one in found), interval=(least_known.low, found[0].high), rounds=fewest
    )  # fmt: skip
    if fallen:
        reason = f"fell below {bound:g} of earlier runs: {first_few(list(map(_in_words, fallen)), separator='; ')}"
        notes.append(f"regressed values do not enter the baseline; {_HOW_TO_BEGIN_ANEW} begins a new one")
        flags: tuple[Flag, ...] = (PARTLY_KNOWN,) if missing or strangers else ()
        culprits = tuple(dict.fromkeys(map(_culprit, fallen)))
        return replace(verdict, outcome="failed", reason=reason, culprits=culprits, notes=tuple(notes), flags=flags)
    if missing:
        has = "have" if len(missing) > 1 else "has"
        reason = f"{first_few(missing)} reached values in earlier runs and {has} none now"
        notes.append(f"missing GPUs stay expected; {_HOW_TO_BEGIN_ANEW} begins a new baseline")
    elif strangers:
        reason = f"nothing of {first_few(strangers)} can be compared with earlier runs"
    elif least_known.low >= bound:
        reason = "every value with enough earlier runs meets the bound"
        return replace(verdict, outcome="passed", reason=reason, notes=tuple(notes))
    else:
        reason = f"may have regressed: {_in_words(least_known)}"
    return replace(verdict, reason=reason, notes=tuple(notes))


def _culprit(one: Compared) -> Culprit:
    # Not certain: the software or the room's temperature may have changed instead.
    kind: Literal["node", "gpu"] = "node" if one.value.gpu_uuid is None else "gpu"
    return Culprit(kind, (one.value.place,), because("text", _in_words(one)), is_certain=False)


def _in_words(one: Compared) -> str:
    return f"{one.value.where}: {one.value.what} is {percent(one.ratio, 1)} of its past"


def may_be_widened(verdict: Verdict, case: AnyCase) -> bool:
    """Whether a verdict has an interval, of a metric that the history stores."""
    is_throughput = isinstance(case, Case) and case.requirement.definition is THROUGHPUT_PER_GPU
    return is_throughput and verdict.interval is not None


def with_launch_deviation(verdict: Verdict, case: Case, evidence: Evidence, baseline: Baseline) -> Verdict:
    """A verdict that `may_be_widened` with both deviations in its interval, as independent errors of the logarithm.

    If the bound is then inside the interval, the verdict becomes inconclusive; further rounds do not change that.
    """
    sd, runs = launch_deviation_of(case.question, evidence, dict(baseline.past))
    if not runs or verdict.value is None or verdict.interval is None:
        return verdict
    has_part = evidence.plan.device_type == "cuda" and verdict.rounds > 1  # the interval; not of an imported sample
    reach = t_quantile(0.5 + verdict.confidence / 2, runs - 1) * sd  # of the logarithm of a single launch
    reach = math.sqrt(max(0.0, reach**2 - (OF_LAUNCH * has_part) ** 2))
    low, high = (math.hypot(math.log(end / verdict.value), reach) for end in verdict.interval)
    interval = verdict.value * math.exp(-low), verdict.value * math.exp(high)
    note = f"with the deviation between {runs} earlier launches ({percent(sd, 1)})"
    widened = replace(
        verdict, interval=interval, launch_sd=sd, notes=(*verdict.notes, f"interval {note}"),
        flags=tuple(flag for flag in verdict.flags if flag != THIS_LAUNCH_ONLY),
    )  # fmt: skip
    is_decided = verdict.outcome in ("passed", "failed") and WRONG_DATA not in verdict.flags
    if not is_decided or not interval[0] < verdict.bound_value <= interval[1]:
        return widened
    reason = f"the bound lies inside the interval {note}; measure again on another day"
    return replace(widened, outcome="inconclusive", reason=reason, because=None)


def launch_deviation_of(
    question: Question, evidence: Evidence, past: Mapping[KeyValueSeries, Reference]
) -> tuple[float, int]:
    """Deviation between earlier runs of the throughput that a question asks for, and their number.

    It is relative, of the host with the largest one. Without enough earlier runs of every host it is of 0 runs.
    """
    asked = THROUGHPUT_PER_GPU.name, question.workload.name, question.world_size, question.measured.kind
    by_host = defaultdict[str, list[Reference]](list)
    for series in (value.series for value in key_values_of(evidence)):
        if series[2:6] == asked:
            known = past.get(series)
            by_host[series.host] += [known] if known and known.is_enough else []
    if not by_host or not all(by_host.values()):
        return 0.0, 0
    return max(
        (math.sqrt(statistics.fmean(max(one.log_sd, LEAST_SPREAD) ** 2 for one in known)),
         min(one.number for one in known))
        for known in by_host.values()
    )  # fmt: skip
