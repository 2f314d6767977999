"""Comparison of a run's verdicts with the latest accepted run of the same nodes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from pytest_ddpscale.history.database import reading
from pytest_ddpscale.history.key_values import KeyValue
from pytest_ddpscale.history.same_nodes import (
    EarlierRun,
    RequirementKey,
    done_otherwise,
    reached_by,
    runs_of_exactly,
)
from pytest_ddpscale.judge.intervals import Estimate, change_between
from pytest_ddpscale.plan.metric_catalogue import METRICS, THROUGHPUT_PER_GPU
from pytest_ddpscale.run.verdicts import ACCEPTING, LastAcceptance, Verdict


def last_acceptance(
    history_file: Path,
    sku: str,
    hosts: Collection[str],
    before_iso: str,
    verdicts: Sequence[Verdict],
    values: Sequence[KeyValue] = (),
) -> LastAcceptance | None:
    """The last accepted run of exactly these hosts, with or without waivers, compared with this run.

    A requirement is worse if the intervals of both verdicts show it (`judge.intervals`). The intervals include
    differences between launches where those were known.

    Args:
        history_file: the site's history.
        sku: as stored in the history.
        hosts: of this run.
        before_iso: when this run started, ISO 8601 in UTC.
        verdicts: of this run.
        values: of this run; workloads done differently, such as with another batch, are not compared.

    Returns:
        None if no such run exists.

    Raises:
        HistoryError: the history cannot be used.
    """
    with reading(history_file) as connection:
        for run in runs_of_exactly(connection, sku, hosts, before_iso):
            if run.outcome in ACCEPTING:
                others = done_otherwise(connection, run, values)
                return _beside(
                    run, reached_by(connection, run), [one for one in verdicts if one.workload not in others]
                )
    return None


def _beside(run: EarlierRun, then: Mapping[RequirementKey, Estimate], verdicts: Sequence[Verdict]) -> LastAcceptance:
    count, worse, throughput = 0, [], []
    for one in verdicts:
        metric, was = METRICS[one.metric], then.get((one.id, one.world_size))
        if was is None or one.value is None or one.interval is None:
            continue
        by_factors = metric.compared_scale == "factors"
        now = Estimate(one.value, one.interval)
        if by_factors and min(*was.interval, *now.interval) <= 0:
            continue
        change = change_between(was, now, by_factors=by_factors)
        count += 1
        if metric is THROUGHPUT_PER_GPU:
            throughput.append(1 + change.size)
        if change.is_shown and (change.size > 0) == metric.upper_bound:
            worse.append(one.id)
    ends = min(throughput, default=None), max(throughput, default=None)
    return LastAcceptance(run.began, run.path, run.outcome, count, *ends, tuple(worse))
