"""What supervisor and agents say is told from everything else, and fits what Slurm forwards in one piece."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from pytest_ddpscale.node.protocol import (
    HEARTBEAT_S,
    MARK,
    MOST_BYTES,
    SILENCE_S,
    Failed,
    FileBytes,
    Heard,
    Heartbeat,
    Joining,
    RankSeen,
    Report,
    ResolveAddress,
    Start,
    Stop,
    decode_news,
    decode_order,
    encode_news,
    encode_order,
)
from pytest_ddpscale.run.rank_folder import WantedArms
from tests.builders.launches import task
from tests.rows import rows

TEXT = st.text(max_size=3000) | st.sampled_from(
    ["ä" * 5000, "\N{COLLISION SYMBOL}" * 5000, '"\\' * 5000, "\x00" * 5000]
)
WHERE: dict[str, Any] = {"node": 1, "host": "n2"}
RANKS = st.builds(RankSeen, node=st.integers(0, 2**31), host=TEXT, local_rank=st.integers(0, 9), phase=TEXT)
FAILURES = st.builds(Failed, node=st.integers(0, 2**31), host=TEXT, local_rank=st.integers(0, 9), message=TEXT)
BYTES = st.builds(FileBytes, node=st.just(1), host=st.just("n2"), file=st.just("records"), data=st.binary(min_size=1))


def heard(lines: list[bytes]) -> list[Heard]:
    """What a supervisor makes of lines."""
    joining = Joining()
    news = [found for line in lines if (found := decode_news(line)) is not None]
    return [whole for one in news if (whole := joining.whole(one)) is not None]


@given(RANKS | FAILURES | BYTES)
@example(FileBytes(node=1, host="n2", file="records", data=bytes(range(256)) * 5000))
def test_everything_comes_as_it_was_said(news: Heard) -> None:
    assert heard(list(encode_news(news))) == [news]


@given(
    st.builds(Failed, node=st.integers(0, 2**31), host=st.just("n" * 64), local_rank=st.just(1), message=TEXT) | BYTES
)
def test_a_line_is_never_longer_than_slurm_forwards_in_one_piece(news: Heard) -> None:
    for line in encode_news(news):
        assert line.endswith(b"\n")
        assert line.count(b"\n") == 1
        assert len(line) <= MOST_BYTES


def test_pieces_of_several_nodes_may_come_between_each_other() -> None:
    both = [FileBytes(node=node, host=f"n{node}", file="records", data=bytes(2000 * [node, 7, 9])) for node in (0, 1)]
    first, second = (list(encode_news(one)) for one in both)
    mixed = [line for pair in zip(first, second, strict=True) for line in pair]
    assert heard(mixed) == both


def test_what_is_not_all_there_is_nothing_and_spoils_nothing() -> None:
    news = Failed(**WHERE, local_rank=0, message="".join(map(str, range(2000))))
    lines = list(encode_news(news))
    assert len(lines) > 2
    assert heard(lines[:-1]) == []
    assert heard(lines[1:]) == []
    assert heard([lines[0], lines[2]]) == []
    assert heard(lines[:-1] + lines) == [news]
    assert heard([lines[0], lines[0], *lines[1:]]) == [news]


@rows("data", ["", "AAAA", "%%%%", "eJyrVkosSi5RslIwrgUAF4oDOg=="])
def test_pieces_that_no_agent_cuts_are_no_message(data: str) -> None:
    piece = {"say": "piece", **WHERE, "part": 0, "parts": 1, "data": data}
    assert heard([MARK + json.dumps(piece).encode()]) == []


@rows(
    "order",
    [
        task(environment={"NCCL_IB_HCA": "mlx5 \n\"'"}), Start("10.0.0.1:20000", 1.5), Start(),
        ResolveAddress("n2", ("10.0.0.2",)), WantedArms("weak/r", 3, ("alone",)), Heartbeat(), Stop(failed=True),
    ],
)  # fmt: skip
def test_orders_come_as_they_were_said(order: Any) -> None:
    line = encode_order(order)
    assert line.count(b"\n") == 1
    assert decode_order(line) == order


@rows(
    "message",
    [
        {"say": "rank"},
        {"say": "rank", "node": 0, "host": "n1"},
        {"say": "rank", "node": 0, "host": "n1", "local_rank": "0"},
        {"say": "rank", "node": 0, "host": "n1", "local_rank": 0, "steps": None},
        {"say": "rank", "node": 0, "host": "n1", "local_rank": 0, "mood": "good"},
        {"say": "gone", "node": 0, "host": "n1", "local_rank": 0, "phase": 7},
        {"say": "up", "node": 0, "host": "n1", "words": {"local_rank": 0, "text": "x"}},
        {"say": "up", "node": "0", "host": "n1", "version": "1"},
        {"say": "up", "node": True, "host": "n1", "version": "1"},
        {"say": "up", "node": 0, "host": None, "version": "1"},
        {"say": "up", "node": 0, "host": "n1", "exits": [[0, -9]]},
        {"say": "up", "node": 0, "host": "n1", "exits": [[0, "x", 1, True]]},
        {"say": "up", "node": 0, "host": "n1", "exits": 3},
        {"say": "up", "node": 0, "host": "n1", "oom_kills": "many"},
        {"say": "file", "node": 0, "host": "n1", "file": "x", "data": "x"},
        {"say": 1},
    ],
)
def test_a_message_that_no_agent_makes_is_none(message: dict[str, Any]) -> None:
    assert decode_news(MARK + json.dumps(message).encode()) is None


def test_agents_of_another_version_can_say_which() -> None:
    message = {"say": "up", "node": 0, "host": "n1", "version": "9", "mood": "good"}
    assert decode_news(MARK + json.dumps(message).encode()) == Report(node=0, host="n1", version="9")


@given(st.binary())
@example(MARK + b"[" * 100_000)
@example(MARK + b'{"say": "up", "node": NaN, "host": "n"}')
@example(MARK + b'{"say": "up", "node": 1e999, "host": "n"}')
@example(MARK + b'{"say": "up", "node": ' + b"9" * 5000 + b', "host": "n"}')
@example(MARK * 3)
def test_garbage_is_no_message(line: bytes) -> None:
    for decode in (decode_news, decode_order):
        assert decode(line) is None
        assert decode(MARK + line) is None or b'"say"' in line


@rows("cut", range(1, 60))
def test_half_a_line_is_no_message(cut: int) -> None:
    [line] = encode_news(RankSeen(**WHERE, local_rank=0, rank=3, phase="warm-up"))
    assert decode_news(line[:cut]) is None


def test_what_stands_before_the_mark_is_passed_over() -> None:
    [line] = encode_news(Report(**WHERE))
    assert decode_news(b"3: module: loaded" + line) == Report(**WHERE)


def test_several_words_may_be_missed_before_a_side_is_taken_for_lost() -> None:
    assert SILENCE_S >= 5 * HEARTBEAT_S
