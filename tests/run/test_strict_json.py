"""JSON that every parser reads."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.run.strict_json import column, each, parse_strict_json, strict_json
from tests.rows import rows

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)


@given(JSON_VALUES)
def test_strict_json_is_one_line_that_reads_back_the_same(value: Any) -> None:
    text = strict_json(value)
    assert "\n" not in text
    assert parse_strict_json(text) == value == json.loads(text)


@rows("number", [math.nan, math.inf, -math.inf])
def test_what_json_has_no_word_for_is_not_written(number: float) -> None:
    with pytest.raises(ValueError):
        strict_json({"value": [number]})


@rows("word", ["NaN", "Infinity", "-Infinity"])
def test_what_json_has_no_word_for_is_not_read(word: str) -> None:
    with pytest.raises(ValueError, match=f"{word} is not JSON"):
        parse_strict_json(f'{{"value": [{word}]}}')


@given(st.lists(st.integers(0, 2) | st.none(), min_size=1, max_size=5))
def test_a_column_has_what_it_was_made_of(values: list[int | None]) -> None:
    assert each(column(values), len(values)) == tuple(values)
