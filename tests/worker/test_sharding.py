"""Ranks share the images of each epoch, all of them and none twice, and it shows where they do not."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed import HashStore

from pytest_ddpscale.worker.sharding import Digest, EpochCheck, Shard, ShardBatches, digest_of


def batches_of(
    images: int, ranks: int, batch: int, *, drop_last: bool = True, shuffle: bool = True
) -> list[ShardBatches]:
    """Of each rank."""
    return [
        ShardBatches(range(images), Shard(rank, ranks), batch, drop_last=drop_last, shuffle=shuffle, seed=7)
        for rank in range(ranks)
    ]


def epoch_of(one: ShardBatches, epoch: int) -> list[list[int]]:
    one.first, one.count = epoch * one.per_epoch, one.per_epoch
    return list(one)


def digest(ranks: list[ShardBatches], epoch: int) -> Digest:
    """Of what all of them load."""
    found = Digest()
    for one in ranks:
        for indices in epoch_of(one, epoch):
            found = found.and_of(digest_of(np.array(indices)))
    return found


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 90), st.integers(1, 7), st.integers(1, 9), st.integers(0, 3))
def test_images_that_do_not_divide_are_left_out_and_the_others_are_there_once(
    images: int, ranks: int, batch: int, epoch: int
) -> None:
    shards = batches_of(images, ranks, batch)
    of_ranks = [[index for indices in epoch_of(one, epoch) for index in indices] for one in shards]
    together = [index for of_rank in of_ranks for index in of_rank]
    assert len(together) == len(set(together)) == images // ranks // batch * batch * ranks
    assert {len(of_rank) for of_rank in of_ranks} == {images // ranks // batch * batch}
    if together:
        assert digest(shards, epoch) == shards[0].expected(epoch)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 90), st.integers(1, 7), st.integers(1, 9))
def test_with_padding_each_image_is_there_and_only_as_many_twice_as_ranks_lack(
    images: int, ranks: int, batch: int
) -> None:
    shards = batches_of(images, ranks, batch, drop_last=False, shuffle=False)
    times = Counter(index for one in shards for indices in epoch_of(one, 0) for index in indices)
    assert set(times) == set(range(images))
    of_rank = math.ceil(images / ranks)
    assert sum(times.values()) == of_rank * ranks
    assert {one.per_epoch for one in shards} == {math.ceil(of_rank / batch)}
    assert digest(shards, 0) == shards[0].expected(0)


def test_each_epoch_has_an_order_of_its_own_and_leaves_out_others() -> None:
    (one,) = batches_of(23, 1, 4)
    epochs = [epoch_of(one, number) for number in range(5)]
    assert all(former != latter for former, latter in pairwise(epochs))
    left_out = [set(range(23)) - {index for indices in epoch for index in indices} for epoch in epochs]
    assert len({frozenset(some) for some in left_out}) > 1
    assert epoch_of(one, 2) == epochs[2], "and the same again"


def test_the_published_log_of_32_ranks_is_what_as_many_images_come_to() -> None:
    """Torres, "Supercomputing for AI", chapter 12: "Total training samples (batches): 384 (3)"."""
    one = ShardBatches(range(12_288), Shard(31, 32), 128, drop_last=True, shuffle=True, seed=0)
    assert (one.per_epoch, sum(map(len, epoch_of(one, 0)))) == (3, 384)


def test_the_last_to_arrive_hears_what_all_have_loaded_and_the_store_forgets_it() -> None:
    store = HashStore()
    checks = [EpochCheck(store, "arm", 3) for _ in range(3)]
    for epoch in range(2):
        assert checks[0].total(epoch, Digest(4, 10)) is None
        assert checks[2].total(epoch, Digest(4, 30)) is None
        assert checks[1].total(epoch, Digest(3, 2)) == Digest(11, 42)
    assert store.num_keys() == 0


class Slow(HashStore):
    """Another rank says all it has to say between the first and the second word of this one."""

    def __init__(self, between: Callable[[], object]) -> None:
        super().__init__()
        self._between = between
        self._words = 0

    def add(self, key: str, number: int) -> int:
        found = super().add(key, number)
        self._words += 1
        if self._words == 1:
            self._between()
        return found


def test_the_last_to_arrive_hears_also_what_others_said_between_its_words() -> None:
    store: Slow = Slow(lambda: EpochCheck(store, "arm", 2).total(0, Digest(16, 5)))
    assert EpochCheck(store, "arm", 2).total(0, Digest(16, 7)) == Digest(32, 12)


@pytest.mark.parametrize("wrong", [(0, 0, 2), (0, 1, 1)], ids=str)
def test_ranks_with_one_shard_do_not_come_to_what_is_expected(wrong: tuple[int, ...]) -> None:
    """As many images as there should be, and others."""
    shards = [ShardBatches(range(24), Shard(rank, 3), 4, drop_last=True, shuffle=True, seed=7) for rank in wrong]
    found, expected = digest(shards, 1), shards[0].expected(1)
    assert found.images == expected.images == 24
    assert found.hashes != expected.hashes


def test_the_largest_sum_fits_what_a_store_adds() -> None:
    assert all(digest_of(np.array([index])).hashes < 2**32 for index in range(1000))
