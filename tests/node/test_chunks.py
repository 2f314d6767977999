"""What is too long for one message comes in pieces, and together again, or not at all."""

from __future__ import annotations

import base64
import random
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.node.chunks import chunks_of, joined
from pytest_ddpscale.node.protocol import MOST_BYTES, decode, encode

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
)


@given(JSON)
def test_pieces_make_what_was_cut(data: Any) -> None:
    assert joined(chunks_of(data)) == data


def test_every_piece_passes_through_a_message_as_it_is() -> None:
    noise = random.Random(0)
    data = {"noise": [noise.random() for _ in range(1000)]}
    pieces = chunks_of(data)
    assert len(pieces) > 10
    heard = []
    for part, piece in enumerate(pieces):
        host = "h" * 253  # as long as a name can be
        line = encode({"say": "survey", "part": part, "parts": len(pieces), "data": piece, "node": 999, "host": host})
        assert len(line) <= MOST_BYTES
        message = decode(line.decode("ascii"))
        assert message is not None
        heard.append(message["data"])
    assert joined(heard) == data


BOMB = base64.b64encode(zlib.compress(b"[" + b" " * 20_000_000 + b"]")).decode()


@pytest.mark.parametrize(
    "pieces",
    [[], [""], ["ä"], ["AAAA"], chunks_of(list(range(999)))[:-1], chunks_of(list(range(999)))[::-1], [BOMB],
     [base64.b64encode(zlib.compress(b"\xff")).decode()], [base64.b64encode(zlib.compress(b"NaN")).decode()]],
)  # fmt: skip
def test_anything_else_is_refused(pieces: list[str]) -> None:
    with pytest.raises(ValueError):
        joined(pieces)
