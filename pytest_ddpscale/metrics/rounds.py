"""The measurements of one arm, round by round."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_ddpscale.plan.study import Arm
from pytest_ddpscale.results.records import Measurement

GIB = 2**30


@dataclass(frozen=True)
class ArmRound:
    """One arm in one round, all its ranks.

    Attributes:
        number: of the round.
        ranks: one measurement per rank, in rank order; complete by construction.
    """

    number: int
    ranks: tuple[Measurement, ...]

    @property
    def slowest(self) -> Measurement:
        """The rank whose block took longest: under DDP it sets the pace."""
        return max(self.ranks, key=mean_step_s)

    @property
    def step_s(self) -> float:
        """Mean step time of the slowest rank, in seconds."""
        return mean_step_s(self.slowest)

    @property
    def throughput_per_gpu_img_per_s(self) -> float:
        """Images per second and GPU, at the slowest rank's pace."""
        return self.slowest.throughput_img_per_s

    @property
    def least_busy(self) -> Measurement | None:
        """The rank with the lowest utilization; None if any rank's could not be read."""
        # NaN compares as false with everything, so that min would pass over it.
        if any(rank.utilization is None or math.isnan(rank.utilization) for rank in self.ranks):
            return None
        return min(self.ranks, key=lambda rank: rank.utilization or 0.0)

    @property
    def peak_memory_gib(self) -> float | None:
        """Most memory any rank held, in GiB; None if any rank's is unknown."""
        held = self._peak_memory_bytes
        return max(held) / GIB if held else None

    @property
    def memory_spread(self) -> float | None:
        """Most less least memory that ranks held, relative to the most; None if any rank's is unknown."""
        held = self._peak_memory_bytes
        return (max(held) - min(held)) / max(held) if held else None

    @property
    def _peak_memory_bytes(self) -> list[int]:
        """What each rank held, in bytes; empty if any rank's is unknown."""
        held = [rank.peak_memory_bytes for rank in self.ranks]
        known = [amount for amount in held if amount and amount > 0]  # nobody trains in no memory
        return known if len(known) == len(held) else []

    @property
    def single_sample_error(self) -> float | None:
        """Relative standard error of the step time of an imported single sample.

        The standard deviation of the steps over the square root of their number, as if steps were
        independent: imported files keep no raw steps from which their correlation could be told.
        None for measurements of our own, whose error comes from the rounds.
        """
        slowest = self.slowest
        if not slowest.single_sample or slowest.step_stdev_s is None:
            return None
        return slowest.step_stdev_s / mean_step_s(slowest) / math.sqrt(slowest.steps)


Rounds = Mapping[int, ArmRound]


def mean_step_s(measurement: Measurement) -> float:
    """Mean step time of one rank's block, in seconds."""
    return measurement.block_s / measurement.steps


def rounds_begun(measurements: Sequence[Measurement], study_id: str) -> set[int]:
    """Numbers of the rounds from which any rank of any arm of a study reported, complete or not."""
    return {m.round for m in measurements if m.study == study_id}


def _age(measurement: Measurement) -> tuple[float, float]:
    """So that the order of records does not matter, not even of two that began at once."""
    return measurement.started_unix_s, measurement.block_s


def arm_rounds(measurements: Sequence[Measurement], study_id: str, arm: Arm) -> dict[int, ArmRound]:
    """All complete rounds of an arm, by number.

    A round in which a rank is missing is left out: its pace is unknown. So is a measurement with
    another batch than the arm's, whose throughput would be that of other work. Of a repeated measurement
    the earliest counts: a later one was made under other conditions than the rest of its round.
    """
    found: dict[int, dict[int, Measurement]] = defaultdict(dict)
    wanted = (study_id, arm.name, arm.batch_size)
    for measurement in measurements:
        if (measurement.study, measurement.arm, measurement.batch_size) == wanted:
            earlier = found[measurement.round].get(measurement.rank, measurement)
            found[measurement.round][measurement.rank] = min(earlier, measurement, key=_age)
    return {
        number: ArmRound(number, tuple(ranks[rank] for rank in sorted(ranks)))
        for number, ranks in sorted(found.items())
        if set(ranks) == set(range(arm.world_size))
    }
