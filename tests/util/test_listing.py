"""What a list looks like in a sentence."""

from __future__ import annotations

from pytest_ddpscale.util.listing import first_few
from tests.rows import rows


@rows(
    ("number", "expected"),
    [(0, ""), (1, "n0"), (3, "n0, n1, n2"), (4, "n0, n1, n2 and 1 more"), (9, "n0, n1, n2 and 6 more")],
)
def test_three_are_shown_and_the_others_counted(number: int, expected: str) -> None:
    assert first_few([f"n{index}" for index in range(number)]) == expected


def test_more_may_be_shown_and_parted_otherwise() -> None:
    assert first_few(["a, b", "c", "d"], most=2, separator="; ") == "a, b; c and 1 more"


def test_not_all_of_them_have_to_be_made() -> None:
    assert first_few(["a", "b", "c"], count=10**9) == "a, b, c and 999999997 more"
    assert first_few(["a"], count=3) == "a and 2 more"
    assert first_few([], count=3) == ""
