"""Text of others cannot steer a terminal, add lines to a report or show itself in another order."""

from __future__ import annotations

from pytest_ddpscale.errors import GangError
from pytest_ddpscale.util.printable import one_line, several_lines
from tests.rows import rows


@rows(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "�[31mred�[0m"),
        ("n1\nACCEPTED", "n1 ACCEPTED"),
        ("100 %\rFAILED", "100 % FAILED"),
        ("\x9b31m", "�31m"),
        ("a\u202ecba", "a�cba"),
        ("n\u200b1", "n�1"),
        ("\0", "�"),
        ("\x1b]0;title\x07", "�]0;title�"),
        ("\udcff", "�"),
        ("nöde-1, 5 % of 2 ×", "nöde-1, 5 % of 2 ×"),
    ],
)
def test_what_is_no_character_to_be_read_is_replaced(text: str, shown: str) -> None:
    assert one_line(text) == shown


def test_a_text_of_several_lines_keeps_them_and_its_columns() -> None:
    assert several_lines("one\r\n\ttwo \x1b\n") == "one\n        two"
    assert str(GangError("n1", "died\nACCEPTED\x1b")) == "n1: died\n  ACCEPTED."
