"""An error says where, what was found, what was expected and what to do."""

from __future__ import annotations

import pickle

from pytest_ddpscale.errors import (
    BadInput,
    DdpscaleError,
    GangError,
    HistoryError,
    OptionError,
    ResultFileError,
    RunDirectoryError,
    SkuError,
    ThresholdsError,
    WritingError,
)
from tests.rows import rows

LEAVES = (ThresholdsError, SkuError, OptionError, RunDirectoryError, WritingError, ResultFileError, HistoryError)


def test_all_four_parts_are_sentences() -> None:
    error = OptionError("--ddp-rounds", "found '4'", "at least 5", "Ask for more.")
    assert str(error) == "--ddp-rounds: found '4'; expected at least 5. Ask for more."
    assert (error.where, error.found, error.expected, error.action) == (
        "--ddp-rounds", "found '4'", "at least 5", "Ask for more."
    )  # fmt: skip


@rows(
    ("parts", "text"),
    [
        (("here", "nothing"), "here: nothing."),
        (("here", "nothing", "something"), "here: nothing; expected something."),
        (("here", "nothing", "", "Look again."), "here: nothing. Look again."),
    ],
)
def test_parts_may_be_left_out(parts: tuple[str, ...], text: str) -> None:
    assert str(DdpscaleError(*parts)) == text


@rows("leaf", LEAVES)
def test_a_users_mistake_is_bad_input(leaf: type[DdpscaleError]) -> None:
    assert issubclass(leaf, BadInput)
    assert issubclass(leaf, DdpscaleError)


def test_a_dead_gang_is_no_mistake_of_the_user() -> None:
    assert not issubclass(GangError, BadInput)
    assert issubclass(GangError, DdpscaleError)


@rows("leaf", [*LEAVES, GangError])
def test_an_error_survives_being_copied(leaf: type[DdpscaleError]) -> None:
    error = leaf("here", "nothing", "something", "Look again.")
    copied = pickle.loads(pickle.dumps(error))
    assert type(copied) is leaf
    assert str(copied) == str(error)
