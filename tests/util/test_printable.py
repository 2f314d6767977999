"""Text of others cannot steer a terminal, add lines to a report or show itself in another order."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.util.printable import printable, printable_json, printable_line

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
        ("n1\nACCEPTED", r"n1\nACCEPTED"),
        ("100 %\rFAILED", r"100 %\rFAILED"),
        ("\x9b31m", r"\x9b31m"),
        ("a\u202ecba", r"a\u202ecba"),
        ("n\u200b1", r"n\u200b1"),
        ("\0", r"\x00"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("nöde-1, 5\u202f% of 2\u00a0×", "nöde-1, 5\u202f% of 2\u00a0×"),
    ],
)
def test_what_is_no_character_to_be_read_is_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_only_what_has_lines_keeps_them() -> None:
    assert printable("one\r\n\ttwo\r\x1b", has_lines=True) == "one\n\ttwo\\r\\x1b"


@given(TEXT)
def test_nothing_is_left_to_be_escaped(text: str) -> None:
    shown = printable(text)
    assert printable(shown) == shown
    assert not set(shown) & {"\n", "\r", "\x1b", "\x9b", "\u202e", "\u2066", "\u2028"}


def test_json_is_escaped_by_what_each_text_is() -> None:
    said = {"hosts": ["n\n1"], "message": "rank 0\nstack\x1b[A", "left_out": {"n\r2": "no\nroute"}, "round": 3}
    assert printable_json(said) == {
        "hosts": [r"n\n1"], "message": "rank 0\nstack\\x1b[A", "left_out": {r"n\r2": "no\nroute"}, "round": 3,
    }  # fmt: skip


@given(st.dictionaries(TEXT, TEXT | st.integers() | st.floats(allow_nan=False, allow_infinity=False), max_size=5))
def test_a_line_changes_in_its_texts_only(said: dict[str, Any]) -> None:
    line = json.dumps(said).encode()
    shown = printable_line(line)
    assert json.loads(shown) == printable_json(said)
    assert printable_line(shown) == shown


@pytest.mark.parametrize("line", [b"\\", b"{\xff", b'{"a": "\\ud800"}', b"[" * 100_000 + b"\\", b""])
def test_what_is_no_json_is_left_to_whoever_reads_it(line: bytes) -> None:
    assert printable_line(line) == line
