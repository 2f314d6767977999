"""What is known of a gang follows from what its agents say."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import to_builtins

from pytest_ddpscale.launch.gang_failure import describe, describe_standstill
from pytest_ddpscale.launch.gang_state import GangState
from pytest_ddpscale.node.protocol import MARK, decode_news
from pytest_ddpscale.run.survey_record import Survey, surveys_of
from tests.builders.launches import News


@pytest.fixture
def news() -> News:
    return News("n1", "n2")


def test_nodes_come_up_with_their_version(news: News) -> None:
    assert {index: node.host for index, node in news.roll.nodes.items()} == {0: "n1", 1: "n2"}
    assert [node.version for node in news.roll.in_order] == ["1", "1"]


def test_what_a_node_reported_stays_known(news: News) -> None:
    news.say("endpoint", 0, endpoint="10.0.0.1:20000")
    news.say("beat", 0)
    news.exit(0, code=0, was_ended=True)
    first = news.roll.nodes[0]
    assert (first.version, first.endpoint, first.is_last, first.was_ended) == ("1", "10.0.0.1:20000", True, True)


def test_a_rank_is_as_it_was_seen_last(news: News) -> None:
    news.rank(3, steps=1)
    news.rank(3, steps=2, state="R")
    found = news.roll.ranks[1, 1]
    assert (found.name, found.host, found.pid, found.progress, found.state) == ("rank 3 on n2", "n2", 103, (12, 2), "R")
    news.gone(3)
    assert news.roll.ranks[1, 1].state == ""


def test_what_moves_is_what_a_rank_does_and_not_that_it_lives() -> None:
    news = News("n1")
    assert news.roll.moved_s is None
    says: list[tuple[dict[str, Any], float]] = [
        ({"steps": 1}, 1.0),
        ({"steps": 1, "state": "R"}, 2.0),
        ({"steps": 2}, 3.0),
        ({"entered": 13}, 4.0),
    ]
    moved: list[float | None] = []
    for changes, now_s in says:
        news.say("rank", 0, now_s, **news.status(0, **changes))
        moved.append(news.roll.moved_s)
    assert moved == [1.0, 1.0, 3.0, 4.0]


@pytest.mark.parametrize("trouble", ["failed", "gone", "exit"])
def test_trouble_is_a_failure_a_rank_that_is_gone_or_an_exit_code(news: News, trouble: str) -> None:
    news.rank(0)
    news.exit(1, code=0)
    assert not news.roll.has_trouble
    {"failed": lambda: news.failed(0, "E", "x"), "gone": lambda: news.gone(0), "exit": lambda: news.exit(0)}[trouble]()
    assert news.roll.has_trouble


def test_a_node_is_silent_after_its_time_unless_it_said_goodbye(news: News) -> None:
    assert news.roll.silent_hosts(30.0, 30.0) == []
    assert news.roll.silent_hosts(30.1, 30.0) == ["n1", "n2"]
    news.exit(0, code=0)
    assert news.roll.silent_hosts(30.1, 30.0) == ["n2"]
    news.roll.expect_beats(20.0)
    assert news.roll.silent_hosts(30.1, 30.0) == []
    news.say("beat", 1, 25.0)
    assert news.roll.silent_hosts(54.0, 30.0) == []


VALUES = st.none() | st.booleans() | st.integers(-2, 3) | st.text(max_size=3) | st.lists(st.integers(0, 3), max_size=4)
NAMES = st.sampled_from(
    ["node", "host", "local_rank", "rank", "pid", "state", "phase", "entered", "steps", "exits", "code", "is_last",
     "version", "oom_kills", "ended_pids", "endpoint", "study", "round", "type", "message"]
)  # fmt: skip
MESSAGES = st.builds(
    lambda word, fields, node: {"node": node, "host": "n", **fields, "say": word},
    st.sampled_from(["up", "rank", "failed", "gone", "what"]),
    st.dictionaries(NAMES, VALUES, max_size=6),
    st.integers(0, 1),
)


@given(st.lists(MESSAGES, max_size=6))
def test_whatever_is_said_a_gangs_end_can_be_told(messages: list[dict[str, Any]]) -> None:
    roll = GangState()
    for number, message in enumerate(messages):
        if (news := decode_news(MARK + json.dumps(message).encode())) is not None:
            roll.hear(news, float(number))
    assert describe(roll, 1, [])
    assert describe_standstill(roll)
    assert set(roll.silent_hosts(1e9, 1.0)) <= {node.host for node in roll.nodes.values()}
    assert isinstance(roll.has_trouble, bool)


def test_each_node_is_known_once_it_has_said_so(news: News) -> None:
    first, second = (Survey(host, 1.0, cores=3) for host in ("n1", "n2"))
    news.say("survey", 1, survey=to_builtins(second))
    news.say("survey", 0, survey=to_builtins(first))
    assert surveys_of(news.roll.surveyed()) == {"n1": first, "n2": second}


def test_a_node_that_sent_none_has_one_that_says_so(news: News) -> None:
    record, _ = news.roll.surveyed()
    assert (record.host, record.problem) == ("n1", "its agent sent no survey in time")
