"""Throughput by batch, as a picture."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_ddpscale.judge.estimating import Found
from pytest_ddpscale.report import svg_axes
from pytest_ddpscale.report.svg_axes import SERIES_COLOURS, AxisScale, label, line, marker, number
from pytest_ddpscale.suites.inference_values import InferredBatch

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM, _KEY_HEIGHT = 480.0, 300.0, 60.0, 14.0, 30.0, 44.0, 19.0
_MARGIN = 1.2  # of the batches at both ends, and of the highest value


def throughput_figure(found: Sequence[InferredBatch], device: str, rate: str) -> str:
    """Curves for one device alone and for all at once, with intervals."""
    curves = _curves(found)
    values = [end for curve in curves.values() for one in curve.values() for end in (one.value, *_ends(one))]
    batches = [one.batch for one in found]
    x = AxisScale(batches[0] / _MARGIN, batches[-1] * _MARGIN, _LEFT, _WIDTH - _RIGHT, is_log=True)
    y = AxisScale(0.0, max(values) * _MARGIN, _HEIGHT - _BOTTOM, _TOP)
    body = svg_axes.frame(
        x, y, [float(batch) for batch in batches], svg_axes.round_ticks(y.low, y.high),
        (f"batch per {device}", f"{rate} per {device}"),
    )  # fmt: skip
    keys = []
    for place, (ranks, curve) in enumerate(curves.items()):
        colour, name = SERIES_COLOURS[place], f"{ranks} at once" if ranks > 1 else "alone"
        body += _curve(place, colour, curve, x, y)
        at = _HEIGHT + _KEY_HEIGHT * (place + 0.5)
        keys.append(marker(place, _LEFT, at, colour) + label(_LEFT + 14, at + 4, name))
    said = "; ".join(
        f"{ranks} at once: " + ", ".join(f"batch {batch} {one.value:.4g}" for batch, one in curve.items())
        for ranks, curve in curves.items()
    )
    height = _HEIGHT + _KEY_HEIGHT * len(keys) + 6
    return svg_axes.svg("inference", f"Throughput per {device} by batch", said, _WIDTH, height, body + "".join(keys))


def _curves(found: Sequence[InferredBatch]) -> dict[int, dict[int, Found]]:
    """Throughput by number of ranks at once, then by batch."""
    curves: dict[int, dict[int, Found]] = {}
    for one in found:
        for arm in one.arms:
            curves.setdefault(arm.ranks, {})[one.batch] = arm.samples_per_s
    return dict(sorted(curves.items()))


def _curve(place: int, colour: str, curve: dict[int, Found], x: AxisScale, y: AxisScale) -> str:
    points = [(x.at(batch), one) for batch, one in curve.items()]
    path = " ".join(f"{number(at)},{number(y.at(one.value))}" for at, one in points)
    parts = [f'<polyline points="{path}" fill="none" stroke="{colour}"/>']
    for at, one in points:
        parts += [line(at, y.at(low), at, y.at(high), f'stroke="{colour}"') for low, high in [_ends(one)] if low < high]
        parts.append(marker(place, at, y.at(one.value), colour))
    return "".join(parts)


def _ends(one: Found) -> tuple[float, float]:
    """Ends of the interval, cut at a factor of 2 so that it does not flatten the curves; the value without one."""
    if one.estimate is None:
        return one.value, one.value
    low, high = one.estimate.interval
    return max(low, one.value / 2), min(high, one.value * 2)
