"""Scaling: a panel for each workload with the judged values over the world size, or a sentence for a single size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytest_ddpscale.report.digits import number_text
from pytest_ddpscale.report.figures.drawing import Drawing, bare_number
from pytest_ddpscale.report.figures.lines import LineAxes, panels
from pytest_ddpscale.report.scaling_curves import EFFICIENCY, SPEEDUP, THROUGHPUT, Quantity, ScalingCurve, place_notes

_HOW = "Judged values with their intervals; sizes without a requirement are estimated alike."


def scaling_panels(quantity: Quantity, every: Sequence[ScalingCurve], device: str) -> tuple[Drawing | None, str]:
    """The panels of workloads with several world sizes, None without any, and the caption, which tells all others."""
    curves = [one for one in every if len(one.xs) > 1]
    alone = [f"Only one world size: {_in_words(one, quantity, device)}." for one in every if one not in curves]
    if not curves:
        return None, " ".join(alone)
    unit, devices = curves[0].unit, "GPUs" if device == "GPU" else "CPU ranks"
    axis = quantity.axis.format(device=device, unit=" or ".join(dict.fromkeys(curve.unit for curve in curves)))
    axes = LineAxes(
        f"world size ({devices})", axis, x_is_log=True,
        number=lambda value: bare_number(value / quantity.factor, unit),
        interval=f"{100 * curves[0].confidence:g} % confidence interval",
    )  # fmt: skip
    if quantity is THROUGHPUT:
        axes = replace(axes, ideal="first", ideal_name=f"ideal: as one {device}")
    elif quantity is EFFICIENCY:
        axes = replace(axes, ideal="hundred", values="per cent")
    elif quantity is SPEEDUP:
        axes = replace(axes, ideal="diagonal", values="log 2", ideal_name=f"ideal: one per {device}")
    drawing = panels(axes, curves, is_y_shared=quantity is not THROUGHPUT)
    said = "; ".join(_in_words(curve, quantity, device) for curve in curves)
    notes = [f"{note}." for note in place_notes(curves, device)]
    return drawing and replace(drawing, said=said), " ".join([_HOW, *notes, *alone])


def _in_words(curve: ScalingCurve, quantity: Quantity, device: str) -> str:
    """``resnet50-fp16: 2378.0 img/s on 8 GPUs (worst node (n3)), misses its bound``."""
    said = []
    for point in curve.points:
        devices = f"{device}{'' if point.world_size == 1 else 's'}"
        where, missed = f" ({point.where})" if point.where else "", ", misses its bound" if point.is_failed else ""
        value = number_text(point.value / quantity.factor, curve.unit)
        said.append(f"{value} on {point.world_size} {devices}{where}{missed}")
    return f"{curve.name}: {', '.join(said)}"
