"""Which GPUs of a node told something, and which of them no longer do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from pytest_ddpscale.history.key_values import KeyValueSeries

_Kind: TypeAlias = "tuple[str, str, str, str, str]"  # host, metric, subject, arm, definition


def fullest_places(runs: Iterable[Iterable[KeyValueSeries]]) -> set[KeyValueSeries]:
    """Of each kind of value, what the GPUs told in the latest run in which most GPUs did.

    Not in the latest run at all, which may have lacked the same GPU. And not in any run: a GPU that was replaced is in
    the earlier ones.

    Args:
        runs: all series of each run of one host, oldest first.
    """
    fullest: dict[_Kind, dict[str, KeyValueSeries]] = {}
    for run in runs:
        for kind, gpus in _by_kind(run).items():
            if len(gpus) >= len(fullest.get(kind, {})):
                fullest[kind] = gpus
    return {series for gpus in fullest.values() for series in gpus.values()}


def missing_gpus(before: Iterable[KeyValueSeries], now: Iterable[KeyValueSeries]) -> list[tuple[str, str]]:
    """Host and UUID of every GPU that tells nothing of what others of its node still do; in order.

    A kind of value that no GPU of the node told now was not asked for. Where as many GPUs tell it as before, one that
    is missing was replaced.

    Args:
        before: `fullest_places` of the nodes.
        now: of the run in question.
    """
    told = _by_kind(now)
    return sorted(
        {
            (series.host, gpu)
            for kind, gpus in _by_kind(before).items()
            if 0 < len(told.get(kind, {})) < len(gpus)
            for gpu, series in gpus.items()
            if gpu not in told[kind]
        }
    )


def _by_kind(run: Iterable[KeyValueSeries]) -> dict[_Kind, dict[str, KeyValueSeries]]:
    """The GPUs that told each kind of value. How many did so at once is no part of it: fewer may be left."""
    found: dict[_Kind, dict[str, KeyValueSeries]] = {}
    for one in run:
        if one.gpu:
            kind = (one.host, one.metric, one.subject, one.arm, one.definition)
            found.setdefault(kind, {})[one.gpu] = one
    return found
