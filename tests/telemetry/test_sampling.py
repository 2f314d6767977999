"""The sampler's side of the conversation: every window is answered, and it ends when it is alone."""

from __future__ import annotations

import json
import os

import pytest

from pytest_ddpscale.telemetry import sampling
from pytest_ddpscale.telemetry.sampling import Sampling, serve

# Without GPUs to watch it makes no difference whether this machine has any.
NOBODY = Sampling([])


def test_every_window_is_answered_in_the_order_of_the_question() -> None:
    answer = NOBODY.answer(b'[["GPU-b", 2, 3], ["GPU-a", 1, 2]]')
    assert answer is not None
    assert [one.started_unix_s for one in answer] == [2, 1]


def test_a_mark_has_no_answer() -> None:
    assert NOBODY.answer(b"null") is None


CUT = b'[["GPU-a", %d, 9]]\n'


@pytest.mark.parametrize("read_bytes", [1, 50, 65536])
def test_it_answers_line_by_line_until_nobody_asks(read_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "_READ_BYTES", read_bytes)
    answers: list[bytes] = []
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as pipe:
        pipe.write(CUT % 1 + b"null\n" + CUT % 2 + b'[["unfinished')
    serve(NOBODY, 0.01, reading, answers.append)
    os.close(reading)
    assert all(line.endswith(b"\n") for line in answers)
    assert [one["started_unix_s"] for line in answers for one in json.loads(line)] == [1, 2]


def test_it_ends_when_nobody_listens() -> None:
    heard = []

    def refuse(line: bytes) -> None:
        heard.append(line)
        raise BrokenPipeError

    reading, writing = os.pipe()
    with os.fdopen(writing, "wb", buffering=0) as pipe, os.fdopen(reading, "rb", buffering=0):
        pipe.write(CUT % 1)  # and the pipe stays open
        serve(NOBODY, 60, reading, refuse)
    assert len(heard) == 1
