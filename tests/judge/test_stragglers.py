"""Who is slow is named, and nobody else."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.judge import stragglers
from pytest_ddpscale.judge.rounds import NO_ROUNDS, ArmRounds
from pytest_ddpscale.judge.stragglers import Straggler, node_culprit, slow_nodes, slower_than_their_node
from pytest_ddpscale.run.columns import ArmColumns
from tests.builders import rounds as builders
from tests.builders.measurements import Measurement

ROUNDS = 9
# One rank slower by so much than its peers, all without noise; and the noise of one round on a GPU.
SLOW = 1.2
GPU_NOISE = 0.003
LIMIT = 0.05  # of peers


def find_stragglers(measured: ArmRounds, limit: float = LIMIT) -> list[Straggler]:
    return stragglers.find_stragglers(measured, limit)


def rank_of(rank: int, number: int, step_s: float, per_host: int = 8) -> Measurement:
    steps = 10
    return Measurement(
        "weak/r", "each@k", number, rank, rank % per_host, f"node{rank // per_host}", f"GPU-{rank}", 8, steps,
        steps * step_s, 1.7e9,
    )  # fmt: skip


def rounds_of(*rows: Sequence[float], per_host: int = 8) -> ArmRounds:
    """Rounds of ranks with these step times, in seconds."""
    return ArmRounds(replace(_columns(len(rows), len(rows[0]), per_host), seconds=10 * np.array(rows)))


@cache
def _columns(rounds: int, ranks: int, per_host: int) -> ArmColumns:
    blocks = [rank_of(rank, number, 1.0, per_host) for number in range(rounds) for rank in range(ranks)]
    return builders.rounds_of(blocks).measured


def noisy(factors: Sequence[float], noise: float, seed: int, rounds: int = ROUNDS, per_host: int = 8) -> ArmRounds:
    """Ranks so much slower than the fastest, with Gaussian noise of every rank in every round."""
    source = random.Random(seed)
    rows = [[0.1 * factor * (1 + source.gauss(0, noise)) for factor in factors] for _ in range(rounds)]
    return rounds_of(*rows, per_host=per_host)


def ranks(found: Sequence[Straggler]) -> list[int]:
    return [straggler.rank for straggler in found]


def devices(found: Sequence[Straggler]) -> list[str]:
    return [str(straggler.culprit.gpu_uuid) for straggler in found]


def test_a_slow_rank_is_named_with_where_it_is_and_what_was_seen() -> None:
    (found,) = find_stragglers(rounds_of(*[[0.1] * 10 + [0.131] + [0.1] * 5] * ROUNDS))
    assert (found.rank, found.host, found.culprit.gpu_index, devices([found])) == (10, "node1", 2, ["GPU-10"])
    assert found.ratio == pytest.approx(1.31)
    assert found.culprit.evidence == "1.31× the median of 15 peers in 9 of 9 rounds"
    assert not found.ambiguous


def test_a_slow_rank_behind_one_that_was_hardly_there_is_named() -> None:
    times = [(number, rank) for number in range(ROUNDS) for rank in range(8) if rank != 2 or number == 0]
    measured = builders.rounds_of(rank_of(rank, number, 0.1 * (SLOW if rank == 5 else 1)) for number, rank in times)
    assert devices(find_stragglers(measured)) == ["GPU-5"]


def test_a_rank_that_is_fast_is_not_slow_and_makes_nobody_slow() -> None:
    assert find_stragglers(noisy([1, 1, 1, 1 / SLOW], GPU_NOISE, seed=1)) == []


@pytest.mark.parametrize(("slower_by", "named"), [(0.049, False), (0.051, True)])
def test_a_gap_that_small_is_how_gpus_differ(slower_by: float, named: bool) -> None:
    measured = rounds_of(*[[0.1] * 7 + [0.1 * (1 + slower_by)]] * ROUNDS)
    assert bool(find_stragglers(measured)) == named
    assert find_stragglers(measured, 0.10) == []


def test_in_noise_a_rank_is_named_once_its_interval_is_clear_of_the_limit() -> None:
    few, many = (find_stragglers(noisy([1] * 7 + [1.08], 0.02, 3, rounds)) for rounds in (8, 64))
    assert (ranks(few), ranks(many)) == ([], [7])


@pytest.mark.parametrize(
    ("others", "ratio", "suspected", "certain"),
    [(1, 1.3, True, False), (2, 1.3, True, False), (3, 1.04, False, False), (3, 1.08, True, False),
     (3, 1.12, True, True), (4, 1.04, False, False), (4, 1.08, True, True)],
)  # fmt: skip
def test_with_few_peers_a_rank_is_a_suspect_unless_it_is_far_off(
    others: int, ratio: float, suspected: bool, certain: bool
) -> None:
    found = find_stragglers(rounds_of(*[[1.0] * others + [ratio]] * ROUNDS))
    assert ranks(found) == ([others] if suspected else [])
    assert [not one.ambiguous for one in found] == ([certain] if suspected else [])


class TestSlowAtTimes:
    def found(self, ratio: float, slow: int, rounds: int = 16, noise: float = GPU_NOISE) -> list[Straggler]:
        """Of eight ranks the third is slower by so much in so many rounds, spread over all."""
        source = random.Random(1)
        rows = [[0.1 * (1 + source.gauss(0, noise)) for _ in range(8)] for _ in range(rounds)]
        for number in range(slow):
            rows[number * rounds // slow][2] *= ratio
        return find_stragglers(rounds_of(*rows))

    def test_is_named_though_its_average_lies_between(self) -> None:
        (found,) = self.found(1.2, 8)
        assert (found.rank, len(found.slow_rounds), found.culprit.slow_rounds) == (2, 8, 8)
        assert found.culprit.evidence == "1.20× the median of 7 peers in 8 of 16 rounds (50 %)"

    def test_is_named_in_a_quarter_of_the_rounds(self) -> None:
        (found,) = self.found(1.2, 4)
        assert found.culprit.evidence == "1.20× the median of 7 peers in 4 of 16 rounds (25 %)"

    @pytest.mark.parametrize(
        ("ratio", "slow", "rounds"), [(1.2, 3, 16), (1.08, 8, 16), (1.2, 2, 8)], ids=["fewer", "by less", "too few"]
    )
    def test_is_not_named(self, ratio: float, slow: int, rounds: int) -> None:
        assert self.found(ratio, slow, rounds) == []

    def test_is_not_named_where_others_often_are_too(self) -> None:
        odd = [1.25, 1.0, 1.0, 1.0]
        rows = [[odd[(number + shift) % 4] for shift in (0, 1, 2, 3, 0, 1, 2)] for number in range(16)]
        rows = [[*row, 1.2 if number % 2 else 1.0] for number, row in enumerate(rows)]
        assert find_stragglers(rounds_of(*rows)) == []


@given(st.integers(4, 12), st.data())
def test_a_rank_slower_by_a_fifth_is_always_found(world_size: int, data: st.DataObject) -> None:
    """Whatever the noise does within half a per cent."""
    slow = data.draw(st.integers(0, world_size - 1))
    jitter = st.lists(st.floats(0.995, 1.005), min_size=world_size, max_size=world_size)
    rows = data.draw(st.lists(jitter, min_size=5, max_size=9))
    measured = rounds_of(*[[SLOW * j if rank == slow else j for rank, j in enumerate(row)] for row in rows])
    assert ranks(find_stragglers(measured)) == [slow]


@pytest.mark.parametrize(
    ("factors", "named"),
    [
        ([1, SLOW, 1, 1, 1, 1, SLOW, 1], [1, 6]),
        ([1, 1.3, 1, 1, 1, 1, SLOW, 1], [1, 6]),
        ([1, SLOW, SLOW, SLOW, 1, 1, 1], [1, 2, 3]),
        ([1, SLOW, SLOW, 1], [1, 2]),
        ([1, 1, 1, 1, SLOW, SLOW, SLOW, SLOW], [4, 5, 6, 7]),
    ],
    ids=["two of 8", "slowest first", "three of 7", "two of 4", "half of 8"],
)
def test_up_to_half_of_the_ranks_are_named(factors: list[float], named: list[int]) -> None:
    found = find_stragglers(noisy(factors, 0.001, seed=5))
    assert sorted(ranks(found)) == named
    assert [straggler.ratio for straggler in found] == sorted((s.ratio for s in found), reverse=True)


@pytest.mark.parametrize("factors", [[1, 1, 1, SLOW, SLOW, SLOW, SLOW, SLOW], [1, SLOW, SLOW], [SLOW] * 8])
def test_what_most_ranks_do_is_the_norm_and_accuses_nobody(factors: list[float]) -> None:
    """Bounds for throughput see that; a comparison of ranks cannot."""
    assert find_stragglers(noisy(factors, 0.001, seed=5)) == []


@pytest.mark.parametrize(("rounds_slow", "named"), [(0, False), (2, False), (3, True), (5, True), (9, True)])
def test_who_is_slow_in_fewer_than_three_rounds_is_not_named(rounds_slow: int, named: bool) -> None:
    rows = [[0.1] * 7 + [0.2 if number < rounds_slow else 0.1] for number in range(ROUNDS)]
    found = find_stragglers(rounds_of(*rows))
    assert ranks(found) == ([7] if named else [])
    assert [one.slow_rounds for one in found] == ([tuple(range(rounds_slow))] if named else [])


def slow_in(slow_rounds: Sequence[int], rounds: int, ratio: float = 1.1) -> ArmRounds:
    """Eight ranks of which rank 3 is slower in these rounds, with the noise of a GPU."""
    source = random.Random(6)
    rows = [[0.1 * (1 + source.gauss(0, GPU_NOISE)) for _ in range(8)] for _ in range(rounds)]
    for number in slow_rounds:
        rows[number][3] *= ratio
    return rounds_of(*rows)


class TestWhenItIsSlow:
    def test_is_told_of_a_rank_that_became_slow(self) -> None:
        (found,) = find_stragglers(slow_in(range(12, 24), 24))
        assert found.culprit.evidence == "1.10× the median of 7 peers in the last 12 of 24 rounds"

    def test_may_be_more_and_more(self) -> None:
        rows = [[0.1 * (1 + 0.001 * ((rank * number) % 3)) for rank in range(8)] for number in range(16)]
        for number, row in enumerate(rows):
            row[3] *= 1 + 0.1 * number / 15
        (found,) = find_stragglers(rounds_of(*rows))
        assert (found.rank, " in the last " in found.culprit.evidence) == (3, True)
        assert found.ratio == pytest.approx(1.05, abs=0.005), "over all rounds"
        assert (found.culprit.slowdown or 0) > 1.06

    def test_does_not_count_if_it_was_slower_before(self) -> None:
        """A rank that recovers accuses nobody of what is to come; half of the rounds are not more than half."""
        assert find_stragglers(slow_in(range(11), 24)) == []


def named_in(runs: int, factors: Sequence[float], noise: float, rounds: int, spread: float = 0.0) -> list[list[int]]:
    """Ranks that are named in each run, in order; ranks differ by a spread that stays."""
    source, found = random.Random(11), []
    for seed in range(runs):
        differing = [factor * (1 + source.gauss(0, spread)) for factor in factors]
        found.append(sorted(ranks(find_stragglers(noisy(differing, noise, seed, rounds)))))
    return found


def test_six_and_a_half_per_cent_are_found_in_the_noise_of_a_gpu() -> None:
    assert named_in(60, [1, 1, 1, 1.065, 1, 1, 1, 1], GPU_NOISE, 8).count([3]) >= 57


def test_gpus_that_differ_as_gpus_do_are_hardly_ever_named() -> None:
    """1.5 % from GPU to GPU: one of eight lies 5 % above the others' median in 2 % of nodes."""
    named = [found for found in named_in(300, [1.0] * 8, GPU_NOISE, 8, spread=0.015) if found]
    assert len(named) <= 5


def watched_in(measured: ArmRounds) -> list[Straggler]:
    return stragglers.find_watched(measured, find_stragglers(measured), LIMIT)


class TestWatched:
    @pytest.mark.parametrize(("slower_by", "watched"), [(0.025, False), (0.035, True), (0.045, True), (0.06, False)])
    def test_are_those_that_stand_out_by_less_than_the_gap(self, slower_by: float, watched: bool) -> None:
        assert bool(watched_in(slow_in(range(16), 16, 1 + slower_by))) == watched

    def test_are_not_those_that_ordinarily_differ(self) -> None:
        assert watched_in(noisy([1 + 0.015 * rank for rank in range(4)], GPU_NOISE, seed=1)) == []


def test_few_rounds_accuse_nobody() -> None:
    row = [0.1] * 7 + [0.2]
    assert find_stragglers(rounds_of(*[row] * 4)) == []
    assert ranks(find_stragglers(rounds_of(*[row] * 5))) == [7]
    assert find_stragglers(NO_ROUNDS) == []


def test_one_rank_has_no_peers() -> None:
    assert find_stragglers(rounds_of(*[[0.1]] * ROUNDS)) == []


def test_of_two_ranks_the_slower_one_is_found_and_the_doubt_is_said() -> None:
    (found,) = find_stragglers(noisy([1.0, SLOW], GPU_NOISE, seed=2))
    assert (found.rank, found.ambiguous, found.culprit.peers) == (1, True, 1)
    assert found.culprit.evidence == "1.20× the time of its only peer in 9 of 9 rounds"


FACTORS = st.lists(st.sampled_from([1.0, 1.01, 1.1, 1.3]), min_size=2, max_size=8)


@given(FACTORS, st.integers(0, 999), st.randoms())
def test_who_is_named_does_not_depend_on_the_numbers_of_the_ranks(
    factors: list[float], seed: int, shuffler: random.Random
) -> None:
    measured = noisy(factors, 0.01, seed)
    order = np.array(shuffler.sample(range(len(factors)), len(factors)))
    renumbered = measured.measured.of(slice(None), order)
    ranks = replace(renumbered.ranks, numbers=np.arange(len(factors)))
    moved = ArmRounds(replace(renumbered, ranks=ranks))
    assert sorted(devices(find_stragglers(moved))) == sorted(devices(find_stragglers(measured)))


@given(FACTORS, st.integers(0, 999), st.randoms())
def test_who_is_named_does_not_depend_on_the_order_of_the_rounds(
    factors: list[float], seed: int, shuffler: random.Random
) -> None:
    measured = noisy(factors, GPU_NOISE, seed)
    shuffled = measured.of(np.array(shuffler.sample(range(ROUNDS), ROUNDS)))
    assert ranks(find_stragglers(shuffled)) == ranks(find_stragglers(measured))


@given(FACTORS, st.integers(0, 999), st.floats(0.01, 100))
def test_who_is_named_does_not_depend_on_how_fast_the_machine_is(factors: list[float], seed: int, speed: float) -> None:
    measured = noisy(factors, 0.01, seed)
    scaled = ArmRounds(replace(measured.measured, seconds=measured.measured.seconds * speed))
    assert ranks(find_stragglers(scaled)) == ranks(find_stragglers(measured))


@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_an_undisturbed_run_accuses_nobody(world_size: int) -> None:
    """200 runs of nine rounds with 2 % of noise a round, the noise of a shared CPU: not one false accusation.

    A rank is over the 5 % line in one round by chance with a probability of at most 4 % (two ranks: their
    difference has √2 times the noise), and has to be in seven of nine: fewer than one run in 10⁷.
    """
    accused = [seed for seed in range(200) if find_stragglers(noisy([1.0] * world_size, 0.02, seed))]
    assert accused == []


@pytest.mark.parametrize("world_size", [4, 8])
def test_a_slow_rank_is_found_in_the_noise_of_a_shared_cpu(world_size: int) -> None:
    """1.3 times its peers with 2 % of noise a round: named in at least 95 of 100 runs, and nobody else in any."""
    found = [ranks(find_stragglers(noisy([1.3, *[1.0] * (world_size - 1)], 0.02, seed))) for seed in range(100)]
    assert all(named in ([], [0]) for named in found)
    assert found.count([0]) >= 95


def test_a_cluster_of_twenty_thousand_ranks_is_compared() -> None:
    """In n log n: each rank with each other would be 400 million comparisons a round."""
    factors = [1.0] * 20_000
    factors[12_345] = SLOW
    assert ranks(find_stragglers(noisy(factors, GPU_NOISE, seed=3, rounds=5))) == [12_345]


class TestSlowNodes:
    @staticmethod
    def found(factors: Sequence[float], per_host: int = 4) -> list[tuple[str, list[int]]]:
        measured = noisy(factors, 0.001, seed=7, per_host=per_host)
        nodes = slow_nodes(find_stragglers(measured), measured)
        return [(host, sorted(ranks(theirs))) for host, theirs in nodes.items()]

    def test_a_host_all_of_whose_ranks_are_slow_is_named(self) -> None:
        assert self.found([1] * 4 + [SLOW] * 4) == [("node1", [4, 5, 6, 7])]
        assert self.found([1] * 4 + [SLOW] * 4 + [1] * 8) == [("node1", [4, 5, 6, 7])]

    def test_several_such_hosts_are_named_slowest_first(self) -> None:
        assert self.found([SLOW] * 4 + [1] * 8 + [1.4] * 4) == [("node3", [12, 13, 14, 15]), ("node0", [0, 1, 2, 3])]

    def test_a_slow_gpu_elsewhere_does_not_hide_it(self) -> None:
        assert self.found([1, 1, SLOW, 1] + [SLOW] * 4 + [1] * 4) == [("node1", [4, 5, 6, 7])]

    @pytest.mark.parametrize(
        ("factors", "per_host"),
        [
            ([1] * 5 + [SLOW] * 3, 4),
            ([1] * 7 + [SLOW], 4),
            ([1] * 8, 4),
            ([1, 1, 1, SLOW], 1),
            ([1] * 6 + [SLOW] * 2, 8),
        ],
        ids=["three of four", "one", "none", "one rank a host", "the only host"],
    )
    def test_a_host_is_not_to_blame_for_some_of_its_ranks(self, factors: list[float], per_host: int) -> None:
        assert self.found(factors, per_host) == []

    def test_its_evidence_counts_its_ranks(self) -> None:
        measured = rounds_of(*[[0.1] * 4 + [0.131, 0.132, 0.129, 0.131]] * ROUNDS, per_host=4)
        (theirs,) = slow_nodes(find_stragglers(measured), measured).values()
        node = node_culprit(theirs)
        assert node.slowdown == pytest.approx(1.31)
        assert node.evidence == "all 4 ranks slow, 1.31× the median of their peers"

    def test_nodes_that_are_all_slow_by_somebody_elses_word_are_not_slow(self) -> None:
        """There is nobody left whom they are slower than."""
        measured = rounds_of(*[[0.1] * 8] * ROUNDS, per_host=4)
        (slow,) = find_stragglers(rounds_of(*[[0.1] * 7 + [0.2]] * ROUNDS))
        everybody = [
            replace(slow, rank=rank, culprit=replace(slow.culprit, host=f"node{rank // 4}")) for rank in range(8)
        ]
        assert slow_nodes(everybody, measured) == {}


class TestRanksSlowerThanTheirSlowNode:
    @staticmethod
    def found(node: Sequence[float], seed: int = 7) -> list[int]:
        measured = noisy([*([1.0] * len(node) * 3), *node], GPU_NOISE, seed, per_host=len(node))
        (slow,) = slow_nodes(find_stragglers(measured), measured).values()
        return ranks(slower_than_their_node(slow, measured, LIMIT))

    @pytest.mark.parametrize("ratio", [1.07, 1.5])
    @pytest.mark.parametrize("per_host", [2, 4, 8])
    def test_one_that_is_slower_by_more_than_the_gap_is_named(self, per_host: int, ratio: float) -> None:
        assert self.found([SLOW] * (per_host - 1) + [SLOW * ratio]) == [4 * per_host - 1]

    def test_two_are(self) -> None:
        assert self.found([SLOW] * 6 + [2 * SLOW, 3 * SLOW]) == [31, 30]

    @pytest.mark.parametrize("ratio", [1.0, 1.03])
    def test_one_that_is_not_is_part_of_the_node(self, ratio: float) -> None:
        assert self.found([SLOW] * 7 + [SLOW * ratio]) == []

    def test_ordinary_spread_names_hardly_anybody(self) -> None:
        """GPUs that differ by 1.5 %, as the rule for single stragglers was made for: less than 0.8 % of 300 nodes."""
        source = random.Random(20261123)
        nodes = [[SLOW * (1 + source.gauss(0, 0.015)) for _ in range(8)] for _ in range(300)]
        assert sum(bool(self.found(node, seed)) for seed, node in enumerate(nodes)) <= 2


@given(FACTORS, st.integers(0, 999))
def test_a_wider_gap_names_nobody_else(factors: list[float], seed: int) -> None:
    measured = noisy(factors, 0.01, seed)
    assert set(ranks(find_stragglers(measured, 0.10))) <= set(ranks(find_stragglers(measured)))
