"""Each requirement of a run compared with earlier runs of exactly the same nodes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from pytest_ddpscale.compare.compared_run import ComparedRun
from pytest_ddpscale.compare.comparing import ComparedRequirement, difference_of, is_worse, requirements_of
from pytest_ddpscale.history.database import reading
from pytest_ddpscale.history.key_values import KeyValue
from pytest_ddpscale.history.prediction import FEWEST_VALUES, LEAST_SPREAD, MOST_VALUES
from pytest_ddpscale.history.recording import history_sku, started_at_of
from pytest_ddpscale.history.same_nodes import (
    RequirementKey,
    done_otherwise,
    fallen_subjects,
    is_kept,
    reached_by,
    runs_of_exactly,
)
from pytest_ddpscale.judge.intervals import Estimate, change_between, t_quantile
from pytest_ddpscale.plan.metric_catalogue import METRICS
from pytest_ddpscale.run.verdicts import Verdict


class RequirementsBesidePast(NamedTuple):
    """All requirements of a run on measured values.

    Attributes:
        requirements: with the mean of the earlier runs as `a`.
        lost: ids of requirements with a value in the latest earlier run but not in this one.
    """

    requirements: tuple[ComparedRequirement, ...]
    lost: tuple[str, ...]


class _Past(NamedTuple):
    """Values of earlier runs, latest first, by requirement; and the requirements that the latest run has."""

    values: dict[RequirementKey, list[float]]
    of_latest: frozenset[RequirementKey]


def requirements_beside_past(
    run: ComparedRun, history_file: Path, values: Sequence[KeyValue], confidence: float
) -> RequirementsBesidePast:
    """Compare a run with the latest twenty runs of exactly its nodes that may serve as a baseline.

    An earlier run counts for a workload if it trained it in the same way and none of its places had regressed.

    Args:
        run: this run.
        history_file: the site's history.
        values: key values of the run.
        confidence: of each interval alone, 0 … 1.

    Raises:
        HistoryError: the history cannot be used.
    """
    now = {(one.id, one.world_size): one for one in requirements_of(run).values() if is_kept(METRICS[one.metric])}
    past = _past(run, history_file, values, now)
    found = tuple(_compared(one, past.values.get(key, []), confidence) for key, one in now.items())
    lost = [name for name, size in sorted(past.of_latest) if not _has_interval(now.get((name, size)))]
    return RequirementsBesidePast(found, tuple(dict.fromkeys(lost)))


def _past(
    run: ComparedRun, history_file: Path, values: Sequence[KeyValue], now: dict[RequirementKey, Verdict]
) -> _Past:  # fmt: skip
    sku = history_sku(run.record.sku, is_simulated=run.is_simulated)
    found: dict[RequirementKey, list[float]] = {}
    of_latest: frozenset[RequirementKey] | None = None
    with reading(history_file) as connection:
        for earlier in runs_of_exactly(connection, sku, run.hosts, started_at_of(run.record)):
            if not earlier.is_norm:
                continue
            reached = reached_by(connection, earlier)
            of_latest = frozenset(reached) if of_latest is None else of_latest
            others = done_otherwise(connection, earlier, values) | fallen_subjects(connection, earlier)
            for key, value in reached.items():
                if key in now and now[key].workload not in others and len(found.get(key, [])) < MOST_VALUES:
                    found.setdefault(key, []).append(value.value)
            if all(len(found.get(key, [])) == MOST_VALUES for key in now):
                break
    return _Past(found, of_latest or frozenset())


def _has_interval(verdict: Verdict | None) -> bool:
    return verdict is not None and verdict.outcome not in ("error", "not_measured") and verdict.interval is not None


def _compared(verdict: Verdict, past: Sequence[float], confidence: float) -> ComparedRequirement:
    """The ratio to the mean of earlier runs, allowing for the spread of single runs and the mean's uncertainty.

    Half the prediction interval of the next value (`history.prediction`), t · s · √(1 + 1/n), has two parts: the run's
    own, t · s (or its interval over rounds if that is wider), and the mean's, t · s/√n.
    """
    metric = METRICS[verdict.metric]
    by_factors = metric.compared_scale == "factors"
    blank = ComparedRequirement(
        verdict.id, metric.name, verdict.workload, verdict.world_size, verdict.unit, value_b=verdict.value,
        rounds_b=verdict.rounds, is_ratio=by_factors, knows_launches=True,
    )  # fmt: skip
    if verdict.value is None or verdict.interval is None or not _has_interval(verdict):
        return replace(blank, why_not=f"{verdict.outcome.replace('_', ' ')}: {verdict.reason}")
    if len(past) < FEWEST_VALUES:
        why_not = f"{len(past)} earlier values of exactly these nodes; at least {FEWEST_VALUES} are needed"
        return replace(blank, why_not=why_not)
    now = Estimate(verdict.value, verdict.interval)
    if by_factors and min(*now.interval, *past) <= 0:
        return replace(blank, why_not="an impossible value was measured")
    forth, back = (math.log, math.exp) if by_factors else (float, float)
    told, (value, low, high) = list(map(forth, past)), map(forth, (now.value, *now.interval))
    mean, spread = statistics.fmean(told), max(statistics.stdev(told), LEAST_SPREAD)
    reach = t_quantile(0.5 + confidence / 2, len(told) - 1) * spread
    of_mean = reach / math.sqrt(len(told))
    earlier = Estimate(back(mean), (back(mean - of_mean), back(mean + of_mean)))
    strayed = Estimate(now.value, (back(min(low, value - reach)), back(max(high, value + reach))))
    change = change_between(earlier, strayed, by_factors=by_factors)
    return replace(
        blank, a=earlier, b=now, value_a=earlier.value, earlier_runs=len(told), change=change,
        difference=difference_of(change, metric), is_worse=is_worse(change, metric),
    )  # fmt: skip
