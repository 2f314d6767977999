"""An error says where, what was found, what was expected and what to do."""

from __future__ import annotations

import pickle

from pytest_ddpscale import errors
from pytest_ddpscale.errors import BadInput, DdpscaleError, OptionError
from tests.rows import rows

LEAVES = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, DdpscaleError)]


def test_the_four_parts_are_kept() -> None:
    error = OptionError("--ddp-rounds", "found '4'", "at least 5", "Ask for more.")
    assert (error.where, error.found, error.expected, error.action) == error.args


@rows(
    ("parts", "text"),
    [
        (("--x", "found '4'", "at least 5", "Ask for more."), "--x: found '4'; expected at least 5. Ask for more."),
        (("here", "nothing"), "here: nothing."),
        (("here", "nothing", "something"), "here: nothing; expected something."),
        (("here", "nothing", "", "Look again."), "here: nothing. Look again."),
        (("here", "found \x1b[31m\nred"), "here: found [31m\n  red."),
    ],
)
def test_parts_are_sentences_and_may_be_left_out(parts: tuple[str, ...], text: str) -> None:
    assert str(DdpscaleError(*parts)) == text


@rows("leaf", LEAVES)
def test_all_but_a_dead_gang_are_mistakes_of_the_user_and_survive_being_copied(leaf: type[DdpscaleError]) -> None:
    assert issubclass(leaf, BadInput) == (leaf.__name__ not in ("GangError", "DdpscaleError"))
    error = leaf("here", "nothing", "something", "Look again.")
    copied = pickle.loads(pickle.dumps(error))
    assert (type(copied), str(copied)) == (leaf, str(error))
