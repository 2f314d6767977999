"""Whether a rank is slow only while something holds its GPU down is told from telemetry."""

from __future__ import annotations

from collections.abc import Collection

import pytest
from msgspec.structs import replace as altered

from pytest_ddpscale.judge.stragglers import Straggler, find_stragglers, with_held_down
from tests.builders.telemetry import columns_of_telemetry
from tests.judge.test_device_notes import THROTTLED, telemetry_of
from tests.judge.test_stragglers import rank_of, slow_in

ROUNDS = 16
LATE = range(8, ROUNDS)


def found_with(slow: Collection[int], throttled: Collection[int], rank: int = 3) -> Straggler:
    """Rank 3 is slow in some rounds; a rank is throttled in some."""
    measured = slow_in([*slow], ROUNDS)
    blocks = [rank_of(rank, number, 0.1) for number in range(ROUNDS)]
    told = [altered(one, **THROTTLED) if one.round in throttled else one for one in telemetry_of(blocks)]
    (found,) = with_held_down(find_stragglers(measured), measured, columns_of_telemetry(told))
    return found


def test_a_rank_that_is_slow_while_it_is_throttled_is_told_as_that() -> None:
    assert found_with(LATE, LATE).culprit.evidence == (
        "1.10× the median of 7 peers in the last 8 of 16 rounds, in which heat, power supply or board held it down"
    )


@pytest.mark.parametrize(
    ("slow", "throttled"),
    [(LATE, ()), (LATE, range(ROUNDS)), (LATE, range(8)), (range(ROUNDS), range(ROUNDS))],
    ids=["never throttled", "always throttled", "throttled in the others", "always slow"],
)
def test_it_is_not_said_of_others(slow: Collection[int], throttled: Collection[int]) -> None:
    assert "held it down" not in found_with(slow, throttled).culprit.evidence


def test_another_rank_that_is_throttled_says_nothing() -> None:
    assert "held it down" not in found_with(LATE, LATE, rank=4).culprit.evidence
