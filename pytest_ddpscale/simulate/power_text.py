"""What `ddpscale thresholds power` prints."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_ddpscale.simulate.power import Catch, Power, Share

_HEADER = ("fault", "size", "caught", "rejected", "right one named", "mostly by")
_MOST_METRICS = 2


def power_lines(power: Power) -> Iterator[str]:
    """The table, and how to read it."""
    rows = [_HEADER, *(_row(catch) for catch in power.catches)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    yield ""
    yield f"{power.catches[0].caught.runs} simulated runs of each, with 95 % score intervals: no machine was measured."
    yield "Caught: a requirement failed, was inconclusive or not measured. Rejected: one that can reject failed."
    yield "The row none is the rate of false alarms, and of accusations of anybody."
    for verdict in power.set_aside:
        yield f"Not counted, because a sound simulated machine does not keep it: {verdict.id}: {verdict.reason}"


def _row(catch: Catch) -> tuple[str, ...]:
    kind, _, size = catch.fault.partition(":")
    metrics = ", ".join(catch.metrics[:_MOST_METRICS])
    return kind, size, _share(catch.caught), _share(catch.rejected), _named(catch), metrics


def _named(catch: Catch) -> str:
    """Nobody is to blame for what strikes all alike."""
    return "–" if catch.fault.startswith("drift") else _share(catch.named)


def _share(share: Share) -> str:
    low, high = share.interval
    return f"{share.value:4.0%} [{low:.0%}, {high:.0%}]"
