"""Nodes whose devices are connected otherwise than on the other nodes."""

from __future__ import annotations

from pytest_ddpscale.judge.host_checks import connections
from tests.builders.nodes_checked import TOPOLOGY, blamed, judged, survey

ODD = TOPOLOGY.replace("GPU0\t X \tNV12", "GPU0\t X \tSYS").replace("GPU1\tNV12", "GPU1\tSYS")
WITHOUT_A_CARD = "\n".join(
    line.replace("\tNIC1", "", 1).replace("\tPXB\tSYS\t4", "\tPXB\t4").replace("\tSYS\tPXB\t1", "\tSYS\t1")
    for line in TOPOLOGY.splitlines()
    if not line.startswith("NIC1")
).replace("NIC0\tPXB\tPXB\tSYS\tSYS\t X \tSYS", "NIC0\tPXB\tPXB\tSYS\tSYS\t X")


def test_a_matrix_is_read_without_affinities_and_legend_and_what_is_none_has_no_connections() -> None:
    found = connections(TOPOLOGY)
    assert len(found) == 6 * 5
    assert (found["GPU0", "GPU3"], found["GPU2", "NIC1"], found["NIC0", "NIC1"]) == ("NV12", "PXB", "SYS")
    assert connections("") == connections("Failed to initialize NVML: Driver/library version mismatch") == {}


def test_the_node_that_differs_is_named_with_the_pair() -> None:
    for odd, evidence in (
        (ODD, "GPU0–GPU1 SYS instead of NV12"),
        (WITHOUT_A_CARD, "GPU0–NIC1 missing instead of SYS, GPU1–NIC1 missing"),
    ):
        result = judged("topology", survey("n1"), survey("n2", topology=odd), survey("n3"))
        assert blamed(result) == ("failed", [("n2", True)])
        assert result.culprits[0].evidence.startswith(evidence)


def test_alike_nodes_pass_of_two_that_differ_neither_is_certain_and_silence_is_no_pass() -> None:
    for topology, expected in (
        (TOPOLOGY, ("passed", [])),
        (ODD, ("failed", [("n1", False), ("n2", False)])),
        ("", ("not_measured", [])),
    ):
        assert blamed(judged("topology", survey("n1"), survey("n2", topology=topology))) == expected
