"""What rounds vary by: noise that may remember, hiccups, ramps and steps; logarithms of times: above 0 is slower."""

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
    """How a series of rounds varies about what it would be without noise.

    Attributes:
        sd: relative standard deviation of a round.
        correlation: lag-one, of a stationary AR(1) process, 0 … below 1.
        tail: of its innovations; a Student-t is scaled to variance 1.
        hiccup_share: of the blocks that take longer by up to `hiccup_sds` standard deviations, evenly spread.
        hiccup_sds: see there.
        ramp: relative change of the time from the first to the last round, in a straight line.
        step: relative change of the time that stays from the middle of the rounds on.
    """

    sd: float
    correlation: float = 0.0
    tail: Tail = "Gaussian"
    hiccup_share: float = 0.0
    hiccup_sds: float = 10.0
    ramp: float = 0.0
    step: float = 0.0

    def series(self, chance: np.random.Generator, rounds: int, count: int = 1) -> FloatArray:
        """Logarithms of times, (count, rounds), without noise 0."""
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
