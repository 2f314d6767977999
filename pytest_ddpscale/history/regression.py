"""A run beside the past of its nodes: ``no_regression``, intervals of a single launch, and `ddpscale history`.

Every earlier run of the same places was a launch. Their values vary by noise of rounds, which is small with many
rounds, and by differences between launches. The history has throughput only, so ratios cannot be widened. Where
earlier runs differ by more than `OF_LAUNCH`, which intervals on GPUs have anyway, their deviation takes its place.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

from pytest_ddpscale.errors import HistoryError, OptionError
from pytest_ddpscale.history.key_values import KeyValue, KeyValueSeries, key_values_of
from pytest_ddpscale.history.prediction import (
    CONFIDENCE,
    FEWEST_VALUES,
    LEAST_SPREAD,
    MOST_VALUES,
    Compared,
    Reference,
    compared,
    references,
    shared_confidence,
)
from pytest_ddpscale.history.store import NodeRun, node_runs, reading, skus_and_hosts
from pytest_ddpscale.judge.answer import blank_verdict
from pytest_ddpscale.judge.coverage import notes_on_variables
from pytest_ddpscale.judge.stats import OF_LAUNCH, t_quantile
from pytest_ddpscale.plan.metric_catalogue import THROUGHPUT_PER_GPU
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.reason import because
from pytest_ddpscale.run.verdicts import BY_VARIABLE, PARTLY_KNOWN, THIS_LAUNCH_ONLY, WRONG_DATA, Culprit, Flag, Verdict
from pytest_ddpscale.thresholds.cases import AnyCase, Case
from pytest_ddpscale.util.digits import percent
from pytest_ddpscale.util.listing import first_few

BASELINE_SCHEMA_VERSION: Literal[3] = 3
_MOST_NAMED = 8
_HOW_TO_BEGIN_ANEW = "ddpscale history --forget NODE"


@dataclass(frozen=True)
class Baseline:
    """Earlier values of a run's places: enough to judge `no_regression` again without the history.

    Attributes:
        before: only runs that started before this moment count, ISO 8601 in UTC.
        past: summary of the latest twenty values of each series.
        changes: software that had other versions in those runs, by node.
        gpus: those with each kind of value in the latest of those runs with values of the most GPUs of its node: the
            very latest may have lacked a GPU, and earlier ones may have a replaced one.
    """

    sku: str
    before: str
    past: tuple[tuple[KeyValueSeries, Reference], ...] = ()
    changes: tuple[str, ...] = ()
    gpus: tuple[tuple[KeyValueSeries, tuple[str, ...]], ...] = ()
    schema_version: Literal[3] = BASELINE_SCHEMA_VERSION


def read_baseline(history_file: Path, sku: str, now: Mapping[str, Mapping[str, str]], before_iso: str) -> Baseline:
    """The hosts' values in runs of a SKU that started before a moment (ISO 8601 in UTC, whole seconds).

    Rejected runs and regressed values are left out, because a broken node must not become its own baseline. Simulated
    runs have SKUs of their own, ``simulated …``.

    Args:
        history_file: the site's.
        sku: as the history stores it.
        now: versions of the software, by host.
        before_iso: the moment.

    Raises:
        HistoryError: the history does not exist or cannot be used.
    """
    past, gpus, changes = dict[KeyValueSeries, Reference](), dict[KeyValueSeries, tuple[str, ...]](), list[str]()
    with reading(history_file) as connection:
        for host, versions in sorted(now.items()):
            runs = node_runs(connection, sku, host, before_iso)
            past |= references(run.norm for run in runs)
            for run in runs:
                of_run = gpus_by_kind(key_value.series for key_value in run.values if run.counts)
                gpus |= {kind: of for kind, of in of_run.items() if len(of) >= len(gpus.get(kind, ()))}
            if changed := "; ".join(version_changes(runs, versions)):
                changes.append(f"{host}: since then {changed}")
    return Baseline(sku, before_iso, tuple(past.items()), tuple(changes), tuple(gpus.items()))


def version_changes(runs: Sequence[NodeRun], now: Mapping[str, str]) -> Iterator[str]:
    """Software with another version in any of the latest runs that count: ``torch 2.14.0 before, 2.15.0 now``.

    A change may explain a drift before any GPU does. Versions that either side does not record are not compared.
    """
    seen = [run.versions for run in runs if run.counts][-MOST_VALUES:]
    for name, version in sorted(now.items()):
        if others := dict.fromkeys(
            versions_of_run[name] for versions_of_run in seen if versions_of_run.get(name, version) != version
        ):
            yield f"{name} {', '.join(others)} before, {version} now"


def gpus_by_kind(run: Iterable[KeyValueSeries]) -> dict[KeyValueSeries, tuple[str, ...]]:
    """The GPUs with each kind of value, sorted; the world size makes no kind, because fewer GPUs may be left."""
    by_series = defaultdict[KeyValueSeries, set[str]](set)
    for key_value in run:
        if key_value.gpu:
            by_series[key_value._replace(gpu="", world_size=0)].add(key_value.gpu)
    return {kind: tuple(sorted(gpus)) for kind, gpus in by_series.items()}


def missing_gpus(before: Mapping[KeyValueSeries, Sequence[str]], now: Iterable[KeyValueSeries]) -> list[str]:
    """Every GPU that lacks a kind of value which other GPUs of its node still have: ``GPU-… on n1``.

    A kind that no GPU of the node has now was not measured. If as many GPUs have it as before, a missing GPU was
    replaced.
    """
    present, missing = gpus_by_kind(now), set[str]()
    for kind, gpus in before.items():
        if 0 < len(still := present.get(kind, ())) < len(gpus):
            missing |= {f"{gpu} on {kind.host}" for gpu in gpus if gpu not in still}
    return sorted(missing)


def judge_regression(case: AnyCase, evidence: Evidence, baseline: Baseline | None, confidence: float) -> Verdict:
    """The verdict on ``no_regression``: no value may be below the least ratio to earlier runs, by joint intervals.

    Returns:
        ``passed`` if every value is certainly above the bound; ``failed`` if any is certainly below it;
        ``inconclusive`` in between, with too little or no history, and if a GPU with values in earlier runs has none
        now. ``not_measured`` if the run has no values.
    """
    blank, current, bound = blank_verdict(case, confidence), key_values_of(evidence), case.requirement.bound
    if not current:
        reason = "the run has no value to compare with earlier runs"
        if not (evidence.plan.studies or evidence.plan.probes):
            reason = (
                "nothing was measured to compare with earlier runs: also select tests that measure (-m node_health)"
            )
        return replace(blank, reason=reason)
    blank = replace(blank, outcome="inconclusive")
    if baseline is None:
        return replace(blank, reason="there is no history of these nodes (--ddp-history)")
    changes, young = compared(current, dict(baseline.past), confidence)
    if not changes:
        reason = f"none of its {len(current)} values has {FEWEST_VALUES} earlier runs to compare with"
        return replace(blank, reason=reason)
    fewest = min(change.past.number for change in changes)
    notes = [f"compared with at least {fewest} earlier runs, by prediction intervals"]
    notes += [f"{len(young)} values have too few earlier runs to compare with"] * bool(young) + [*baseline.changes]
    # Nodes and GPUs without any value that has enough earlier runs, such as a replaced GPU.
    strangers = sorted({key_value.where for key_value in young} - {change.value.where for change in changes})
    missing = missing_gpus(dict(baseline.gpus), [key_value.series for key_value in current])
    # The smallest ratio may be known well enough to meet the bound, so the smallest lower limit is named.
    least, fallen = min(changes, key=lambda change: change.low), [change for change in changes if change.high < bound]
    outcome, flags, culprits = blank.outcome, list[Flag](), list[Culprit]()
    if fallen:
        outcome, words = "failed", [*map(_in_words, fallen)]
        reason = f"fell below {bound:g} of earlier runs: {first_few(words, separator='; ')}"
        notes.append(f"regressed values do not enter the baseline; {_HOW_TO_BEGIN_ANEW} begins a new one")
        flags += [PARTLY_KNOWN] * bool(missing or strangers)
        if any(reason.args[3:] == ("slows", "") for reason in notes_on_variables(evidence, [case])):
            flags.append(BY_VARIABLE)
        else:  # not certain: the software or the room's temperature may have changed instead
            for change, sentence in zip(fallen, words, strict=True):
                kind: Literal["gpu", "node"] = "gpu" if change.value.series.gpu else "node"
                culprits.append(Culprit(kind, (change.value.place,), because("text", sentence), is_certain=False))
    elif missing:
        has = "have" if len(missing) > 1 else "has"
        reason = f"{first_few(missing)} reached values in earlier runs and {has} none now"
        notes.append(f"missing GPUs stay expected; {_HOW_TO_BEGIN_ANEW} begins a new baseline")
    elif strangers:
        reason = f"nothing of {first_few(strangers)} can be compared with earlier runs"
    elif least.low >= bound:
        outcome, reason = "passed", "every value with enough earlier runs meets the bound"
    else:
        reason = f"may have regressed: {_in_words(least)}"
    return replace(
        blank, outcome=outcome, value=min(change.ratio for change in changes), interval=(least.low, changes[0].high),
        rounds=fewest, reason=reason, notes=tuple(notes), flags=tuple(flags), culprits=tuple(culprits),
    )  # fmt: skip


def _in_words(one: Compared) -> str:
    return f"{one.value.where}: {one.value.what} is {percent(one.ratio, 1)} of its past"


def may_be_widened(verdict: Verdict, case: AnyCase) -> bool:
    """Whether a verdict has an interval, of a metric that the history stores."""
    is_throughput = isinstance(case, Case) and case.requirement.definition is THROUGHPUT_PER_GPU
    return is_throughput and verdict.interval is not None


def with_launch_deviation(verdict: Verdict, case: Case, evidence: Evidence, baseline: Baseline) -> Verdict:
    """A verdict that `may_be_widened` with both deviations in its interval, as independent errors of the logarithm.

    If the bound is then inside the interval, the verdict becomes inconclusive; further rounds do not change that. The
    deviation between earlier runs is that of the host with the largest one; all need enough earlier runs.
    """
    question, past = case.question, dict(baseline.past)
    key = THROUGHPUT_PER_GPU.name, question.workload.name, question.world_size, question.measured.kind
    by_host = defaultdict[str, list[Reference]](list)
    for series in (key_value.series for key_value in key_values_of(evidence) if key_value.series[2:6] == key):
        by_host[series.host] += [past[series]] if series in past and past[series].is_enough else []
    if not by_host or not all(by_host.values()) or verdict.value is None or verdict.interval is None:
        return verdict
    sd, runs = max(
        (math.sqrt(statistics.fmean(max(reference.log_sd, LEAST_SPREAD) ** 2 for reference in known)),
         min(reference.number for reference in known))
        for known in by_host.values()
    )  # fmt: skip
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


class NodeHistory(NamedTuple):
    """One node, of one SKU.

    Attributes:
        sku: canonical name; ``simulated …`` of simulated runs.
        runs: the latest ones, oldest first; at least one.
        drifts: of the last values that have enough earlier ones, the worst first.
        young: the other last values.
        changes: of the software between the last run and those before.
    """

    sku: str
    host: str
    runs: Sequence[NodeRun]
    drifts: Sequence[Compared]
    young: Sequence[KeyValue]
    changes: Sequence[str]


def read_histories(history_file: Path, sku: str | None = None, node: str | None = None) -> Iterator[NodeHistory]:
    """All nodes with a run, by SKU and name, with the drift of their values; optionally of one SKU or one node.

    Intervals hold jointly for all these nodes: if nothing changed, the probability that any value is told to be worse
    is at most 2.5 %.

    Raises:
        HistoryError: the history does not exist, is empty, or cannot be used.
        OptionError: it does not have the SKU or node.
    """
    with reading(history_file) as connection:
        nodes = skus_and_hosts(connection)
        if not nodes:
            raise HistoryError(str(history_file), "has no node", "at least one run")
        for at, option, wanted in ((0, "--gpu-sku", sku), (1, "NODE", node)):
            known = sorted({one[at] for one in nodes})
            if wanted not in (None, *known):
                raise OptionError(option, f"found {wanted!r}", f"one of {first_few(known, _MOST_NAMED)}")
            nodes = [one for one in nodes if wanted in (None, one[at])]
        for runs in (node_runs(connection, *one) for one in nodes):
            if not runs:  # where the only one is being replaced at this moment
                continue
            last = max((at for at, run in enumerate(runs) if run.values), default=0)  # that measured
            *before, now = runs[: last + 1]
            past, confidence = references(run.norm for run in before), shared_confidence(CONFIDENCE, len(nodes))
            drifts, young = compared(now.values, past, confidence)
            drifts.sort(key=lambda comparison: (comparison.high >= 1, comparison.ratio))
            yield NodeHistory(now.sku, now.host, runs, drifts, young, [*version_changes(before, now.versions)])
