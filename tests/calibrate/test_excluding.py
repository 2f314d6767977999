"""Nodes that do not belong are left out; others are not."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_ddpscale.calibrate.excluding import FALSE_EXCLUSIONS, ValueSet, deviating_nodes

NODES = [f"n{i:02}" for i in range(20)]


def value_set(values: list[float], name: str = "speed") -> ValueSet:
    return ValueSet(name, dict(zip(NODES, values, strict=False)), 0.0)


def normal(seed: int) -> list[float]:
    return [float(one) for one in 0.005 * np.random.default_rng(seed).standard_normal(20)]


def test_two_bad_nodes_do_not_hide_each_other() -> None:
    values = normal(1)
    values[3], values[11] = -0.05, -0.10
    first, second = deviating_nodes([value_set(values)], 5)
    assert {first.node, second.node} == {"n03", "n11"}
    assert (first.node, first.value, first.name) == ("n11", -0.10, "speed")
    assert abs(first.centre) < 0.003
    assert first.distance > second.distance > 6


def test_who_deviates_in_one_thing_is_left_out_of_all() -> None:
    fast, slow = normal(1), normal(2)
    fast[0] = slow[0] = -0.08
    slow[1] = 0.05
    found = deviating_nodes([value_set(fast, "fast"), value_set(slow, "slow")], 5)
    assert {one.node for one in found} == {"n00", "n01"}
    assert {one.node: one.name for one in found}["n01"] == "slow"


def test_what_one_node_hid_is_found_in_a_further_turn() -> None:
    """Only one may be left out at a time, and then the other one stands out."""
    values = normal(4)
    values[5], values[6] = -0.03, -0.5
    assert [one.node for one in deviating_nodes([value_set(values)], 1)] == ["n06", "n05"]


def test_sound_nodes_stay_nearly_always() -> None:
    sound = [[value_set(normal(100 * seed + part), str(part)) for part in range(20)] for seed in range(50)]
    wrong = sum(bool(deviating_nodes(sets, 5)) for sets in sound)
    assert wrong <= 50 * FALSE_EXCLUSIONS + 3


@pytest.mark.parametrize("least_sd", [0.0, 0.001])
def test_equal_nodes_stay(least_sd: float) -> None:
    assert deviating_nodes([ValueSet("memory", dict.fromkeys(NODES, 4.0), least_sd)], 5) == []


def test_a_hair_is_no_deviation() -> None:
    values = dict.fromkeys(NODES, 4.0) | {"n00": 4.0001}
    assert deviating_nodes([ValueSet("memory", values, 0.004)], 5) == []
    assert deviating_nodes([ValueSet("memory", values, 0.0, 0.001)], 5) == []
    assert [one.node for one in deviating_nodes([ValueSet("memory", values, 0.0)], 5)] == ["n00"]


def test_of_few_nodes_one_has_to_be_clearly_unlike() -> None:
    """The spread of three nodes says so little that no chance is beyond it."""
    others = [ValueSet(str(part), dict.fromkeys(("n0", "n1", "n2", "n3"), 1.0)) for part in range(40)]

    def left_out(are_logs: bool = True, **changed: float) -> list[str]:
        values = {"n0": 0.0, "n1": 0.001, "n2": -0.001, "n3": -0.05} | changed
        return [one.node for one in deviating_nodes([ValueSet("speed", values, 0.001, 0.0, are_logs), *others], 1)]

    assert left_out() == ["n3"]
    assert left_out(n3=-0.02) == left_out(n1=0.02) == left_out(are_logs=False) == []


def test_nobody_is_left_out_of_three() -> None:
    assert deviating_nodes([ValueSet("speed", {"n0": 0.0, "n1": 0.0, "n2": -9.0}, 0.001, are_logs=True)], 1) == []
    assert deviating_nodes([ValueSet("speed", {}), ValueSet("other", {"n0": 1.0})], 1) == []
