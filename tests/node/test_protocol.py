"""What supervisor and agents say is told from everything else, and fits what Slurm forwards in one piece."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_ddpscale.node.protocol import MARK, MOST_BYTES, SILENCE_S, STAY_EVERY_S, decode, encode

SHORT = st.text(max_size=8)
LONG = st.text(max_size=3000) | st.sampled_from(
    ["ä" * 5000, "\N{COLLISION SYMBOL}" * 5000, '"\\' * 5000, "\x00" * 5000]
)
NUMBER = st.integers(0, 2**31)
PLACE = {"local_rank": NUMBER, "rank": st.integers(-1, 2**20), "node": NUMBER}
NAMES = ("phase", "study", "arm", "host", "state")


def messages(text: st.SearchStrategy[str]) -> st.SearchStrategy[dict[str, Any]]:
    """Of a rank, and of a rank's failure."""
    names = dict.fromkeys(NAMES, text)
    counts = dict.fromkeys(("pid", "entered", "steps", "round"), NUMBER)
    rank = st.fixed_dictionaries({"say": st.just("rank"), **PLACE, **names, **counts})
    report = {"type": text, "message": text, "unix_s": st.floats(0, 1e10)}
    return rank | st.fixed_dictionaries({"say": st.just("failed"), **PLACE, **names, **report})


@given(messages(SHORT))
def test_a_short_message_comes_as_it_was_said(message: dict[str, Any]) -> None:
    line = encode(message)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert decode(line.decode("ascii")) == message


@given(messages(LONG))
@example({"say": "failed", **dict.fromkeys((*NAMES, "type", "message"), "\N{COLLISION SYMBOL}" * 700)})
def test_a_message_is_never_longer_than_slurm_forwards_in_one_piece(message: dict[str, Any]) -> None:
    line = encode(message)
    assert len(line) <= MOST_BYTES
    found = decode(line.decode("ascii"))
    assert found is not None
    for name, value in message.items():
        if not isinstance(value, str):
            assert found[name] == value
        elif found[name] != value:
            assert value.startswith(found[name].removesuffix("…"))
            assert found[name].endswith("…")


def test_a_long_text_keeps_as_much_as_fits() -> None:
    found = decode(encode({"say": "words", "text": "x" * 5000}).decode())
    assert found == {"say": "words", "text": "x" * 599 + "…"}


@given(st.text())
@example(MARK + "[" * 100_000)
@example(MARK + '{"say": 1}')
@example(MARK + '{"say": "x", "n": 1e999}')
@example(MARK + '{"say": "x", "n": ' + "9" * 5000 + "}")
@example(MARK * 3)
def test_garbage_is_no_message(text: str) -> None:
    assert decode(text) is None
    assert decode(MARK + text) is None or '"say"' in text


@pytest.mark.parametrize("cut", range(1, 60))
def test_half_a_line_is_no_message(cut: int) -> None:
    line = encode({"say": "rank", "rank": 3, "host": "n1", "phase": "warm-up"}).decode()
    assert decode(line[:cut]) is None


def test_what_stands_before_the_mark_is_passed_over() -> None:
    assert decode("3: module: loaded" + encode({"say": "beat"}).decode()) == {"say": "beat"}


def test_several_words_may_be_missed_before_a_side_is_taken_for_lost() -> None:
    assert SILENCE_S >= 5 * STAY_EVERY_S
