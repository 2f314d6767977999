"""Forecast of the step time at unmeasured world sizes: several forms of growth, weighted by their fit."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.forecast.measured_sizes import ScalingSeries
from pytest_ddpscale.stats.intervals import t_quantile

CONFIDENCE = 0.95
# Assumptions of the interval, none of them measured on the run itself.
_SINGLE = 0.004  # relative error of a size without rounds of its own
_MISFIT = 0.001  # relative misfit of a correct form at a size, in addition to the error of its rounds
_WEIGHT = 3  # weight of these two assumptions against the residuals, in sizes
_GROWTH = 0.3  # prior standard deviation of the step time's growth up to the largest measured size, relative
_UNSEEN = 0.01  # relative error per doubling beyond the largest size: another switch level, algorithm or protocol
_DRAWS, _SEED = 4000, 1

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Forecast:
    """Forecast of one size.

    Attributes:
        gpus: number of ranks.
        img_per_s: of all ranks together: the measured value if there is one, else the median of the forecast.
        interval: of `img_per_s`, with `CONFIDENCE`; None for a measured size.
        efficiency: relative to the smallest measured size's throughput per GPU.
        efficiency_interval: of `efficiency`, likewise.
        times_largest: `gpus` relative to the largest measured size.
    """

    gpus: int
    img_per_s: float
    interval: tuple[float, float] | None
    efficiency: float
    efficiency_interval: tuple[float, float] | None
    times_largest: float


@dataclass(frozen=True)
class _OverheadForm:
    """One form of growth of a step's overhead: a function of GPUs and nodes for each term; no term, no overhead."""

    terms: tuple[Callable[[int, int], float], ...]


def _bandwidth(gpus: int) -> float:
    return (gpus - 1) / gpus


# An all-reduce of n GPUs: 2(n-1)/n of the data in a ring, 2(n-1) latencies in a ring, 2 log2 n in a tree (see
# `simulate/allreduce.py` for sources). Coefficients describe exposed communication only. For n GPUs on m nodes, terms
# depend on n, or separately on the GPUs of one node and on m.
_SHAPES: tuple[Callable[[int], float], ...] = (_bandwidth, lambda n: math.log2(n), lambda n: n - 1.0)


def _forms(per_node: int, *, across: bool) -> list[_OverheadForm]:
    flat = [_OverheadForm((lambda n, _, shape=shape: shape(n),)) for shape in _SHAPES]  # type: ignore[misc]
    flat += [_OverheadForm((lambda n, _: _bandwidth(n), lambda n, _: n - 1.0)), _OverheadForm(())]
    if not across:
        return flat
    return flat + [
        _OverheadForm((lambda n, _: math.log2(min(n, per_node)), lambda _, m, shape=shape: shape(m)))  # type: ignore[misc]
        for shape in _SHAPES
    ]


@dataclass(frozen=True)
class _Fit:
    """A form fitted to a series.

    Attributes:
        form: the fitted form.
        scale: units of its coefficients.
        log_evidence: of the form, the weight of each of its draws.
        draws: of its coefficients, (draws, coefficients), without negative overheads.
        noise: relative, of a further measured size, (draws,).
        unseen: deviation beyond the largest size, standard normal, (draws,).
    """

    form: _OverheadForm
    scale: FloatArray
    log_evidence: float
    draws: FloatArray
    noise: FloatArray
    unseen: FloatArray


@dataclass(frozen=True)
class ScalingModel:
    """Forms of growth, fitted to a series of at least two sizes."""

    series: ScalingSeries

    def __post_init__(self) -> None:
        if len(self.series.sizes) < 2:
            raise OptionError(
                "RUN_DIR", f"{self.series.workload} was measured at one world size only", "at least two",
                "Measure ddp at another world size.",
            )  # fmt: skip

    @property
    def largest(self) -> int:
        """GPUs of the largest measured size."""
        return self.series.sizes[-1].gpus

    def forecast(self, gpus: int) -> Forecast:
        """Forecast one size. Raises OptionError if it needs several nodes but no arm was measured across nodes."""
        measured = next((one for one in self.series.sizes if one.gpus == gpus), None)
        if measured is not None:
            return self._forecast(gpus, measured.img_per_s, None)
        if gpus > self.series.gpus_per_node >= self.largest:
            raise OptionError(
                "--gpus", f"found {gpus}, but no arm of {self.series.workload} was measured across nodes",
                f"at most {self.series.gpus_per_node}, the GPUs of one node",
            )  # fmt: skip
        rates = gpus * self._per_gpu / self._cost_quantiles(gpus)
        low, high = float(rates[2]), float(rates[0])
        for rate in self._where_steps_stop_shrinking(gpus):
            low, high = min(low, rate), max(high, rate)
        return self._forecast(gpus, float(rates[1]), (low, high))

    def _where_steps_stop_shrinking(self, gpus: int) -> list[float]:
        """Limits of the throughput under strong scaling if steps stop shrinking at some size.

        With fewer images per GPU the host eventually limits the step, and smaller sizes do not show when. Beyond the
        largest size more GPUs may gain nothing. Between two sizes it may happen anywhere: the throughput per GPU is at
        most that of the smaller size and at least that of the larger one.
        """
        smaller = [one for one in self.series.sizes if one.gpus < gpus]
        larger = [one for one in self.series.sizes if one.gpus > gpus]
        if self.series.scaling != "strong" or not smaller:
            return []
        ends = [smaller[-1].img_per_s]
        if larger:
            ends = [gpus * one.img_per_s / one.gpus for one in (smaller[-1], larger[0])]
        error = math.hypot(float(np.median(self._units)), _UNSEEN * max(0.0, math.log2(gpus / self.largest)))
        reach = math.exp(t_quantile((1 + CONFIDENCE) / 2, _WEIGHT) * error)
        return [end * factor for end in ends for factor in (1 / reach, reach)]

    @property
    def _per_gpu(self) -> float:
        return self.series.sizes[0].img_per_s / self.series.sizes[0].gpus

    def _forecast(self, gpus: int, rate: float, interval: tuple[float, float] | None) -> Forecast:
        ideal = gpus * self._per_gpu
        shares = None if interval is None else (interval[0] / ideal, interval[1] / ideal)
        return Forecast(gpus, rate, interval, rate / ideal, shares, gpus / self.largest)

    @cached_property
    def _units(self) -> FloatArray:
        """Relative error of each size that is expected of a correct form."""
        errors = [_SINGLE if one.error is None else math.hypot(one.error, _MISFIT) for one in self.series.sizes]
        return np.array(errors)

    @cached_property
    def _fits(self) -> list[_Fit]:
        across = self.largest > self.series.gpus_per_node
        return [self._fit(form) for form in _forms(self.series.gpus_per_node, across=across)]

    def _cost_quantiles(self, gpus: int) -> FloatArray:
        """Lower limit, median and upper limit of the GPU time per image, relative to the smallest size."""
        weights = np.array([one.log_evidence for one in self._fits])
        weights = np.exp(weights - weights.max())
        values, shares = [], []
        for fit, weight in zip(self._fits, weights.tolist(), strict=True):
            costs = self._costs(fit, gpus)
            values.append(costs)
            shares.append(np.full(len(costs), weight))
        every, share = np.concatenate(values), np.concatenate(shares)
        order = np.argsort(every)
        cumulated = (np.cumsum(share[order]) - share[order] / 2) / share.sum()
        chances = [(1 - CONFIDENCE) / 2, 0.5, (1 + CONFIDENCE) / 2]
        return np.maximum(np.interp(chances, cumulated, every[order]), 1e-6)

    def _fit(self, form: _OverheadForm) -> _Fit:
        """Fit a form by Bayesian linear regression on deviations relative to `_units`, without negative overheads.

        The prior is conjugate (Gelman et al., Bayesian Data Analysis, 3rd ed., section 14.8). Draws with a negative
        overhead are left out.
        """
        cost = np.array([self._per_gpu / (one.img_per_s / one.gpus) for one in self.series.sizes])
        scale = self._row(form, self.largest)
        scale[0] = 1.0
        scale[scale == 0] = 1.0
        weight = 1 / (cost * self._units)
        design = np.array([self._row(form, one.gpus) / scale for one in self.series.sizes]) * weight[:, None]
        prior_sd = np.array([1.0] + [_GROWTH * float(cost[-1])] * len(form.terms))
        start = np.array([1.0] + [0.0] * len(form.terms))
        # The prior enters as further rows; a QR decomposition stays accurate however different the sizes are.
        rows = np.vstack([np.diag(1 / prior_sd), design])
        targets = np.concatenate([start / prior_sd, cost * weight])
        orthogonal, triangular = np.linalg.qr(rows)
        posterior = np.linalg.solve(triangular, orthogonal.T @ targets)
        degrees = _WEIGHT + len(cost)
        total = _WEIGHT + float(((targets - rows @ posterior) ** 2).sum())
        evidence = -float(np.log(prior_sd).sum() + np.log(np.abs(np.diag(triangular))).sum())
        evidence -= 0.5 * degrees * math.log(total)
        # Small residuals do not reduce the assumed errors, which are a floor.
        spread = math.sqrt(max(1.0, total / degrees))
        # Fixed seeds: the same run always gives the same forecast.
        normal = np.random.default_rng(_SEED).standard_normal((_DRAWS, len(start) + 2))
        heavy = spread / np.sqrt(np.random.default_rng(_SEED + 1).chisquare(degrees, _DRAWS) / degrees)
        own = float(np.median(self._units)) * heavy * normal[:, -2]
        draws = posterior + heavy[:, None] * np.linalg.solve(triangular, normal[:, :-2].T).T
        kept = (draws[:, 1:] >= 0).all(axis=1)
        # Each overhead has half of its prior below 0, which the form excludes, hence log 2 per term.
        return _Fit(form, scale, evidence + math.log(2) * len(form.terms), draws[kept], own[kept], normal[kept, -1])

    def _costs(self, fit: _Fit, gpus: int) -> FloatArray:
        """Draws of the cost that a measurement at a size would give."""
        beyond = _UNSEEN * max(0.0, math.log2(gpus / self.largest))
        costs = fit.draws @ (self._row(fit.form, gpus) / fit.scale)
        return np.asarray(costs * (1 + fit.noise + beyond * fit.unseen))

    def _row(self, form: _OverheadForm, gpus: int) -> FloatArray:
        """Terms at a size. Under strong scaling, fewer images per GPU share a step's overhead."""
        nodes = -(-gpus // self.series.gpus_per_node)
        factor = gpus if self.series.scaling == "strong" else 1
        return np.array([1.0, *(factor * term(gpus, nodes) for term in form.terms)])
