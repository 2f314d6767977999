"""Noise of rounds: correlated noise, hiccups, ramps and steps, as logarithms of times (above 0 is slower)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
Tail = Literal["Gaussian", "Student-t, 3 degrees"]


@dataclass(frozen=True)
class RoundNoise:
    """Variation of a series of rounds about its value without noise.

    Attributes:
        sd: relative standard deviation of a round.
        correlation: lag-one correlation of a stationary AR(1) process, 0 … below 1.
        tail: distribution of its innovations; a Student-t is scaled to variance 1.
        hiccup_share: share of blocks that take longer by up to `hiccup_sds` standard deviations, uniformly distributed.
        hiccup_sds: see `hiccup_share`.
        ramp: relative change of the time from the first to the last round, linear.
        step: relative change of the time from the middle round on.
    """

    sd: float
    correlation: float = 0.0
    tail: Tail = "Gaussian"
    hiccup_share: float = 0.0
    hiccup_sds: float = 10.0
    ramp: float = 0.0
    step: float = 0.0

    def series(self, chance: np.random.Generator, rounds: int, count: int = 1) -> FloatArray:
        """Logarithms of times, (count, rounds); 0 without noise."""
        fresh = self._innovations(chance, (count, rounds))
        remembered = np.empty_like(fresh)
        remembered[:, 0] = fresh[:, 0]
        for i in range(1, rounds):
            new = math.sqrt(1 - self.correlation**2) * fresh[:, i]
            remembered[:, i] = self.correlation * remembered[:, i - 1] + new
        logs = self.sd * remembered
        if self.hiccup_share:
            is_hiccup = chance.random(logs.shape) < self.hiccup_share
            logs += self.sd * self.hiccup_sds * is_hiccup * chance.random(logs.shape)
        done = np.arange(rounds) / max(1, rounds - 1)
        trend: FloatArray = (
            logs + math.log1p(self.ramp) * done + math.log1p(self.step) * (2 * np.arange(rounds) >= rounds)
        )
        return trend

    def _innovations(self, chance: np.random.Generator, shape: tuple[int, int]) -> FloatArray:
        if self.tail == "Gaussian":
            return chance.standard_normal(shape)
        return chance.standard_t(3, shape) / math.sqrt(3)
