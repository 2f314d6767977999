"""A slow link among those of a real Slurm is named, and nobody else is.

More nodes, a slow link in each place, and one with little CPU beside it, are benchmarks/lab_acceptance.py's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_ddpscale.results.pair_record import pairs_of
from pytest_ddpscale.results.records import gangs_by_number
from pytest_ddpscale.results.survey_record import surveys_of
from tests.builders.measurements import measurements_in
from tests.integration.lab_runs import CHECKED, DEADLINE_S, TRAINING, LabRun, accept
from tests.listening import addresses_listened_on
from tests.slurm_lab.lab import SlurmLab
from tests.slurm_lab.polling import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timing]

WEAK = "weak_scaling_efficiency"
# 200 Mbit/s are 0.025 GB/s.
PAIRS = (
    "      - {metric: pair_bandwidth_gbps, probe: send-recv-1mib, world_size: all, at_least: 0.04, provisional: true,"
    " severity: fail, source: {reasoning: 'cables of this lab carry several times as much'}}\n"
)
SHORTER = ("--ddp-block=0.25s",)  # while these run, nothing else does; rounds end when all is decided


def names(nodes: int) -> list[str]:
    return [f"n{number + 1}" for number in range(nodes)]


def assert_slow_link(ran: LabRun, culprit: dict[str, Any], nodes: int) -> None:
    assert culprit["kind"] == "node"
    assert "GB/s with " in culprit["evidence"]
    partners = {host for one in pairs_of(ran.run.read_records()) for host in one.hosts}
    assert partners == set(names(nodes))


def assert_rejected_for(ran: LabRun, host: str) -> None:
    assert ran.state == "FAILED", ran.output
    assert ran.judgement["outcome"] == "rejected", ran.output
    assert ran.verdict(WEAK)["outcome"] == "failed", ran.output
    assert ran.accused == {host}, ran.output
    assert host in ran.output


def assert_listening_on_the_cable(lab: SlurmLab, hosts: list[str]) -> None:
    """Ranks listen on their node's address in the lab's network, and else at most on loopback."""
    expected = {host: {lab.node(host).address} for host in hosts}

    def found() -> dict[str, set[str]]:
        # srun, in the job on the first node, is Slurm's own, and knows who connects.
        pids = {host: [one.pid for one in lab.node(host).processes() if one.name() != "srun"] for host in hosts}
        return {host: addresses_listened_on(pids[host]) - {"127.0.0.1"} for host in hosts}

    wait_until(lambda: all(found().values()), DEADLINE_S, "ranks to listen")
    assert found() == expected


def test_healthy_nodes_are_accepted_and_nobody_is_accused(lab: SlurmLab, tmp_path: Path) -> None:
    def once_up() -> None:
        lab.share_cores(*names(3))  # not before: on shares of the cores ranks take twice as long to start
        assert_listening_on_the_cable(lab, names(3))

    ran = accept(lab, tmp_path, 3, *SHORTER, thresholds=CHECKED, once_up=once_up)
    assert ran.state == "COMPLETED", ran.output
    assert ran.judgement["outcome"] == "accepted", ran.output
    assert ran.accused == set()
    records = ran.run.read_records()
    # The requirement on one rank was measured on all nodes at once, in the same rounds.
    alone = {(one.host, one.round) for one in measurements_in(ran.run) if one.arm == "alone"}
    assert {host for host, _ in alone} == set(names(3))
    assert len({number for host, number in alone if host == "n3"}) >= 5
    assert list(surveys_of(records)) == names(3)
    assert [host for gang in gangs_by_number(records).values() for host in gang.hosts] == names(3), (
        "ranks come in Slurm's order"
    )
    coverage = ran.judgement["coverage"]
    assert [path[:2] for path in coverage["paths"]] == [[0, 1], [0, 2], [1, 2]]
    assert coverage["over_all_nodes"] == [ran.verdict(WEAK)["id"]]
    assert [node["tested_by"] for node in coverage["nodes"]] == [["survey", "training", "pairs"]] * 3
    assert lab.processes() == []


def test_a_node_behind_a_slow_link_is_named(lab: SlurmLab, tmp_path: Path) -> None:
    """By what all nodes do together, and by a ring of neighbours, of whose three pairs two are slow."""
    lab.node("n2").slow_link("200mbit")
    ran = accept(lab, tmp_path, 3, *SHORTER, thresholds=TRAINING + PAIRS, once_up=lambda: lab.share_cores(*names(3)))
    assert_rejected_for(ran, "n2")
    pairs = ran.verdict("pair_bandwidth_gbps")
    assert (pairs["id"], pairs["outcome"]) == ("pair_bandwidth_gbps[send-recv-1mib-all]", "failed"), ran.output
    assert [(culprit["kind"], culprit["host"]) for culprit in pairs["culprits"]] == [("node", "n2")], ran.output
    (culprit,) = ran.verdict(WEAK)["culprits"]
    assert_slow_link(ran, culprit, 3)
    assert lab.processes() == []
