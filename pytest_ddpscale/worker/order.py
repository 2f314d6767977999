"""In which order a round goes through what it times."""

from __future__ import annotations

import random
from typing import TypeVar

Timed = TypeVar("Timed")


def arm_order(arms: tuple[Timed, ...], seed: int, study_id: str, round_number: int) -> list[Timed]:
    """The arms, or probes, in the random order of this round, the same on every rank.

    Random, so that what comes in waves (a neighbour's job, the room's cooling) falls on no arm more
    than on another.
    """
    shuffled = list(arms)
    random.Random(f"{seed}/{study_id}/{round_number}").shuffle(shuffled)  # noqa: S311 (an order, no secret)
    return shuffled
