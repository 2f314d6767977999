"""Which faults a thresholds file catches."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.results.verdicts import Verdict
from pytest_ddpscale.simulate.measuring import SimulatedRun
from pytest_ddpscale.simulate.power import DEFAULT_FAULTS, Power, Share, measure_power, place_fault, power_lines
from pytest_ddpscale.simulate.simulated_session import decide_all
from tests.builders.clusters import a100

CLUSTER = a100()
PLAN = CLUSTER.plan(short_blocks=True)


def power(*faults: str, trials: int) -> Power:
    return measure_power(CLUSTER, PLAN, faults, trials, 0.95, seed=0)


@pytest.fixture(scope="module")
def found() -> Power:
    return power("slow-gpu:1.3", "corrupt-rank", "missing-rank", "drift:0", trials=2)


@pytest.mark.lab
def test_a_sound_machine_raises_no_alarm(found: Power) -> None:
    none = found.catches[0]
    assert none.fault == "none"
    assert (none.caught.count, none.rejected.count, none.named.count) == (0, 0, 0)
    assert none.metrics == ()


def test_what_a_sound_machine_never_keeps_counts_nowhere_and_is_said(found: Power) -> None:
    assert {verdict.metric for verdict in found.set_aside} == {"strong_scaling_speedup", "strong_scaling_efficiency"}
    text = "\n".join(power_lines(found))
    assert "Not counted" in text
    assert "host-bound" in text


@pytest.mark.parametrize("fault", ["slow-gpu:1.3", "corrupt-rank"])
def test_a_gross_fault_is_always_caught_rejected_and_named(found: Power, fault: str) -> None:
    catch = next(catch for catch in found.catches if catch.fault == fault)
    assert (catch.caught.value, catch.rejected.value, catch.named.value) == (1, 1, 1)


def test_what_caught_it_is_told(found: Power) -> None:
    metrics = {catch.fault: catch.metrics for catch in found.catches}
    assert "rank_uniformity" in metrics["slow-gpu:1.3"]
    assert {"replica_agreement", "matmul_tflops"} <= set(metrics["corrupt-rank"])


@pytest.mark.lab
def test_links_checks_and_probes_are_tried() -> None:
    cluster = a100(gpus=16)
    faults = ("slow-link:0.25", "bad-gpu:ecc", "bad-gpu:clock", "slow-probe:memory-copy:0.5")
    found = measure_power(cluster, cluster.plan(short_blocks=True), faults, 1, 0.95, seed=0)
    caught = {one.fault: one for one in found.catches}
    assert caught["none"].caught.count == 0
    assert all((caught[fault].rejected.count, caught[fault].named.count) == (1, 1) for fault in faults)
    assert {"busbw_gbps", "pair_bandwidth_gbps"} & set(caught["slow-link:0.25"].metrics)
    assert caught["bad-gpu:ecc"].metrics == ("node_check",)
    assert "memory_bandwidth_gbps" in caught["slow-probe:memory-copy:0.5"].metrics


def test_a_missing_rank_is_caught_and_rejects_nothing(found: Power) -> None:
    catch = next(catch for catch in found.catches if catch.fault == "missing-rank")
    assert (catch.caught.value, catch.rejected.value) == (1, 0)


def test_no_drift_is_no_fault(found: Power) -> None:
    assert next(catch for catch in found.catches if catch.fault == "drift:0").caught.count == 0


def test_the_same_seed_gives_the_same_shares() -> None:
    assert power("slow-gpu:1.05", trials=1) == power("slow-gpu:1.05", trials=1)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("slow", "found 'slow'"),
        ("slow-gpu", "slow-gpu:RANK|all:FACTOR"),
        ("slow-gpu:0.5", "FACTOR (1 to 1000)"),
        ("slow-gpu:3:1.1", "--faults slow-gpu:3:1.1"),
    ],
)
def test_what_is_no_fault_is_refused_before_anything_is_simulated(fault: str, words: str) -> None:
    asked: list[str] = []
    with pytest.raises(OptionError) as refused:
        measure_power(CLUSTER, PLAN, ["slow-gpu:1.1", fault], 1, 0.95, 0, asked.append)
    assert words in str(refused.value)
    assert asked == []


def test_no_trials_are_refused() -> None:
    with pytest.raises(OptionError, match="--trials: found 0"):
        power(trials=0)


@pytest.mark.parametrize("text", DEFAULT_FAULTS)
def test_every_default_fault_finds_places(text: str) -> None:
    faults = [place_fault(text, PLAN.layout, random.Random(seed)) for seed in range(20)]
    places = {fault.place for fault in faults}
    assert len(places) > 3 or text.startswith(("slow-link", "throttle", "drift")) or ":all:" in text


def test_a_fault_of_all_ranks_has_no_place_and_one_of_a_single_rank_keeps_its_round() -> None:
    of_all = place_fault("slow-gpu:all:1.05", PLAN.layout, random.Random(0))
    assert (of_all.place, of_all.size) == (None, 1.05)
    step = place_fault("step:1.05:8", PLAN.layout, random.Random(0))
    assert step.place is not None
    assert (step.size, step.first_round) == (1.05, 8)


def test_nobody_is_named_for_what_strikes_all() -> None:
    table = list(power_lines(power("slow-gpu:all:1.2", trials=1)))
    assert table[2].split()[:2] == ["slow-gpu", "all:1.2"]
    assert "100%" in table[2]
    assert "–" in table[2]


def test_every_trial_has_other_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []

    def recorded(run: SimulatedRun, *others: Any) -> tuple[Verdict, ...]:
        seeds.append(run.performance.spread.seed)
        return decide_all(run, *others)

    monkeypatch.setattr("pytest_ddpscale.simulate.power.decide_all", recorded)
    power(trials=2)
    assert len(set(seeds)) == 2


def test_the_score_interval_is_that_of_the_tables() -> None:
    assert list(Share(8, 10).interval) == pytest.approx([0.4902, 0.9433], abs=1e-4)
    assert list(Share(0, 10).interval) == pytest.approx([0.0, 0.2775], abs=1e-4)


@given(runs=st.integers(1, 1000), data=st.data())
def test_the_interval_holds_the_share(runs: int, data: st.DataObject) -> None:
    share = Share(data.draw(st.integers(0, runs)), runs)
    low, high = share.interval
    assert 0 <= low <= share.value + 1e-12
    assert share.value - 1e-12 <= high <= 1


def test_the_table_has_a_row_for_each_fault_and_names_the_false_alarms(found: Power) -> None:
    lines = list(power_lines(found))
    assert lines[0].split()[:3] == ["fault", "size", "caught"]
    assert [line.split()[0] for line in lines[1:6]] == ["none", "slow-gpu", "corrupt-rank", "missing-rank", "drift"]
    assert "1.3" in lines[2]
    assert "100% [34%, 100%]" in lines[2]
    assert "–" in lines[5]
    assert any("no machine was measured" in line for line in lines)
    assert any("false alarms" in line for line in lines)
