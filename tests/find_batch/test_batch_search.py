"""Which batches are tried."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.find_batch.find_max_batch import MULTIPLE, largest_fitting
from tests.rows import rows

multiples = st.integers(1, 300).map(lambda number: MULTIPLE * number)


def tried(largest: int, least: int, most: int) -> tuple[int | None, list[int]]:
    """What is found, and what was tried for it, where batches up to `largest` fit."""
    asked: list[int] = []

    def fits(batch: int) -> bool:
        asked.append(batch)
        return batch <= largest

    return largest_fitting(fits, least, most), asked


@rows(("largest", "least", "most", "asked"), [
    (83, 8, 1024, [8, 16, 32, 64, 128, 96, 80, 88]), (64, 8, 1024, [8, 16, 32, 64, 128, 96, 80, 72]),
    (8, 8, 1024, [8, 16]), (4, 8, 1024, [8]), (9999, 8, 24, [8, 16, 24]), (30, 24, 24, [24]),
    (100, 24, 1024, [24, 48, 96, 192, 144, 120, 104]),
])  # fmt: skip
def test_batches_are_doubled_and_then_halved_between(largest: int, least: int, most: int, asked: list[int]) -> None:
    assert tried(largest, least, most)[1] == asked


@given(largest=st.integers(0, 2500), least=multiples, most=multiples)
def test_the_largest_multiple_of_eight_is_found(largest: int, least: int, most: int) -> None:
    most = max(least, most)
    found, asked = tried(largest, least, most)
    assert len(set(asked)) == len(asked)
    assert all(batch % MULTIPLE == 0 and least <= batch <= most for batch in asked)
    if found is None:
        assert largest < least
        return
    assert found <= largest
    assert found == most or found + MULTIPLE in asked  # so that the next one was seen not to fit
