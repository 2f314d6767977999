"""How the cost of the gang's words grows with the number of ranks."""

from __future__ import annotations

import resource
from collections import Counter
from datetime import timedelta

import pytest
from torch.distributed import TCPStore

from pytest_ddpscale.results.strict_json import parse_strict_json
from pytest_ddpscale.worker.control import Control
from tests.benchmarks.scripts import BENCHMARKS, benchmark

pytestmark = pytest.mark.lab

control_plane = benchmark("control_plane")
ALL_AT_ONCE, ONE_BY_ONE = control_plane.WAYS


@pytest.fixture
def control() -> Control:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=10))
    return Control(store, 0, 0, 1)


class TestGrowth:
    def test_a_line_is_found_with_its_fixed_cost(self) -> None:
        fit = control_plane.growth({n: 0.001 + 2e-5 * n for n in (64, 128, 1024)})
        assert fit.fixed_s == pytest.approx(0.001)
        assert fit.per_rank_s == pytest.approx(2e-5)
        assert fit.at(8192) == pytest.approx(0.001 + 2e-5 * 8192)
        assert fit.exponent < 1, "a fixed cost weighs less the more ranks there are"

    @pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0])
    def test_the_exponent_of_a_power_law_is_found(self, exponent: float) -> None:
        fit = control_plane.growth({n: 3e-6 * n**exponent for n in (2048, 64, 512)})
        assert fit.exponent == pytest.approx(exponent)
        assert fit.exponent_stderr == pytest.approx(0, abs=1e-9)
        assert fit.last_doubling == pytest.approx(exponent)

    def test_points_beside_the_law_widen_the_exponents_error(self) -> None:
        # log2 of n: 0, 1, 2; of the cost: 0, 2, 2. The slope is 1, the residuals 1/3, 2/3 and 1/3.
        fit = control_plane.growth({1: 1.0, 2: 4.0, 4: 4.0})
        assert fit.exponent == pytest.approx(1.0)
        assert fit.exponent_stderr == pytest.approx((6 / 9 / 1 / 2) ** 0.5)
        assert fit.last_doubling == pytest.approx(0.0)


def test_each_round_has_every_number_of_ranks_in_each_way_once_in_an_order_of_its_own() -> None:
    turns = control_plane.schedule((2, 3, 5), rounds=4, seed=1)
    rounds = [turns[first : first + 6] for first in range(0, 24, 6)]
    everything = {(ranks, way): 1 for ranks in (2, 3, 5) for way in control_plane.WAYS}
    assert all(Counter((turn.ranks, turn.way) for turn in one) == everything for one in rounds)
    assert len({tuple(one) for one in rounds}) > 1
    assert turns == control_plane.schedule((2, 3, 5), rounds=4, seed=1)


def test_both_ways_of_gathering_bring_the_same_records(control: Control) -> None:
    keys = [f"arm/{rank}" for rank in range(5)]
    found = []
    for way in control_plane.WAYS:
        for rank, key in enumerate(keys):
            control.say(key, {"rank": rank})
        found.append(control_plane.gather(control, keys, way))
    assert found[0] == found[1] == [{"rank": rank} for rank in range(5)]


def test_ranks_in_processes_of_their_own_take_every_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)  # where the processes look for the script
    monkeypatch.setattr(control_plane, "RANKS_PER_PROCESS", 3)
    found = control_plane.measure((2, 6), rounds=1, record_bytes=700, seed=0)
    assert {(turn.ranks, turn.way) for turn in found} == {(n, way) for n in (2, 6) for way in control_plane.WAYS}
    for costs in found.values():
        assert len(costs) == 1, "the round in which connections are made is left out"
        assert all(getattr(cost, part) > 0 for cost in costs for part in control_plane.PARTS)


def test_a_line_of_a_node_agent_is_one_that_is_parsed() -> None:
    assert "\n" not in control_plane.STATUS_LINE
    assert parse_strict_json(control_plane.STATUS_LINE)["rank"] == 4095
    assert control_plane.parsing_us(lines=10, repeats=2) > 0


def test_more_ranks_than_files_may_be_open_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, 4096))
    with pytest.raises(SystemExit, match=r"needs 5000 open files, and `ulimit -Hn` allows 4096"):
        control_plane.allow_files(5000)


def test_the_limit_of_open_files_is_raised_as_far_as_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, 4096))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: asked.append(limits))
    control_plane.allow_files(500)
    assert asked == []
    control_plane.allow_files(3000)
    assert asked == [(3000, 4096)]


def test_two_numbers_of_ranks_are_too_few_for_a_law(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["control_plane.py", "--ranks", "64,128,64"])
    with pytest.raises(SystemExit, match="at least three different numbers"):
        control_plane.main()
