"""A slow link, or a node that drops packets, among those of a real Slurm is named, and nobody else is.

docs/evidence/slurm-lab.md has healthy nodes, more nodes, a slow link in each place, and one with little CPU beside it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_ddpscale.plan.pairing import PAIRS as STUDY
from tests.builders.probes import pair_evidence
from tests.integration.lab_runs import TRAINING, LabRun, accept
from tests.slurm_lab.lab import SlurmLab

WEAK = "weak_scaling_efficiency"
# 80 Mbit/s are 0.01 GB/s: no neighbour on these cores makes another link, of some GB/s, that slow. Steps of a single
# small image take a twentieth of what their gradients take over it, so that a neighbour who slows them hides no loss.
SLOW = "80mbit"
SMALL_STEPS = TRAINING.replace("batch: {tiny: 4,", "batch: {tiny: 1,").replace("image_size: 64", "image_size: 32")
PAIRS = (
    "      - {pair_bandwidth_gbps: {all: 0.018}, probe: send-recv-1mib, severity: fail,"
    " provisional: cables of this lab carry several times as much}\n"
)
SHORTER = ("--ddp-rounds=8", "--ddp-block=0.1s")  # a step over the slow link takes longer


def names(nodes: int) -> list[str]:
    return [f"n{number + 1}" for number in range(nodes)]


def assert_slow_link(ran: LabRun, culprit: dict[str, Any], nodes: int) -> None:
    assert culprit["kind"] == "node"
    assert "GB/s, others reach " in culprit["evidence"]
    partners = {
        host for one in pair_evidence(ran.run.read_records()).columns.of_study(STUDY) for host in one.ranks.by_host
    }
    assert partners == set(names(nodes))


def assert_rejected_for(ran: LabRun, host: str) -> None:
    assert ran.state == "FAILED", ran.output
    assert ran.judgement["outcome"] == "rejected", ran.output
    assert ran.verdict(WEAK)["outcome"] == "failed", ran.output
    assert ran.accused == {host}, ran.output
    assert host in ran.output


@pytest.mark.lab
def test_a_node_behind_a_slow_link_is_named(lab: SlurmLab, tmp_path: Path) -> None:
    """By what all nodes do together, and by a ring of neighbours, of whose three pairs two are slow."""
    lab.node("n3").slow_link(SLOW)  # the last, so that only steps of all nodes take long
    thresholds = SMALL_STEPS + PAIRS
    ran = accept(lab, tmp_path, 3, *SHORTER, thresholds=thresholds, once_up=lambda: lab.share_cores(*names(3)))
    assert_rejected_for(ran, "n3")
    pairs = ran.verdict("pair_bandwidth_gbps")
    assert (pairs["id"], pairs["outcome"]) == ("pair_bandwidth_gbps[send-recv-1mib-all]", "failed"), ran.output
    named = [(culprit["kind"], place["host"]) for culprit in pairs["culprits"] for place in culprit["places"]]
    assert named == [("node", "n3")], ran.output
    (culprit,) = ran.verdict(WEAK)["culprits"]
    assert_slow_link(ran, culprit, 3)
    assert lab.processes() == []


@pytest.mark.lab
def test_a_node_that_drops_5_percent_of_its_packets_is_named(lab: SlurmLab, tmp_path: Path) -> None:
    """TCP sends them again: pairs with it are as fast as others at times, but some messages wait for 0.2 s."""
    lab.node("n2").lossy_link(5)
    ran = accept(lab, tmp_path, 4, *SHORTER, once_up=lambda: lab.share_cores(*names(4)))
    assert ran.judgement["outcome"] in ("rejected", "incomplete"), ran.output
    assert ran.accused <= {"n2"}, ran.output
    # Where messages take little longer than the CPU needs for them, all may be slow, and the node is named for that.
    reasons = [one["reason"] for one in (ran.judgement, *ran.judgement["verdicts"])]
    told = [*reasons, *ran.judgement["notes"]]  # the terminal cuts long headlines
    assert any("communication is slow at node n2 (" in one for one in told), ran.output
    assert lab.processes() == []
