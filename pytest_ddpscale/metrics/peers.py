"""A rank against all the others, in one round."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from pytest_ddpscale.metrics.rounds import ArmRound, mean_step_s

# Makes the median absolute deviation of normal noise its standard deviation: 1 / Φ⁻¹(3/4).
MAD_TO_STDEV = 1.4826


class Peers:
    """The step times of one round, of which each rank is compared with those of all others.

    Sorted once, so that a round of n ranks takes n log n: simulated clusters have 100,000.

    Args:
        arm_round: of at least two ranks.
    """

    def __init__(self, arm_round: ArmRound) -> None:
        self._times_s = sorted(mean_step_s(rank) for rank in arm_round.ranks)
        if len(self._times_s) < 2:
            raise ValueError(f"{len(self._times_s)} rank has no peers; expected at least 2 ranks")
        # All ranks share two or three medians of their peers, and so the deviations from them.
        self._deviations_s: dict[float, list[float]] = {}

    def median_s(self, time_s: float) -> float:
        """Median step time of all ranks but one that took `time_s`, in seconds."""
        return median_without(self._times_s, time_s)

    def stdev_s(self, time_s: float) -> float:
        """Robust standard deviation, from the median absolute deviation, of all ranks but one that took `time_s`."""
        median_s = self.median_s(time_s)
        if median_s not in self._deviations_s:
            self._deviations_s[median_s] = sorted(abs(other_s - median_s) for other_s in self._times_s)
        return MAD_TO_STDEV * median_without(self._deviations_s[median_s], abs(time_s - median_s))


def slowest_to_peers(arm_round: ArmRound) -> float:
    """Mean step time of the slowest rank over the median of all others'; at least two ranks."""
    return arm_round.step_s / Peers(arm_round).median_s(arm_round.step_s)


def median_without(ordered: Sequence[float], left_out: float) -> float:
    """Median of a sorted sequence of two or more without one occurrence of one of its values."""
    place = bisect_left(ordered, left_out)
    count = len(ordered) - 1

    def kept(i: int) -> float:
        return ordered[i if i < place else i + 1]

    return kept(count // 2) if count % 2 else (kept(count // 2 - 1) + kept(count // 2)) / 2
