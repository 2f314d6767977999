"""Faults: read strictly, and striking whom they name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.simulate.faults import FORMS, NODE_FAULTS, Moment, fault_help, parse_fault
from tests.builders.clusters import faults, layout_of

START, LATER, END = Moment(0, 0, 20), Moment(3, 9, 20), Moment(9, 19, 20)


def test_the_example_of_every_kind_is_read() -> None:
    for kind in FORMS:
        example = FORMS[kind].example
        fault = parse_fault(example, layout_of(8))
        assert (fault.kind, fault.text) == (kind, example)
        assert FORMS[kind].written(kind) in fault_help()


def test_what_is_no_fault_is_refused_with_what_was_expected() -> None:
    for text, expected in [
        ("", "one of slow-gpu:RANK|all:FACTOR"),
        ("slow", "one of slow-gpu:RANK|all:FACTOR"),
        ("slow-gpu", "slow-gpu:RANK|all:FACTOR"),
        ("slow-gpu:3", "for example slow-gpu:3:1.1"),
        ("slow-gpu:3:1.1:2", "for example slow-gpu:3:1.1"),
        ("slow-gpu:three:1.1", "for example slow-gpu:3:1.1"),
        ("slow-gpu:3:fast", "for example slow-gpu:3:1.1"),
        ("slow-gpu:3:0.9", "FACTOR (1 to 1000)"),
        ("slow-gpu:3:nan", "FACTOR (1 to 1000)"),
        ("slow-gpu:3:inf", "FACTOR (1 to 1000)"),
        ("slow-gpu:8:1.1", "a rank from 0 to 7"),
        ("slow-gpu:-1:1.1", "a rank from 0 to 7"),
        ("ramp:all", "for example ramp:3:1.05"),
        ("ramp:3:0.9", "FACTOR (1 to 1000)"),
        ("step:3:1.05", "step:RANK|all:FACTOR:ROUND"),
        ("step:3:1.05:x", "for example step:3:1.05:8"),
        ("step:3:1.05:-1", "for example step:3:1.05:8"),
        ("throttle:all:1.1", "throttle:NODE:FACTOR"),
        ("slow-link:0:0", "SHARE (above 0, to 1)"),
        ("slow-link:0:1.5", "SHARE (above 0, to 1)"),
        ("slow-link:1:0.5", "there is only node 0"),
        ("slow-link:0-1:0.5", "two nodes from 0 to 0"),
        ("slow-link:0--1:0.5", "two nodes from 0 to 0"),
        ("slow-link:0-:0.5", "slow-link:NODE|NODE-NODE:SHARE"),
        ("slow-link:-1:0.5", "slow-link:NODE|NODE-NODE:SHARE"),
        ("lossy-link:0:0", "SHARE (above 0, to 1)"),
        ("lossy-link:1:0.05", "there is only node 0"),
        ("throttle:0:0.5", "FACTOR (1 to 1000)"),
        ("drift", "drift:PERCENT"),
        ("drift:-60", "PERCENT (-50 to 1000)"),
        ("missing-rank", "missing-rank:RANK[:ROUND]"),
        ("missing-rank:3:-1", "missing-rank:RANK[:ROUND]"),
        ("missing-rank:3:x", "missing-rank:RANK[:ROUND]"),
        ("corrupt-rank:3:1", "corrupt-rank:RANK"),
        ("bad-gpu:3", "bad-gpu:RANK:ecc|lanes|nvlink|clock"),
        ("bad-gpu:3:heat", "for example bad-gpu:3:ecc"),
        ("slow-gpu-link:3:0", "SHARE (above 0, to 1)"),
        ("slow-port:8:0.5", "a rank from 0 to 7"),
        ("slow-pair:3:0.5", "slow-pair:RANK:RANK:SHARE"),
        ("slow-pair:3:x:0.5", "for example slow-pair:3:4:0.5"),
        ("slow-pair:3:3:0.5", "two ranks of one node"),
        ("slow-pair:3:8:0.5", "two ranks of one node"),
        ("slow-pair:3:-1:0.5", "two ranks of one node"),
        ("slow-probe:3:0.5", "slow-probe:RANK|all:PROBE:SHARE"),
        ("slow-probe:3:copy:0.5", "for example slow-probe:3:memory-copy:0.7"),
        ("slow-probe:3:memory-copy:2", "SHARE (above 0, to 1)"),
    ]:
        with pytest.raises(OptionError) as refused:
            parse_fault(text, layout_of(8))
        assert f"found {text!r}" in str(refused.value)
        assert expected in str(refused.value)
        assert str(refused.value).startswith("--fault")


def test_a_slow_gpu_is_the_only_slow_one() -> None:
    assert faults("slow-gpu:3:1.1").slowdowns(START) == {3: 1.1}


def test_a_fault_of_all_ranks_is_read_and_sets_nobody_apart() -> None:
    for text in ["slow-gpu:all:1.02", "ramp:all:1.05", "step:all:1.05:8"]:
        fault = parse_fault(text, layout_of(8))
        assert faults(text).slowdowns(END) == {}
        assert faults(text).common_slowdown(END) == pytest.approx(fault.size)


def test_a_fault_of_one_rank_slows_not_all() -> None:
    assert faults("slow-gpu:3:1.1").common_slowdown(END) == 1.0


def test_a_ramp_goes_in_a_straight_line_from_nothing_to_its_factor_over_the_whole_run() -> None:
    wrong = faults("ramp:3:1.19")
    assert [wrong.slowdowns(when) for when in (START, LATER, END)] == [
        {}, {3: pytest.approx(1.09)}, {3: pytest.approx(1.19)}
    ]  # fmt: skip


def test_a_step_is_there_from_its_round_of_every_study_on() -> None:
    wrong = faults("step:3:1.1:4")
    assert wrong.slowdowns(LATER) == {}
    assert wrong.slowdowns(Moment(4, 10, 20)) == wrong.slowdowns(END) == {3: 1.1}
    assert wrong.slowdowns(Moment(0, 12, 20)) == {}


def test_two_faults_of_one_gpu_add_up() -> None:
    assert faults("slow-gpu:3:1.5", "slow-gpu:3:2").slowdowns(START) == {3: 3.0}


def test_a_throttling_node_slows_down_as_it_heats_up() -> None:
    wrong = faults("throttle:1:1.2", gpus=16)
    assert wrong.slowdowns(START) == {}
    later, last = wrong.slowdowns(LATER), wrong.slowdowns(END)
    assert set(later) == set(last) == set(range(8, 16))
    assert 1.0 < later[8] < last[8]
    assert last[8] == pytest.approx(1.2, abs=0.001)


def test_drift_grows_over_the_whole_run_and_strikes_all() -> None:
    wrong = faults("drift:4")
    assert wrong.drift(START) == 1.0
    assert wrong.drift(END) == pytest.approx(1.04)
    assert wrong.slowdowns(END) == {}
    assert faults("drift:4").drift(Moment(0, 0, 1)) == 1.0


def test_a_link_between_two_nodes_is_neither_nodes_own() -> None:
    wrong = faults("slow-link:1-3:0.25", gpus=32)
    assert wrong.link_shares == {(1, 3): 0.25}
    assert (wrong.inside_shares, wrong.between_shares) == ({}, {})
    assert wrong.faults[0].text == "slow-link:1-3:0.25"


def test_of_two_slow_links_of_a_node_the_slower_counts() -> None:
    wrong = faults("slow-link:1:0.25", "slow-link:1:0.5", gpus=16)
    assert wrong.inside_shares == wrong.between_shares == dict.fromkeys(range(8, 16), 0.25)


def test_links_of_one_gpu_are_those_inside_its_node_or_its_port_to_others() -> None:
    links, port = faults("slow-gpu-link:3:0.5"), faults("slow-port:3:0.5")
    assert (links.inside_shares, links.between_shares) == ({3: 0.5}, {})
    assert (port.inside_shares, port.between_shares) == ({}, {3: 0.5})
    assert faults("slow-port:all:0.9", "slow-port:3:0.5").between_shares == {**dict.fromkeys(range(8), 0.9), 3: 0.5}
    assert faults("slow-pair:3:4:0.5").pair_shares == {(3, 4): 0.5}


def test_a_probe_may_be_slow_on_all_alike() -> None:
    wrong, copy = faults("slow-probe:all:memory-copy:0.9", "slow-probe:3:memory-copy:0.5"), Arm("memory-copy")
    assert (wrong.common_probe_share(copy), wrong.probe_shares(copy)) == (0.9, {3: 0.5})
    assert wrong.common_probe_share(Arm("host-to-device")) == 1.0


def test_of_two_lossy_links_of_a_node_the_worse_counts() -> None:
    wrong = faults("lossy-link:1:0.25", "lossy-link:1:0.5", gpus=16)
    assert (wrong.lossy_shares, wrong.inside_shares) == ({1: 0.5}, {})


def test_a_rank_is_missing_from_its_round_on() -> None:
    wrong = faults("missing-rank:3:2")
    assert wrong.missing(1) == set()
    assert wrong.missing(2) == {3}


def test_a_rank_that_is_slow_at_times_is_in_one_of_so_many_rounds() -> None:
    wrong = faults("at-times:3:1.2:4")
    found = [wrong.slowdowns(Moment(number, number, 8)) for number in range(8)]
    assert found == [{}, {}, {}, {3: 1.2}] * 2


def test_a_sound_cluster_has_nothing_wrong() -> None:
    sound = faults()
    assert (sound.slowdowns(END), sound.drift(END), sound.inside_shares) == ({}, 1.0, {})
    assert not sound.missing(9)
    assert not sound.corrupt


@given(rank=st.integers(0, 15), kind=st.sampled_from(sorted(FORMS)))
def test_a_fault_strikes_its_rank_or_its_whole_node(rank: int, kind: str) -> None:
    place = rank // 8 if kind in NODE_FAULTS else rank
    size = {
        "slow-gpu": ":2", "ramp": ":2", "step": ":2:8", "at-times": ":2:4", "throttle": ":2", "slow-link": ":0.5",
        "lossy-link": ":0.05", "slow-gpu-link": ":0.5", "slow-port": ":0.5", "slow-pair": f":{rank ^ 1}:0.5",
        "bad-gpu": ":ecc", "slow-probe": ":matmul-fp16:0.5",
    }.get(kind, "")  # fmt: skip
    fault = parse_fault("drift:2" if kind == "drift" else f"{kind}:{place}{size}", layout_of(16))
    struck = fault.ranks(layout_of(16))
    assert len(struck) == (0 if kind == "drift" else 8 if kind in NODE_FAULTS else 1)
    assert kind == "drift" or rank in struck
