"""Nodes whose devices are connected otherwise than on the other nodes."""

from __future__ import annotations

from pytest_ddpscale.checks.topology import connections
from tests.builders.nodes_checked import TOPOLOGY, judged, survey

ODD = TOPOLOGY.replace("GPU0\t X \tNV12", "GPU0\t X \tSYS").replace("GPU1\tNV12", "GPU1\tSYS")
WITHOUT_A_CARD = "\n".join(
    line.replace("\tNIC1", "", 1).replace("\tPXB\tSYS\t4", "\tPXB\t4").replace("\tSYS\tPXB\t1", "\tSYS\t1")
    for line in TOPOLOGY.splitlines()
    if not line.startswith("NIC1")
).replace("NIC0\tPXB\tPXB\tSYS\tSYS\t X \tSYS", "NIC0\tPXB\tPXB\tSYS\tSYS\t X")


def test_a_matrix_is_read_without_affinities_and_legend() -> None:
    found = connections(TOPOLOGY)
    assert len(found) == 6 * 5
    assert (found["GPU0", "GPU3"], found["GPU2", "NIC1"], found["NIC0", "NIC1"]) == ("NV12", "PXB", "SYS")


def test_what_is_no_matrix_has_no_connections() -> None:
    assert connections("") == connections("Failed to initialize NVML: Driver/library version mismatch") == {}


def test_nodes_that_are_alike_pass() -> None:
    assert judged("topology", survey("n1"), survey("n2"), survey("n3")).outcome == "passed"


def test_the_node_that_differs_is_named_with_the_pair() -> None:
    result = judged("topology", survey("n1"), survey("n2", topology=ODD), survey("n3"))
    assert result.outcome == "failed"
    (culprit,) = result.culprits
    assert (culprit.host, culprit.is_certain) == ("n2", True)
    assert culprit.evidence == "GPU0–GPU1 SYS instead of NV12; 2 of 3 nodes agree"


def test_a_card_that_is_missing_is_told() -> None:
    result = judged("topology", survey("n1"), survey("n2"), survey("n3", topology=WITHOUT_A_CARD))
    (culprit,) = result.culprits
    assert culprit.evidence.startswith("GPU0–NIC1 missing instead of SYS, GPU1–NIC1 missing")


def test_of_two_nodes_that_differ_neither_is_certain() -> None:
    result = judged("topology", survey("n1"), survey("n2", topology=ODD))
    assert [culprit.is_certain for culprit in result.culprits] == [False, False]


def test_a_node_that_tells_no_topology_is_not_passed() -> None:
    result = judged("topology", survey("n1"), survey("n2", topology=""))
    assert result.outcome == "not_measured"
    assert "nvidia-smi topo -m printed no topology" in result.reason
