"""The measurements of one arm, round by round."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pytest_ddpscale.plan.layout import Layout
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
    def images_per_joule(self) -> float | None:
        """Images that a rank trained over the energy its GPU took, the least of all ranks; None if any is unknown."""
        taken = [(rank.batch_size * rank.steps, rank.energy_j) for rank in self.ranks]
        known = [images / joules for images, joules in taken if joules]  # nobody trains for nothing
        return min(known) if len(known) == len(taken) else None

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


def arm_rounds(
    measurements: Iterable[Measurement], study_id: str, arm: Arm, ranks: Collection[int] | None = None
) -> dict[int, ArmRound]:
    """All complete rounds of one group of ranks of an arm, by number.

    A round in which a rank is missing is left out: its pace is unknown. So is a measurement with
    another batch than the arm's, whose throughput would be that of other work. Of a repeated measurement
    the earliest counts: a later one was made under other conditions than the rest of its round.

    Args:
        measurements: in any order.
        study_id: which of them count.
        arm: likewise.
        ranks: the group; what other groups of the arm measured is passed over. None for ranks 0 … k-1 that are the
            only ones: a further rank makes a round unusable. Of an arm of one rank, those that take turns; None for
            any: a round has one of them.
    """
    found: dict[int, dict[int, Measurement]] = defaultdict(dict)
    wanted = (study_id, arm.name, arm.batch_size)
    expected = frozenset(range(arm.world_size) if ranks is None else ranks)
    for measurement in measurements:
        is_wanted = (measurement.study, measurement.arm, measurement.batch_size) == wanted
        if is_wanted and (ranks is None or measurement.rank in expected):
            earlier = found[measurement.round].get(measurement.rank, measurement)
            found[measurement.round][measurement.rank] = min(earlier, measurement, key=_age)
    return {
        number: ArmRound(number, tuple(theirs[rank] for rank in sorted(theirs)))
        for number, theirs in sorted(found.items())
        if (len(theirs) == 1 if arm.world_size == 1 else set(theirs) == expected)
    }


def by_host(measurements: Iterable[Measurement]) -> dict[str, list[Measurement]]:
    """What each node measured, by its host's name."""
    found: dict[str, list[Measurement]] = defaultdict(list)
    for measurement in measurements:
        found[measurement.host].append(measurement)
    return dict(sorted(found.items()))


def on_hosts(rounds: Rounds, hosts: Collection[str]) -> dict[int, ArmRound]:
    """The same rounds without ranks on other hosts."""
    found = {n: tuple(one for one in arm_round.ranks if one.host in hosts) for n, arm_round in rounds.items()}
    return {n: ArmRound(n, ranks) for n, ranks in found.items() if ranks}


def ranks_on_node(measurements: Sequence[Measurement], arm: Arm) -> range | None:
    """The ranks of a node that train an arm which fits it; None for all, which take turns at an arm of one rank.

    Args:
        measurements: of that node in one study.
        arm: from the node's first rank on.
    """
    if arm.world_size == 1:
        return None
    first = min((one.rank - one.local_rank for one in measurements), default=0)
    return range(first, first + arm.world_size)


def group_rounds(
    measurements: Sequence[Measurement], study_id: str, arm: Arm, layout: Layout
) -> list[dict[int, ArmRound]]:
    """Complete rounds of every group of ranks that trained the arm at the same time, that of rank 0 first."""
    if layout.nodes == 1:
        return [arm_rounds(measurements, study_id, arm)]
    if not layout.fits_node(arm):
        return [arm_rounds(measurements, study_id, arm, layout.groups(arm)[0])]
    nodes = by_host(one for one in measurements if one.study == study_id and one.arm == arm.name).values()
    inorder = sorted(nodes, key=lambda theirs: theirs[0].rank)
    return [arm_rounds(theirs, study_id, arm, ranks_on_node(theirs, arm)) for theirs in inorder]


def together(groups: Iterable[Mapping[int, ArmRound]]) -> dict[int, ArmRound]:
    """Rounds of several groups as one: of each round the ranks of all groups of which it is complete."""
    found: dict[int, list[Measurement]] = defaultdict(list)
    for rounds in groups:
        for number, arm_round in rounds.items():
            found[number] += arm_round.ranks
    return {
        number: ArmRound(number, tuple(sorted(found[number], key=lambda one: one.rank))) for number in sorted(found)
    }
