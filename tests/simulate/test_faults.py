"""Faults: read strictly, and striking whom they name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.simulate.faults import FORMS, Moment, fault_help, parse_fault
from tests.simulate.sample import TOPOLOGY, faults

START, LATER, END = Moment(0, 0, 20), Moment(3, 9, 20), Moment(9, 19, 20)


@pytest.mark.parametrize("kind", FORMS)
def test_the_example_of_every_kind_is_read_and_written_back(kind: str) -> None:
    example = FORMS[kind].example
    fault = parse_fault(example, 8, TOPOLOGY)
    assert fault.kind == kind
    assert parse_fault(str(fault), 8, TOPOLOGY) == fault
    assert FORMS[kind].written(kind) in fault_help()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "one of slow-gpu:RANK:FACTOR"),
        ("slow", "one of slow-gpu:RANK:FACTOR"),
        ("slow-gpu", "slow-gpu:RANK:FACTOR"),
        ("slow-gpu:3", "for example slow-gpu:3:1.1"),
        ("slow-gpu:3:1.1:2", "for example slow-gpu:3:1.1"),
        ("slow-gpu:three:1.1", "for example slow-gpu:3:1.1"),
        ("slow-gpu:3:fast", "for example slow-gpu:3:1.1"),
        ("slow-gpu:3:0.9", "FACTOR (1 to 1000)"),
        ("slow-gpu:3:nan", "FACTOR (1 to 1000)"),
        ("slow-gpu:3:inf", "FACTOR (1 to 1000)"),
        ("slow-gpu:8:1.1", "a rank from 0 to 7"),
        ("slow-gpu:-1:1.1", "a rank from 0 to 7"),
        ("slow-link:0:0", "SHARE (above 0, to 1)"),
        ("slow-link:0:1.5", "SHARE (above 0, to 1)"),
        ("slow-link:1:0.5", "there is only node 0"),
        ("throttle:0:0.5", "FACTOR (1 to 1000)"),
        ("drift", "drift:PERCENT"),
        ("drift:-60", "PERCENT (-50 to 1000)"),
        ("missing-rank", "missing-rank:RANK[:ROUND]"),
        ("missing-rank:3:-1", "missing-rank:RANK[:ROUND]"),
        ("missing-rank:3:x", "missing-rank:RANK[:ROUND]"),
        ("corrupt-rank:3:1", "corrupt-rank:RANK"),
    ],
)
def test_what_is_no_fault_is_refused_with_what_was_expected(text: str, expected: str) -> None:
    with pytest.raises(OptionError) as refused:
        parse_fault(text, 8, TOPOLOGY)
    assert f"found {text!r}" in str(refused.value)
    assert expected in str(refused.value)
    assert str(refused.value).startswith("--fault")


def test_a_slow_gpu_is_the_only_slow_one() -> None:
    assert faults("slow-gpu:3:1.1").slowdowns(8, START) == {3: 1.1}
    assert faults("slow-gpu:3:1.1").slowdowns(2, START) == {}


def test_two_faults_of_one_gpu_add_up() -> None:
    assert faults("slow-gpu:3:1.5", "slow-gpu:3:2").slowdowns(8, START) == {3: 3.0}


def test_a_throttling_node_slows_down_as_it_heats_up() -> None:
    wrong = faults("throttle:1:1.2", gpus=16)
    by_time = [wrong.slowdowns(16, when) for when in (START, LATER, END)]
    assert all(set(found) == set(range(8, 16)) for found in by_time)
    first, later, last = (found[8] for found in by_time)
    assert first == 1.0 < later < last
    assert last == pytest.approx(1.2, abs=0.001)
    assert wrong.slowdowns(8, END) == {}


def test_drift_grows_over_the_whole_run_and_strikes_all() -> None:
    wrong = faults("drift:4")
    assert wrong.drift(START) == 1.0
    assert wrong.drift(END) == pytest.approx(1.04)
    assert wrong.slowdowns(8, END) == {}
    assert faults("drift:4").drift(Moment(0, 0, 1)) == 1.0


def test_a_slow_link_counts_for_those_who_use_it() -> None:
    wrong = faults("slow-link:1:0.25", "slow-link:1:0.5", gpus=16)
    assert (wrong.link_share(8), wrong.link_share(16)) == (1.0, 0.25)


def test_a_rank_is_missing_from_its_round_on() -> None:
    wrong = faults("missing-rank:3:2")
    assert wrong.missing(Moment(1, 1, 20)) == set()
    assert wrong.missing(Moment(2, 2, 20)) == {3}


def test_a_sound_cluster_has_nothing_wrong() -> None:
    sound = faults()
    assert (sound.slowdowns(8, END), sound.drift(END), sound.link_share(8)) == ({}, 1.0, 1.0)
    assert not sound.missing(END)
    assert not sound.corrupt


@given(rank=st.integers(0, 15), kind=st.sampled_from(sorted(FORMS)))
def test_a_fault_strikes_its_rank_or_its_whole_node(rank: int, kind: str) -> None:
    place = rank // 8 if kind in ("slow-link", "throttle") else rank
    size = {"slow-gpu": ":2", "throttle": ":2", "slow-link": ":0.5"}.get(kind, "")
    fault = parse_fault("drift:2" if kind == "drift" else f"{kind}:{place}{size}", 16, TOPOLOGY)
    struck = fault.ranks(TOPOLOGY, 16)
    assert len(struck) == (0 if kind == "drift" else 8 if kind in ("slow-link", "throttle") else 1)
    assert kind == "drift" or rank in struck
