"""Step time at world sizes that were not measured: several forms of its growth, weighed by how well they fit."""

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
_MISFIT = 0.001  # how far a form that is right may be off at a size, beside the error of its rounds
_WEIGHT = 3  # sizes that these two are worth beside the residuals
_GROWTH = 0.3  # of the step time up to the largest measured size, standard deviation of what is expected
_UNSEEN = 0.01  # per doubling beyond the largest size: another switch level, algorithm or protocol
_DRAWS, _SEED = 4000, 1

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Forecast:
    """One size.

    Attributes:
        gpus: its ranks.
        img_per_s: of all together: measured if that size was, else the median of what is expected.
        interval: of `img_per_s`, with `CONFIDENCE`; None of a measured size, which is no forecast.
        efficiency: relative to the smallest measured size's throughput per GPU.
        efficiency_interval: likewise.
        times_largest: how many times the largest measured size it is.
    """

    gpus: int
    img_per_s: float
    interval: tuple[float, float] | None
    efficiency: float
    efficiency_interval: tuple[float, float] | None
    times_largest: float


@dataclass(frozen=True)
class _OverheadForm:
    """One way in which the overhead of a step grows: a column for each term, none for no overhead."""

    terms: tuple[Callable[[int, int], float], ...]


def _bandwidth(gpus: int) -> float:
    return (gpus - 1) / gpus


# An all-reduce of n: 2(n-1)/n of the data by any ring, 2(n-1) latencies of a ring, 2 log2 n of a tree (see
# `simulate/allreduce.py` for sources). What the backward pass hides is in the coefficients: only the rest is seen.
# Of n GPUs on m nodes the terms are of n, or of the GPUs of one node and of m apart.
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
        form: it.
        scale: what its coefficients are in units of.
        log_evidence: of each of its draws.
        draws: of its coefficients, (draws, coefficients), none of an overhead below 0.
        noise: relative, of a further measured size, (draws,).
        unseen: of what lies beyond the largest size, standard normal, (draws,).
    """

    form: _OverheadForm
    scale: FloatArray
    log_evidence: float
    draws: FloatArray
    noise: FloatArray
    unseen: FloatArray


@dataclass(frozen=True)
class ScalingModel:
    """What was fitted to a series of at least two sizes."""

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
        """One size. Raises OptionError: it takes several nodes, and no arm was measured across nodes."""
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
        """Throughputs under strong scaling if steps get no shorter from some size on, with their limits.

        Each GPU has fewer images until the host, not the GPU, limits the step, and no smaller size tells when. Beyond
        the largest size more GPUs may bring nothing. Between two sizes it may happen anywhere: the throughput of a GPU
        is that of the smaller one at most, and that of the larger one at least.
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
        """Relative error of each size that is expected of a form that is right."""
        errors = [_SINGLE if one.error is None else math.hypot(one.error, _MISFIT) for one in self.series.sizes]
        return np.array(errors)

    @cached_property
    def _fits(self) -> list[_Fit]:
        across = self.largest > self.series.gpus_per_node
        return [self._fit(form) for form in _forms(self.series.gpus_per_node, across=across)]

    def _cost_quantiles(self, gpus: int) -> FloatArray:
        """Of the GPU time per image, relative to the smallest size: the lower limit, the median and the upper one."""
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
        """Bayesian linear regression with a conjugate prior (Gelman et al., Bayesian Data Analysis, 3rd ed., section
        14.8), of deviations relative to `_units`. Of draws from it those with a negative overhead are left out.
        """
        cost = np.array([self._per_gpu / (one.img_per_s / one.gpus) for one in self.series.sizes])
        scale = self._row(form, self.largest)
        scale[0] = 1.0
        scale[scale == 0] = 1.0
        weight = 1 / (cost * self._units)
        design = np.array([self._row(form, one.gpus) / scale for one in self.series.sizes]) * weight[:, None]
        prior_sd = np.array([1.0] + [_GROWTH * float(cost[-1])] * len(form.terms))
        start = np.array([1.0] + [0.0] * len(form.terms))
        # The prior as further rows: sums of squares that a QR decomposition solves however different the sizes are.
        rows = np.vstack([np.diag(1 / prior_sd), design])
        targets = np.concatenate([start / prior_sd, cost * weight])
        orthogonal, triangular = np.linalg.qr(rows)
        posterior = np.linalg.solve(triangular, orthogonal.T @ targets)
        degrees = _WEIGHT + len(cost)
        total = _WEIGHT + float(((targets - rows @ posterior) ** 2).sum())
        evidence = -float(np.log(prior_sd).sum() + np.log(np.abs(np.diag(triangular))).sum())
        evidence -= 0.5 * degrees * math.log(total)
        # Residuals that happen to be small do not make the assumed errors smaller: that is their floor.
        spread = math.sqrt(max(1.0, total / degrees))
        # The same draws for every form and whenever it is asked: the same run, the same forecast.
        normal = np.random.default_rng(_SEED).standard_normal((_DRAWS, len(start) + 2))
        heavy = spread / np.sqrt(np.random.default_rng(_SEED + 1).chisquare(degrees, _DRAWS) / degrees)
        own = float(np.median(self._units)) * heavy * normal[:, -2]
        draws = posterior + heavy[:, None] * np.linalg.solve(triangular, normal[:, :-2].T).T
        kept = (draws[:, 1:] >= 0).all(axis=1)
        # Half of the prior lies where an overhead is not below 0: the other half is no part of the form.
        return _Fit(form, scale, evidence + math.log(2) * len(form.terms), draws[kept], own[kept], normal[kept, -1])

    def _costs(self, fit: _Fit, gpus: int) -> FloatArray:
        """Draws of the cost that would be measured at a size."""
        beyond = _UNSEEN * max(0.0, math.log2(gpus / self.largest))
        costs = fit.draws @ (self._row(fit.form, gpus) / fit.scale)
        return np.asarray(costs * (1 + fit.noise + beyond * fit.unseen))

    def _row(self, form: _OverheadForm, gpus: int) -> FloatArray:
        """Terms at a size. Under strong scaling what a step costs besides its images is shared by fewer of them."""
        nodes = -(-gpus // self.series.gpus_per_node)
        factor = gpus if self.series.scaling == "strong" else 1
        return np.array([1.0, *(factor * term(gpus, nodes) for term in form.terms)])
