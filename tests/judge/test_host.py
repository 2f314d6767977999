"""Room, cores and clocks of hosts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.run.survey_record import ClockSkew, Survey
from pytest_ddpscale.run.verdicts import Verdict
from tests.builders.nodes_checked import CPU, GIB, blamed, cpu_survey, judged, survey


def with_clock(host: str, skew_s: float, width_s: float = 0.02) -> Survey:
    return survey(host, clock=ClockSkew(skew_s - width_s / 2, skew_s + width_s / 2))


def clocks(*skews_s: float) -> Verdict:
    """Of nodes n0, n1 …"""
    return judged("clock", *(with_clock(f"n{number}", skew_s) for number, skew_s in enumerate(skews_s)))


def test_a_full_disk_fails_its_node_and_room_that_is_not_known_is_not_enough() -> None:
    full = survey("n2", free_bytes={"run_directory": GIB // 2})
    assert blamed(judged("disk", survey("n1"), full, survey("n3"))) == ("failed", [("n2", True)])
    assert judged("disk", survey(free_bytes={"temporary": 9 * GIB})).outcome == "not_measured"
    little = judged("disk", survey(free_bytes={"run_directory": 9 * GIB, "shared_memory": GIB // 16}))
    assert (little.outcome, len(little.notes)) == ("passed", 1)
    for name, place in (("temporary", "the temporary folder"), ("shared_memory", "shared memory (/dev/shm)")):
        [noted] = judged("disk", survey(free_bytes={"run_directory": 9 * GIB, name: 0})).notes
        assert noted.endswith(f"0.00 GiB are free in {place}")


def test_on_cpu_each_rank_needs_a_core() -> None:
    for cores, outcome in ((2, "passed"), (1, "failed"), (None, "not_measured")):
        assert judged("gpus", cpu_survey(cores=cores), expectation=CPU).outcome == outcome


def test_a_clock_that_is_off_is_named_and_certain_only_beside_a_majority() -> None:
    for skews_s, expected in (
        ((0.0, 0.1, -4.0), [("n2", True)]),
        ((0.0, 1.5), [("n0", False), ("n1", False)]),
        ((0.0, 10.0, 0.0, 10.0), [(f"n{number}", False) for number in range(4)]),
        ((0.0, 0.9, 1.9, 5.0), [("n0", False), ("n3", False)]),  # the median means nothing
        ((0.0, 0.9), []),
        ((500.0,) * 4, []),  # the supervisor's own clock is off
    ):
        assert blamed(clocks(*skews_s)) == ("failed" if expected else "passed", expected)


def test_a_clock_of_which_little_or_nothing_is_known_neither_passes_nor_fails() -> None:
    vague = with_clock("n3", 2.0, width_s=5.0)
    assert judged("clock", with_clock("n1", 0.0), with_clock("n2", 0.0), vague).outcome == "not_measured"
    silent = survey("n1", clock=None)
    assert judged("clock", with_clock("n2", 0.0), silent).outcome == "not_measured"
    assert judged("clock", silent, survey("n2", clock=None)).outcome == "not_measured"
    assert judged("clock", silent, planned=2).outcome == "not_measured"
    assert judged("clock", silent).outcome == "passed", "it has no other clock to agree with"


@given(offset_s=st.floats(-1e6, 1e6), skews_s=st.lists(st.floats(-30, 30), min_size=2, max_size=7))
def test_what_the_supervisors_clock_shows_makes_no_difference(offset_s: float, skews_s: list[float]) -> None:
    whole = [round(skew_s * 8) / 8 + 1 / 16 for skew_s in skews_s]  # off every boundary, and exact in binary
    offset_s = float(round(offset_s))
    plain = judged("clock", *(with_clock(f"n{i}", skew_s, 0.25) for i, skew_s in enumerate(whole)))
    moved = judged("clock", *(with_clock(f"n{i}", skew_s + offset_s, 0.25) for i, skew_s in enumerate(whole)))
    assert (plain.outcome, plain.value) == (moved.outcome, moved.value)
