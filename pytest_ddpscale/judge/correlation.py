"""Correlation of successive rounds, and whether it exceeds what the intervals allow for."""

from __future__ import annotations

import math

import numpy as np

from pytest_ddpscale.judge.sequential import CORRELATIONS, BoolArray, FloatArray
from pytest_ddpscale.judge.steadiness import fit_lines

# The confidence sequence is valid up to this correlation.
MOST_CORRELATION = max(CORRELATIONS)
# 97.5 % quantile of the normal distribution: a true 0.5 is taken for more in 2 % of series of 8 rounds, 6 % of 32.
_QUANTILE = 1.96
_LARGEST = 0.99


def lag_one_correlations(series: FloatArray) -> FloatArray:
    """Estimates from the residuals of a straight line, each between -0.99 and 0.99; a drift does not count.

    Residuals about a line correlate by about (2 + 4ρ) / n less than the noise does: Tanaka (1984), "An asymptotic
    expansion associated with the maximum likelihood estimators in ARMA models", J. R. Statist. Soc. B 46; after
    Marriott and Pope (1954), "Bias in the estimation of autocorrelations", Biometrika 41, for those about a mean. That
    bias is added back, with the estimate in place of ρ.

    Args:
        series: (series, rounds), at least four rounds.

    Returns:
        (series,); NaN for a series of equal values, and for a straight line.
    """
    rounds, residuals = series.shape[1], fit_lines(series).residuals
    squares = (residuals**2).sum(axis=1)
    # Rounding makes the residuals of a straight line not quite zero.
    is_told = np.sqrt(squares / rounds) > 1e-12 * np.abs(series).max(axis=1)
    products = (residuals[:, 1:] * residuals[:, :-1]).sum(axis=1)
    raw = np.where(is_told, products / np.where(is_told, squares, 1.0), np.nan)
    return np.asarray(np.clip(raw + (2 + 4 * raw) / rounds, -_LARGEST, _LARGEST))


def are_beyond_the_method(correlations: FloatArray, rounds: int) -> BoolArray:
    """Whether the lower confidence limit of each is above `MOST_CORRELATION`.

    The limit comes from Fisher's z transformation (1921), standard error 1 / sqrt(rounds - 3). The rate of false
    alarms: benchmarks/wrong_verdicts.py.
    """
    is_known = ~np.isnan(correlations)
    lowest = np.arctanh(np.where(is_known, correlations, 0.0)) - _QUANTILE / math.sqrt(rounds - 3)
    return np.asarray(is_known & (np.tanh(lowest) > MOST_CORRELATION))
