"""Evidence that a mean is on the bad side of a bound, against every mean on the good side.

`pytest_ddpscale.judge.sequential.EProcesses` has an e-process E_n(m) for each single mean m. The hypothesis is that the
bound is kept: the mean is any value on the good side. Its e-process is

    E_n = infimum of E_n(m) over all m on the good side,

because it is at most E_n(true mean) if the true mean is on the good side. By Ville's inequality the chance that it ever
reaches 1/p, in any round, is then at most p. So 1 ÷ (its largest value so far) is an anytime-valid p value: Ramdas,
Grünwald, Vovk and Shafer (2023), "Game-theoretic statistics and safe anytime-valid inference", Statistical Science
38(4).

The infimum is exact. With t = m - bound, E_n(m) is a power of min over ρ of Q_ρ(t) / O(t), both quadratic in t, times a
constant. A ratio of two quadratics takes its least value on a half line at the end, at infinity, or at one of the two
points of zero slope. If the mean of the values lies on the good side, the infimum is at most E_n(mean) < 1. If it lies
on the bad side, E_n(m) grows with the distance from it, except close to it, where correlation adds to it, and far away,
where it tends to a limit that so few rounds cannot exceed.
"""

from __future__ import annotations

import math

import numpy as np

from pytest_ddpscale.judge.sequential import CORRELATIONS, EFFECT_SCALE, FloatArray


def largest_log_evidence(values: FloatArray, bound: float, direction: float, fewest: int) -> float:
    """Natural logarithm of the largest e-value so far against the hypothesis that the mean keeps a bound.

    Args:
        values: one per round, in the order of the rounds, (rounds,), all finite.
        bound: on the mean.
        direction: 1 if the good side is above the bound, -1 if it is below.
        fewest: number of rounds before the first look.

    Returns:
        At least 0: before the first look the e-value is 1.
    """
    if len(values) < fewest:
        return 0.0
    # Mirrored and shifted: the good side is t >= 0.
    distances = direction * (np.asarray(values, np.float64) - bound)
    ratios = _least_ratios(distances)[fewest - 1 :]
    rounds = np.arange(fewest, len(values) + 1)
    powers = rounds / 2 * np.log(ratios) - 0.5 * np.log1p(EFFECT_SCALE**2 * rounds)
    return max(0.0, float(powers.max()))


def _least_ratios(distances: FloatArray) -> FloatArray:
    """Least ratio of Q_ρ to O over t >= 0 and all ρ for the first 1, 2, … rounds, (rounds,); 1 if the mean is good."""
    rounds = np.arange(1, len(distances) + 1)
    total, squares = np.cumsum(distances), np.cumsum(distances**2)
    prior = EFFECT_SCALE**2 / (1 + EFFECT_SCALE**2 * rounds)
    below = squares - prior * total**2, total * (1 - prior * rounds), rounds * (1 - prior * rounds)
    least = np.full(len(distances), np.inf)
    for correlation in CORRELATIONS:
        least = np.fmin(least, _least_ratio(_whitened(distances, correlation), below))
    return np.where(total < 0, least, 1.0)


def _whitened(distances: FloatArray, correlation: float) -> tuple[FloatArray, FloatArray, FloatArray]:
    """a, b and w of Q(t) = a - 2·b·t + w·t² for the first 1, 2, … rounds, as in `EProcesses`."""
    first, others = math.sqrt(1 - correlation**2), 1 - correlation
    filtered = np.append(first * distances[:1], distances[1:] - correlation * distances[:-1])
    ones = np.append(first, np.full(len(distances) - 1, others))
    scale = first ** (-2 / np.arange(1, len(distances) + 1))
    return scale * np.cumsum(filtered**2), scale * np.cumsum(filtered * ones), scale * np.cumsum(ones**2)


def _least_ratio(
    above: tuple[FloatArray, FloatArray, FloatArray], below: tuple[FloatArray, FloatArray, FloatArray]
) -> FloatArray:
    """Least value over t >= 0 of (a - 2·b·t + w·t²) / (s - 2·p·t + u·t²)."""
    (a, b, w), (s, p, u) = above, below
    # The slope is zero at square·t² + linear·t + constant = 0.
    square, linear, constant = b * u - w * p, w * s - a * u, a * p - b * s
    with np.errstate(divide="ignore", invalid="ignore"):
        root = np.sqrt(np.maximum(linear**2 - 4 * square * constant, 0.0))
        # The stable form of both solutions avoids differences of nearly equal numbers.
        half = -(linear + np.where(linear >= 0, root, -root)) / 2
        least = np.fmin(a / s, w / u)
        for t in (half / square, constant / half):
            inside = np.isfinite(t) & (t > 0)
            least = np.fmin(least, np.where(inside, (a - 2 * b * t + w * t**2) / (s - 2 * p * t + u * t**2), np.inf))
    return least
