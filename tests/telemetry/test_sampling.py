"""The sampler's side of the conversation: what it cannot understand is answered, and it ends when it is alone."""

from __future__ import annotations

import json
import os

import pytest

from pytest_ddpscale.telemetry.sampling import Sampling, serve

# Without GPUs to watch it makes no difference whether this machine has any.
NOBODY = Sampling([])


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"cut",
        b"[]",
        b"{}",
        b'{"ask": "cut"}',
        b'{"ask": "cut", "windows": [["GPU-a", 1]]}',
        b'{"ask": "cut", "windows": [["GPU-a", "x", 2]]}',
        b'{"ask": "tell"}',
        b"\xff",
    ],
)
def test_what_makes_no_sense_is_answered_by_a_problem(line: bytes) -> None:
    answer = NOBODY.answer(line)
    assert answer is not None
    assert list(answer) == ["problem"]


def test_every_window_is_answered_in_the_order_of_the_question() -> None:
    answer = NOBODY.answer(b'{"ask": "cut", "windows": [["GPU-b", 2, 3], ["GPU-a", 1, 2]]}')
    assert answer is not None
    assert [one["started_unix_s"] for one in answer["devices"]] == [2, 1]


def test_a_mark_has_no_answer() -> None:
    assert NOBODY.answer(b'{"ask": "mark"}') is None


class Conversation:
    """Runs `serve` over a pipe that holds what is asked, and keeps what is answered."""

    def __init__(self, asked: bytes, read_bytes: int = 65536) -> None:
        self.begins: list[float] = []
        reading, writing = os.pipe()
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(asked)
        with os.fdopen(reading, "rb", buffering=0) as questions:
            serve(NOBODY, 0.01, reading, lambda: questions.read(read_bytes), self._take)

    def _take(self, line: bytes) -> None:
        assert line.endswith(b"\n")
        self.begins += [one["started_unix_s"] for one in json.loads(line)["devices"]]


CUT = b'{"ask": "cut", "windows": [["GPU-a", %d, 9]]}\n'


@pytest.mark.parametrize("read_bytes", [1, 50, 65536])
def test_it_answers_line_by_line_until_nobody_asks(read_bytes: int) -> None:
    talk = Conversation(CUT % 1 + b'{"ask": "mark"}\n' + CUT % 2 + b'{"ask": "unfinished', read_bytes)
    assert talk.begins == [1, 2]


def test_it_stops_when_told() -> None:
    assert Conversation(CUT % 1 + b'{"ask": "stop"}\n' + CUT % 2).begins == [1]


def test_it_ends_when_nobody_listens() -> None:
    heard = []

    def refuse(line: bytes) -> None:
        heard.append(line)
        raise BrokenPipeError

    reading, writing = os.pipe()
    with os.fdopen(writing, "wb", buffering=0) as pipe, os.fdopen(reading, "rb", buffering=0) as questions:
        pipe.write(CUT % 1)  # and the pipe stays open
        serve(NOBODY, 60, reading, lambda: questions.read(65536), refuse)
    assert len(heard) == 1
