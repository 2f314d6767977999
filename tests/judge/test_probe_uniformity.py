"""A place that is slower in a probe than places that should be alike is rejected and named, whatever bound it has."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from itertools import combinations
from time import process_time

import numpy as np
import pytest

from pytest_ddpscale.calibrate.node_values import node_values, why_no_values
from pytest_ddpscale.judge.deciding import Decider
from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.run.records import RoundEnd
from pytest_ddpscale.run.verdicts import PARTLY_KNOWN, WRONG_DATA, Verdict
from pytest_ddpscale.simulate.simulated_cluster import ClusterOptions, open_cluster
from pytest_ddpscale.suites.collective_bounds import sweep_cases
from pytest_ddpscale.thresholds.cases import NodeCase
from pytest_ddpscale.thresholds.loading import load_thresholds
from pytest_ddpscale.thresholds.model import Requirement, Source
from pytest_ddpscale.util.packaged import packaged
from tests.builders.measurements import ProbeMeasurement
from tests.builders.records import gang_of, probe_blocks_of
from tests.judge.probed import A100, CONFIDENCE, measure_probe, probe_case, probe_evidence, probe_plan
from tests.rows import rows

MEMORY, HOST, PAIRS = Arm("memory-copy"), Arm("host-to-device"), Arm("send-recv-256mib", 8)
LIMITS = {MEMORY: 1.1, HOST: 1.2, PAIRS: 1.2}
Ranks = tuple[int, ...]
ROUNDS = 9


def uniformity_case(probe: Arm) -> NodeCase:
    asked = Requirement(
        "probe_uniformity", LIMITS[probe], Source(reasoning="by its peers"), probe=probe.kind,
        world_size=probe.world_size, provisional=True,
    )  # fmt: skip
    return NodeCase(asked, probe.kind, "t.yaml:7", sku=A100, probe=probe)


def values(shares: Mapping[Ranks, float], typical: Callable[[Ranks], float]) -> Callable[[int, Ranks], float]:
    """Bandwidths with 1 % of noise, of which some places reach only a share."""
    random = np.random.default_rng(1)
    return lambda number, ranks: (
        shares.get(ranks, 1.0) * typical(ranks) * float(np.exp(0.01 * random.standard_normal()))
    )


def judged(
    probe: Arm, shares: Mapping[Ranks, float], nodes: int = 1, typical: Callable[[Ranks], float] = lambda _: 1000.0,
    without: Collection[int] = (),
    change: Callable[[ProbeMeasurement], ProbeMeasurement | None] = lambda one: one,
) -> Verdict:  # fmt: skip
    plan = probe_plan(probe, nodes)
    found = map(change, measure_probe(plan, probe, values(shares, typical), ROUNDS, without))
    return judge(uniformity_case(probe), probe_evidence(plan, [one for one in found if one is not None]), CONFIDENCE)


def named(verdict: Verdict) -> list[tuple[str, str, int | None]]:
    assert all(culprit.is_certain for culprit in verdict.culprits)
    return [(culprit.kind, culprit.host, culprit.gpu_index) for culprit in verdict.culprits]


@rows(("nodes", "rank"), [(1, 0), (1, 3), (1, 7), (4, 0), (4, 13), (4, 31)])
def test_a_gpu_with_half_of_its_memory_bandwidth_is_rejected_and_named(nodes: int, rank: int) -> None:
    verdict = judged(MEMORY, {(rank,): 0.5}, nodes)
    assert (verdict.outcome, verdict.severity, verdict.unit) == ("failed", "fail", "x")
    assert named(verdict) == [("gpu", f"n{rank // 8}", rank % 8)]
    assert verdict.value == pytest.approx(2, rel=0.02)
    assert verdict.place == f"GPU {rank % 8} of n{rank // 8}"
    assert "GB/s" in verdict.culprits[0].evidence


@rows("probe", [MEMORY, HOST, PAIRS], ids=lambda probe: str(probe.kind))
def test_places_that_are_alike_pass(probe: Arm) -> None:
    verdict = judged(probe, {}, nodes=4)
    assert (verdict.outcome, verdict.culprits) == ("passed", ())
    assert verdict.blocks() is False


@rows(("share", "outcome"), [(1 / 1.05, "passed"), (1 / 1.1, "inconclusive"), (1 / 1.2, "failed")])
def test_what_is_on_the_limit_is_open(share: float, outcome: str) -> None:
    verdict = judged(MEMORY, {(2,): share})
    assert verdict.outcome == outcome
    assert verdict.is_open == (outcome == "inconclusive")


def test_half_of_the_gpus_are_named_without_certainty() -> None:
    verdict = judged(MEMORY, {(rank,): 0.5 for rank in range(4)})
    assert verdict.outcome == "failed"
    assert len(verdict.culprits) == 4
    assert not any(culprit.is_certain for culprit in verdict.culprits)


def test_a_node_whose_gpus_all_are_slow_is_named_in_their_place() -> None:
    verdict = judged(MEMORY, {(rank,): 0.7 for rank in range(8, 16)}, nodes=4)
    assert named(verdict) == [("node", "n1", None)]


def by_position(ranks: Ranks) -> float:
    """The far half of each node has half of the bandwidth to its host, and of that between the halves."""
    return 500.0 if ranks[-1] % 8 > 3 else 1000.0


def test_positions_that_differ_on_all_nodes_are_no_fault() -> None:
    assert judged(HOST, {}, 4, by_position).outcome == "passed"
    assert judged(PAIRS, {}, 4, by_position).outcome == "passed"


@rows("rank", [0, 13, 31])
def test_a_host_link_is_compared_with_the_same_one_of_other_nodes(rank: int) -> None:
    verdict = judged(HOST, {(rank,): 0.3}, 4, by_position)
    assert named(verdict) == [("gpu", f"n{rank // 8}", rank % 8)]
    assert verdict.value == pytest.approx(1 / 0.3, rel=0.03)


def pairs_of(node: int, gpus: Collection[int]) -> dict[Ranks, float]:
    pairs = combinations(range(8), 2)
    return {(8 * node + one, 8 * node + other): 0.4 for one, other in pairs if {one, other} & set(gpus)}


@rows(
    ("shares", "expected"),
    [
        (pairs_of(2, [5]), [("gpu", "n2", 5)]),
        (pairs_of(0, range(8)), [("node", "n0", None)]),
        ({(17, 19): 0.3}, [("link", "n2", 1)]),
    ],
)
def test_a_slow_pair_blames_its_gpu_its_node_or_its_link(
    shares: Mapping[Ranks, float], expected: list[tuple[str, str, int | None]]
) -> None:
    verdict = judged(PAIRS, shares, 4, by_position)
    assert verdict.outcome == "failed"
    assert named(verdict) == expected


def test_two_of_four_at_a_position_are_named_without_certainty() -> None:
    verdict = judged(HOST, {(3,): 0.3, (11,): 0.3}, 4)
    assert verdict.outcome == "failed"
    assert {(one.host, one.gpu_index, one.is_certain) for one in verdict.culprits} == {
        ("n0", 3, False),
        ("n1", 3, False),
    }


@rows(("nodes", "missing"), [(1, 5), (4, 30)])
def test_a_place_that_was_not_measured_leaves_it_open_unless_another_is_beyond(nodes: int, missing: int) -> None:
    verdict = judged(MEMORY, {}, nodes, without=[missing])
    assert verdict.outcome == "not_measured"
    assert f"measured on {8 * nodes - 1} of {8 * nodes} GPUs" in verdict.reason
    failed = judged(MEMORY, {(1,): 0.5}, nodes, without=[missing])
    assert named(failed) == [("gpu", "n0", 1)]
    assert PARTLY_KNOWN in failed.flags


def test_a_round_without_a_place_may_be_the_one_that_fails() -> None:
    def lost(one: ProbeMeasurement) -> ProbeMeasurement | None:
        return None if (one.round, one.rank) == (8, 3) else one

    verdict = judged(MEMORY, {}, change=lost)
    assert verdict.outcome == "inconclusive"
    assert "8 of 9 rounds" in verdict.reason
    assert named(judged(MEMORY, {(1,): 0.5}, change=lost)) == [("gpu", "n0", 1)]


def test_wrong_data_fail_it_whatever_the_speed() -> None:
    def wrong(one: ProbeMeasurement) -> ProbeMeasurement:
        return replace(one, is_correct=False) if (one.round, one.rank) == (2, 3) else one

    verdict = judged(MEMORY, {}, change=wrong)
    assert verdict.outcome == "failed"
    assert WRONG_DATA in verdict.flags


def test_thousands_of_places_are_judged_in_seconds() -> None:
    nodes = 512
    plan = probe_plan(HOST, nodes)
    evidence = probe_evidence(plan, measure_probe(plan, HOST, values({(2051,): 0.5}, by_position), ROUNDS))
    began = process_time()
    verdict = judge(uniformity_case(HOST), evidence, CONFIDENCE)
    assert process_time() - began < 5
    assert named(verdict) == [("gpu", "n256", 3)]


def test_a_comparison_is_no_bound_on_bandwidth_for_a_sweep_a_calibration_or_the_simulator() -> None:
    file, layout = load_thresholds(packaged("thresholds.yaml")), Layout(4, 8)
    swept = [case.requirement.metric for case in sweep_cases(file, "b200", layout) if case.probe == PAIRS]
    assert swept == ["pair_bandwidth_gbps"]
    plan = probe_plan(PAIRS, 4)
    evidence = probe_evidence(plan, measure_probe(plan, PAIRS, values({}, by_position), 16))
    assert node_values(probe_case(PAIRS, 100.0), evidence)
    assert not node_values(uniformity_case(PAIRS), evidence)
    assert "under `peers`" in why_no_values(uniformity_case(PAIRS), evidence)
    only = replace(open_cluster(file, ClusterOptions("b200", gpus=32)), cases=(uniformity_case(MEMORY),))
    assert only.probe_values([MEMORY])[MEMORY] > 1000


@rows(("share", "is_needed"), [(1.0, False), (1 / 1.1, True), (0.5, False)])
def test_a_probe_is_measured_until_its_places_are_decided(share: float, is_needed: bool) -> None:
    plan = probe_plan(MEMORY)
    decider = Decider(plan, [probe_case(MEMORY, 100.0), uniformity_case(MEMORY)], CONFIDENCE)
    found = measure_probe(plan, MEMORY, values({(2,): share}, lambda _: 1000.0), ROUNDS)
    decider.hear(gang_of(found))
    for number in range(ROUNDS):
        for block in probe_blocks_of([one for one in found if one.round == number]):
            decider.hear(block)
        decider.hear(RoundEnd(study="probes", round=number, arms=(MEMORY.name,)))
    assert decider.needed_arms("probes") == ([MEMORY.name] if is_needed else [])
