"""Whose turn it is to train an arm of one rank: all ranks of a node in turn, so that none of them is the yardstick."""

from __future__ import annotations

import hashlib


def turn(ranks: int, seed: int, study_id: str, number: int) -> int:
    """Local rank, the same on every node, that trains the arms of one rank in round `number`.

    In a random order that is drawn anew whenever every rank has had its turn. By digests, so that the judge finds the
    same order with any version of Python.

    Args:
        ranks: of a node that take turns.
        seed: of the plan.
        study_id: which study.
        number: of the round, from 0.
    """
    cycle, place = divmod(number, ranks)

    def lot(rank: int) -> bytes:
        return hashlib.sha256(f"{seed}/{study_id}/{cycle}/{rank}".encode()).digest()

    return sorted(range(ranks), key=lot)[place]
