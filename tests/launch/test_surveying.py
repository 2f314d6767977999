"""Each node has a survey in the end, whatever it said."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.launch.surveying import Surveys, clock_skew
from pytest_ddpscale.node.protocol import NodeSurvey
from pytest_ddpscale.results.survey_record import ClockSkew, Survey, surveys_of

HOSTS = {0: "n1", 1: "n2"}
LONG = "".join(random.Random(0).choices("abcdefgh", k=5000))


def test_each_node_is_known_once_it_has_said_so() -> None:
    first, second = (Survey(host, 1.0, topology=LONG) for host in HOSTS.values())
    surveys = Surveys()
    surveys.hear(NodeSurvey(node=1, host="n2", survey=second))
    surveys.hear(NodeSurvey(node=0, host="n1", survey=first))
    surveys.hear(NodeSurvey(node=0, host="n1", survey=second))  # said again
    assert surveys_of(surveys.records(HOSTS, 0.0)) == {"n1": first, "n2": second}


def test_a_node_that_sent_none_has_one_that_says_so() -> None:
    [record] = Surveys().records({0: "n1"}, 0.0)
    assert (record.host, record.problem) == ("n1", "its agent sent no survey in time")


def test_a_record_says_how_far_the_clock_is_ahead() -> None:
    surveys = Surveys(clocks={0: (1000.25, 1000.5), 1: (998.0, 1000.5)})
    first, second = surveys.records({0: "n1", 1: "n2"}, 1000.0)
    assert (first.clock, second.clock) == (ClockSkew(-0.25, 0.25), ClockSkew(-2.5, -2.0))
    assert surveys.records({2: "n3"}, 1000.0)[0].clock is None


TIME = st.floats(0, 1e6)


@given(skew_s=st.floats(-1e6, 1e6), asked_s=TIME, there_s=TIME, back_s=TIME)
def test_the_true_skew_lies_between_the_bounds(skew_s: float, asked_s: float, there_s: float, back_s: float) -> None:
    found = clock_skew(asked_s, asked_s + there_s + skew_s, asked_s + there_s + back_s)
    assert found is not None
    assert found.earliest_skew_s - 1e-6 <= skew_s <= found.latest_skew_s + 1e-6
    assert found.latest_skew_s - found.earliest_skew_s == pytest.approx(there_s + back_s, abs=1e-6)


def test_a_supervisors_clock_that_went_back_tells_nothing() -> None:
    assert clock_skew(1000.0, 1000.0, 999.0) is None
