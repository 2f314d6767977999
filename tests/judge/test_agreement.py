"""Ranks that computed something else are counted and named."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.judge.agreement import agreeing_share, disagreeing_ranks, rows_that_differ
from pytest_ddpscale.judge.rounds import NO_ROUNDS, ArmRounds
from tests.builders.measurements import Measurement
from tests.builders.rounds import rounds_of
from tests.rows import rows


def ranks_of(number: int, checksums: Sequence[str | None]) -> list[Measurement]:
    return [
        Measurement(
            "weak/r", "ddp@k", number, rank, rank % 4, f"node{rank // 4}", f"GPU-{rank}", 8, 1, 1.0, 1.7e9,
            parameters_checksum=checksum,
        )
        for rank, checksum in enumerate(checksums)
    ]  # fmt: skip


def measured(*checksums: Sequence[str | None]) -> ArmRounds:
    return rounds_of([one for number, row in enumerate(checksums) for one in ranks_of(number, row)])


def share_of(parameters: Sequence[str | None], steps: Sequence[str]) -> float:
    (share,) = agreeing_share(measured(parameters), seeded(steps))
    return float(share)


def seeded(checksums: Sequence[str]) -> dict[int, str]:
    return dict(enumerate(checksums))


def test_ranks_without_a_complete_round_differ_in_none() -> None:
    none = measured("aaaa").of(np.zeros(0, np.int64))
    assert none.measured.digest.shape == (0, 4)
    assert len(rows_that_differ(none, seeded("ssss"))) == 0
    assert len(agreeing_share(none, seeded("ssss"))) == 0
    assert disagreeing_ranks(none, seeded("ssss")) == []


@rows(
    ("parameters", "steps", "share"),
    [
        ("aaaa", "ssss", 1.0),
        ("aaba", "ssss", 0.75),
        ("aaaa", "ssts", 0.75),
        ("aaba", "ssts", 0.75),
        ("aaba", "tsss", 0.5),
        ("aabb", "ssss", 0.5),
        ("abcd", "ssss", 0.25),
        ("ab", "ss", 0.5),
        ("aa", "st", 0.5),
        ("ab", "st", 0.5),
        ("aab", "sss", 2 / 3),
    ],
)
def test_the_share_is_of_the_ranks_that_agree_in_both(parameters: str, steps: str, share: float) -> None:
    assert share_of(parameters, steps) == pytest.approx(share)


@given(st.text("abc", min_size=2, max_size=8), st.text("st", min_size=8, max_size=8), st.randoms())
def test_the_share_does_not_depend_on_who_is_which_rank(parameters: str, steps: str, shuffler: random.Random) -> None:
    pairs = list(zip(parameters, steps, strict=False))
    shuffled = shuffler.sample(pairs, len(pairs))
    shares = [share_of([p for p, _ in order], [s for _, s in order]) for order in (pairs, shuffled)]
    assert shares[0] == shares[1]
    assert (shares[0] == 1.0) == (len(set(pairs)) == 1)
    assert 1 / len(pairs) <= shares[0] <= 1


@rows(
    ("parameters", "steps"),
    [((None, None), "ss"), (("a", None), "ss"), (("a", ""), "ss"), (("a", "a"), "s"), (("a", "a"), "")],
)
def test_what_is_not_known_does_not_agree(parameters: Sequence[str | None], steps: str) -> None:
    assert math.isnan(share_of(parameters, steps))
    assert disagreeing_ranks(measured(parameters), seeded(steps)) == []


def test_ranks_that_agree_are_not_named() -> None:
    assert disagreeing_ranks(measured("aaaa", "bbbb"), seeded("ssss")) == []
    assert disagreeing_ranks(NO_ROUNDS, seeded("ssss")) == []


def test_a_rank_with_other_parameters_is_named_with_the_rounds() -> None:
    (found,) = disagreeing_ranks(measured("aaaaaaaa", "aaaaabaa", "aaaaaaaa", "cccccdcc"), seeded("ssssssss"))
    assert (found.rank, found.host, found.local_rank, found.device) == (5, "node1", 1, "GPU-5")
    assert not found.ambiguous
    assert found.evidence == "parameters differ from most of 8 ranks in 2 of 4 rounds"


def test_a_rank_that_computes_otherwise_by_itself_is_named_although_ddp_averages_it_away() -> None:
    (found,) = disagreeing_ranks(measured("aaaa", "aaaa"), seeded("sssx"))
    assert found.rank == 3
    assert found.evidence == "gradients of one seeded step, each computed alone, differ from most of 4 ranks"


def test_both_are_said_of_one_rank_and_several_ranks_come_in_order() -> None:
    both, first = disagreeing_ranks(measured("abaaa", "aaaac"), seeded("sxsss"))
    assert (both.rank, first.rank) == (1, 4)
    assert both.evidence == (
        "parameters differ from most of 5 ranks in 1 of 2 rounds; "
        "gradients of one seeded step, each computed alone, differ from most of 5 ranks"
    )


@rows(("parameters", "steps"), [("ab", "ss"), ("aabb", "ssss"), ("aa", "st"), ("abcd", "ssss")])
def test_where_nobody_is_the_majority_all_are_named_and_it_is_said(parameters: str, steps: str) -> None:
    found = disagreeing_ranks(measured(parameters), seeded(steps))
    assert [one.rank for one in found] == list(range(len(parameters)))
    assert all(one.ambiguous for one in found)
    assert all(f"differ between the {len(parameters)} ranks" in one.evidence for one in found)
    assert all(one.evidence.endswith("so it is unknown which is right") for one in found)


def test_a_rank_that_differs_is_not_in_doubt_because_two_others_are() -> None:
    """An open question about parameters takes nothing from a clear answer about the seeded step."""
    found = disagreeing_ranks(measured("aaaa"), seeded("ssst"))
    assert [(one.rank, one.ambiguous) for one in found] == [(3, False)]


def test_a_round_that_lacks_a_checksum_is_left_out() -> None:
    (found,) = disagreeing_ranks(measured("abaa", (None, "a", "a", "a"), "aaaa"), seeded("ssss"))
    assert (found.rank, found.rounds_different, found.rounds) == (1, 1, 2)


def test_only_those_who_are_still_there_are_named() -> None:
    """Of several nodes one may be lost: what is left of the others is compared as before."""
    rounds = rounds_of([*ranks_of(0, "aaab"), *ranks_of(1, "aba")])
    assert [(one.rank, one.ranks) for one in disagreeing_ranks(rounds, seeded("ssss"))] == [(1, 3)]


class TestGroupsThatTakeTurns:
    turns = ("aa", ""), ("", "bb")  # who has which parameters, of ranks 0 and 1, and of 2 and 3

    def rounds(self, *turns: tuple[str, str]) -> ArmRounds:
        found = []
        for number, (first, second) in enumerate(turns):
            found += ranks_of(number, first) or [replace(one, rank=one.rank + 2) for one in ranks_of(number, second)]
        return rounds_of(found)

    def test_each_group_agrees_in_itself(self) -> None:
        rounds = self.rounds(*self.turns)
        assert not rows_that_differ(rounds, seeded("ssss")).any()
        assert agreeing_share(rounds, seeded("ssss")).tolist() == [1.0, 1.0]
        assert disagreeing_ranks(rounds, seeded("ssss")) == []

    def test_a_disagreement_counts_whoever_had_the_last_turn(self) -> None:
        rounds = self.rounds(("", "bc"), *self.turns[:1])
        assert rows_that_differ(rounds, seeded("ssss")).tolist() == [True, False]
        assert [one.rank for one in disagreeing_ranks(rounds, seeded("ssss"))] == [2, 3]
