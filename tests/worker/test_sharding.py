"""Ranks share the images of each epoch, all of them and none twice."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ddpscale.worker.sharding import Shard, ShardBatches


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
