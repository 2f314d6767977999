"""Surveys come in pieces from many nodes, and each node has one in the end, whatever it said."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.launch.gang_state import GangState
from pytest_ddpscale.launch.surveying import Surveys, clock_skew
from pytest_ddpscale.node.chunks import chunks_of
from pytest_ddpscale.results.survey_record import ClockSkew, Survey, surveys_of

HOSTS = {0: "n1", 1: "n2"}
LONG = "".join(random.Random(0).choices("abcdefgh", k=5000))


def messages(node: int, survey: Survey) -> list[dict[str, Any]]:
    """What an agent says of its node."""
    pieces = chunks_of(survey.as_json())
    assert len(pieces) > 1
    place = {"say": "survey", "node": node, "host": HOSTS[node]}
    return [{**place, "part": part, "parts": len(pieces), "data": data} for part, data in enumerate(pieces)]


def test_pieces_of_several_nodes_may_come_in_any_order() -> None:
    first, second = (Survey(host, 1.0, topology=LONG) for host in HOSTS.values())
    both = [*messages(0, first), *messages(1, second)]
    random.Random(1).shuffle(both)
    roll = GangState()
    for message in both:
        assert len(roll.surveys.found) < 2
        roll.hear(message, 0.0)
    assert surveys_of(roll.surveys.records(HOSTS, 0.0)) == {"n1": first, "n2": second}
    assert roll.surveys.pieces == {}


def test_a_node_that_sent_none_or_not_all_of_it_has_one_that_says_so() -> None:
    surveys = Surveys()
    for message in messages(1, Survey("n2", 1.0, topology=LONG))[:-1]:
        surveys.hear_piece(message)
    found = surveys_of(surveys.records(HOSTS, 0.0))
    assert {host: survey.problem for host, survey in found.items()} == dict.fromkeys(
        ("n1", "n2"), "its agent sent no survey in time"
    )


@pytest.mark.parametrize("data", ["", "AAAA", chunks_of([1])[0], chunks_of({"host": 3})[0], chunks_of({"a": 1})[0]])
def test_one_that_cannot_be_read_is_told(data: str) -> None:
    surveys = Surveys()
    surveys.hear_piece({"node": 0, "host": "n1", "part": 0, "parts": 1, "data": data})
    [record] = surveys.records({0: "n1"}, 0.0)
    assert record["host"] == "n1"
    assert record["problem"].startswith("its survey could not be read (")


def test_a_record_says_how_far_the_clock_is_ahead() -> None:
    surveys = Surveys()
    for node, said in ((0, 1000.25), (1, 998.0)):
        surveys.hear_clock({"node": node, "unix_s": said, "heard_unix_s": 1000.5})
    first, second = surveys.records({0: "n1", 1: "n2"}, 1000.0)
    assert first["clock"] == {"earliest_skew_s": -0.25, "latest_skew_s": 0.25}
    assert second["clock"] == {"earliest_skew_s": -2.5, "latest_skew_s": -2.0}
    assert Survey.from_json(second).clock == ClockSkew(-2.5, -2.0)
    assert surveys.records({2: "n3"}, 1000.0)[0]["clock"] is None


TIME = st.floats(0, 1e6)


@given(skew_s=st.floats(-1e6, 1e6), asked_s=TIME, there_s=TIME, back_s=TIME)
def test_the_true_skew_lies_between_the_bounds(skew_s: float, asked_s: float, there_s: float, back_s: float) -> None:
    found = clock_skew(asked_s, asked_s + there_s + skew_s, asked_s + there_s + back_s)
    assert found is not None
    assert found.earliest_skew_s - 1e-6 <= skew_s <= found.latest_skew_s + 1e-6
    assert found.latest_skew_s - found.earliest_skew_s == pytest.approx(there_s + back_s, abs=1e-6)


def test_a_supervisors_clock_that_went_back_tells_nothing() -> None:
    assert clock_skew(1000.0, 1000.0, 999.0) is None


NAMES = st.sampled_from(["node", "host", "part", "parts", "data", "unix_s", "heard_unix_s"])
VALUES = st.none() | st.booleans() | st.integers(-2, 3) | st.floats() | st.text(max_size=3) | st.lists(st.integers())


@given(st.lists(st.dictionaries(NAMES, VALUES, max_size=7), max_size=6))
def test_whatever_is_said_there_is_one_record_a_node(said: list[dict[str, Any]]) -> None:
    surveys = Surveys()
    for message in said:
        surveys.hear_piece(message)
        surveys.hear_clock(message)
    assert len(surveys.records(HOSTS, 0.0)) == 2
