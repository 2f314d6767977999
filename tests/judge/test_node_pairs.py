"""Who is named by what a search measured: any number of nodes, and pairs chosen by what was slow, are in no line."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.pairing import first_rounds
from tests.builders.judged import CONFIDENCE
from tests.builders.probes import (
    measure_probe,
    pair_columns_of,
    probe_case,
    probe_evidence,
    probe_plan,
    steady,
    with_columns,
)
from tests.plan.network import Network


def named(network: Network) -> set[frozenset[int]]:
    """Numbers of nodes, and of both ends of links."""
    probe = Arm("all-reduce-32mib", network.nodes)
    plan = probe_plan(probe, nodes=network.nodes, ranks_per_node=1)
    evidence = probe_evidence(plan, measure_probe(plan, probe, steady(50.0)))
    pairs = pair_columns_of([(one.round, *one.nodes, one.gbps) for one in network.search()])
    found = judge(probe_case(probe, 100.0), with_columns(evidence, pairs), CONFIDENCE).culprits
    return {frozenset(int(host[1:]) for host in one.hosts) for one in found}


@given(st.data(), st.integers(3, 64), st.integers())
def test_half_of_the_nodes_and_a_link_are_named_and_nobody_else(data: st.DataObject, nodes: int, seed: int) -> None:
    bad = data.draw(st.sets(st.integers(0, nodes - 1), max_size=nodes if nodes < 9 else 1))
    pairs = sorted(pair for pairs in first_rounds(nodes) for pair in pairs if bad.isdisjoint(pair))
    links = data.draw(st.sets(st.sampled_from(pairs), max_size=1)) if nodes > 5 and len(bad) < 2 else set()
    expected = {frozenset({node}) for node in bad} | {frozenset(link) for link in links}
    assert named(Network(nodes, bad, links, seed=seed)) == (set() if 2 * len(bad) > nodes else expected)
