"""Comparison of a run's verdicts with the latest accepted run of the same nodes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
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
from pytest_ddpscale.judge.intervals import Estimate, ValueChange, change_between
from pytest_ddpscale.plan.metric_catalogue import METRICS, THROUGHPUT_PER_GPU
from pytest_ddpscale.run.counting import counted_groups
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
    for group in counted_groups(verdicts):
        one, change = next(_changes(group, then), (None, None))  # the others are the same values over a constant
        if one is None or change is None:
            continue
        metric = METRICS[one.metric]
        count += 1
        if metric is THROUGHPUT_PER_GPU:
            throughput.append(1 + change.size)
        if change.is_shown and (change.size > 0) == metric.upper_bound:
            worse.append(one.id)
    ends = min(throughput, default=None), max(throughput, default=None)
    return LastAcceptance(run.began, run.path, run.outcome, count, *ends, tuple(worse))


def _changes(
    verdicts: Sequence[Verdict], then: Mapping[RequirementKey, Estimate]
) -> Iterator[tuple[Verdict, ValueChange]]:
    """The verdicts that can be compared with those of then, with their change."""
    for one in verdicts:
        was = then.get((one.id, one.world_size))
        if was is None or one.value is None or one.interval is None:
            continue
        by_factors, now = METRICS[one.metric].compared_scale == "factors", Estimate(one.value, one.interval)
        if by_factors and min(*was.interval, *now.interval) <= 0:
            continue
        yield one, change_between(was, now, by_factors=by_factors)
