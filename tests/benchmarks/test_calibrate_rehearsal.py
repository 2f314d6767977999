"""A rehearsal of calibration on one small cluster."""

from __future__ import annotations

import argparse

from tests.benchmarks.scripts import benchmark

rehearsal = benchmark("calibrate_rehearsal")


def test_a_cluster_is_calibrated_and_fresh_nodes_are_judged() -> None:
    arguments = argparse.Namespace(seed=0, nodes=9, launches=2, rounds=8, rate=0.01, healthy=1, slow=1, noisier=1.0)
    found = rehearsal.rehearse(3, arguments)
    assert sorted(found.excluded) == sorted(found.bad)
    assert found.calibrated >= 10
    assert sum(found.healthy.values()) == sum(found.slow_gpu.values()) == sum(found.slow_node.values()) == 1
    assert found.healthy.get("rejected", 0) == 0
    assert "passed" not in found.slow_gpu
    assert found == rehearsal.replace(rehearsal.rehearse(3, arguments), cpu_s=found.cpu_s)


def test_shares_are_of_all_clusters() -> None:
    one = rehearsal.ClusterResult(0, {}, ["a"], [], 9, {"passed": 3, "rejected": 1}, {"rejected": 2}, {}, {}, 0.0)
    two = rehearsal.replace(one, slow_node={"undecided": 1, "rejected": 1})
    shares = {(what, how): (share.count, share.runs) for what, how, share in rehearsal._fresh_shares([one, two])}
    assert shares["healthy", "rejected"] == (2, 8)
    assert shares["one GPU 5 % slow", "rejected"] == (4, 4)
    assert shares["whole node 5 % slow", "rejected"] == (1, 2)
    assert shares["whole node 5 % slow", "passed"] == (0, 2)
