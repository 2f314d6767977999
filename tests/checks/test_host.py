"""Room, cores and clocks of hosts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.results.survey_record import ClockSkew, Survey
from tests.builders.nodes_checked import CPU, GIB, cpu_survey, judged, survey


def with_clock(host: str, skew_s: float, width_s: float = 0.02) -> Survey:
    return survey(host, clock=ClockSkew(skew_s - width_s / 2, skew_s + width_s / 2))


def test_a_full_disk_fails_its_node() -> None:
    full = survey("n2", free_bytes={"run_directory": GIB // 2})
    result = judged("disk", survey("n1"), full, survey("n3"))
    assert result.outcome == "failed"
    assert result.culprits[0].evidence == "0.50 GiB are free where the run is written; expected 1 GiB"
    assert result.culprits[0].is_certain


def test_room_that_is_not_known_is_not_enough() -> None:
    assert judged("disk", survey(free_bytes={"temporary": 9 * GIB})).outcome == "not_measured"


def test_little_shared_memory_is_noted() -> None:
    result = judged("disk", survey(free_bytes={"run_directory": 9 * GIB, "shared_memory": GIB // 16}))
    assert result.outcome == "passed"
    assert result.notes == ("n1: 0.06 GiB are free in shared memory",)


@pytest.mark.parametrize(("cores", "outcome"), [(2, "passed"), (1, "failed"), (None, "not_measured")])
def test_on_cpu_each_rank_needs_a_core(cores: int | None, outcome: str) -> None:
    assert judged("gpus", cpu_survey(cores=cores), expectation=CPU).outcome == outcome


def test_a_clock_that_is_off_is_named() -> None:
    result = judged("clock", with_clock("n1", 0.0), with_clock("n2", 0.1), with_clock("n3", -4.0))
    assert result.outcome == "failed"
    assert result.share == pytest.approx(2 / 3)
    (culprit,) = result.culprits
    assert (culprit.host, culprit.is_certain) == ("n3", True)
    assert culprit.evidence == "clock is -4.01 to -3.99 s off the other nodes'; expected within 1 s"


def test_a_supervisor_whose_own_clock_is_off_blames_nobody() -> None:
    assert judged("clock", *(with_clock(f"n{number}", 500.0) for number in range(4))).outcome == "passed"


def test_a_clock_that_is_only_vaguely_known_neither_passes_nor_fails() -> None:
    result = judged("clock", with_clock("n1", 0.0), with_clock("n2", 0.0), with_clock("n3", 2.0, width_s=5.0))
    assert result.outcome == "not_measured"
    assert "n3: clock skew is between -0.50 and +4.50 s; the limit of" in result.reason


def test_of_two_clocks_that_differ_neither_is_certain() -> None:
    result = judged("clock", with_clock("n1", 0.0), with_clock("n2", 1.5))
    assert result.outcome == "failed"
    assert [(culprit.host, culprit.is_certain) for culprit in result.culprits] == [("n1", False), ("n2", False)]
    assert judged("clock", with_clock("n1", 0.0), with_clock("n2", 0.9)).outcome == "passed"


def test_of_two_halves_whose_clocks_differ_nobody_is_certain() -> None:
    nodes = [with_clock(f"n{number}", 10.0 * (number % 2)) for number in range(4)]
    result = judged("clock", *nodes)
    assert result.outcome == "failed"
    assert not any(culprit.is_certain for culprit in result.culprits)


def test_if_half_of_the_clocks_are_off_the_median_means_nothing() -> None:
    result = judged("clock", *(with_clock(f"n{number}", skew_s) for number, skew_s in enumerate([0.0, 0.9, 1.9, 5.0])))
    assert [(culprit.host, culprit.is_certain) for culprit in result.culprits] == [("n0", False), ("n3", False)]


def test_a_clock_of_which_nothing_is_known_does_not_pass() -> None:
    assert judged("clock", with_clock("n1", 0.0), survey("n2", clock=None)).outcome == "not_measured"
    assert judged("clock", survey("n1", clock=None), survey("n2", clock=None)).outcome == "not_measured"
    assert judged("clock", survey("n1", clock=None), planned=2).outcome == "not_measured"


def test_a_single_node_has_no_other_clock_to_agree_with() -> None:
    assert judged("clock", survey("n1", clock=None)).outcome == "passed"


@given(offset_s=st.floats(-1e6, 1e6), skews_s=st.lists(st.floats(-30, 30), min_size=2, max_size=7))
def test_what_the_supervisors_clock_shows_makes_no_difference(offset_s: float, skews_s: list[float]) -> None:
    whole = [round(skew_s * 8) / 8 + 1 / 16 for skew_s in skews_s]  # off every boundary, and exact in binary
    offset_s = float(round(offset_s))
    plain = judged("clock", *(with_clock(f"n{i}", skew_s, 0.25) for i, skew_s in enumerate(whole)))
    moved = judged("clock", *(with_clock(f"n{i}", skew_s + offset_s, 0.25) for i, skew_s in enumerate(whole)))
    assert (plain.outcome, plain.share) == (moved.outcome, moved.share)
