"""NCCL uses the links that nodes have."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as altered

from pytest_ddpscale.run.survey_record import InfiniBandPort, Survey
from pytest_ddpscale.run.transport_record import Transport
from pytest_ddpscale.run.verdicts import Verdict
from tests.builders.nodes_checked import A100, CPU, blamed, cpu_survey, judged, survey

P2P = {"P2P/CUMEM": 24}
RDMA = {"NET/IB/GDRDMA": 4}
TCP = {"NET/Socket": 4}
DOWN = (InfiniBandPort("mlx5_0", 1, "1: DOWN", "InfiniBand"),)


def ranks(host: str, within: dict[str, int], between: dict[str, int], **changes: Any) -> list[Transport]:
    """All ranks of a node."""
    network = "Socket" if between == TCP else "IB"
    channels: dict[str, Any] = {
        "channels": within | between,
        "channels_within_node": within,
        "channels_between_nodes": between,
    }
    return [
        Transport(host=host, rank=0, local_rank=n, device=f"GPU-{host}-{n}", network=network, **channels, **changes)
        for n in range(8)
    ]


def two_nodes(within: dict[str, int], between: dict[str, int], *nodes: Survey) -> Verdict:
    surveys = nodes or (survey("n1"), survey("n2"))
    return judged(
        "transport", *surveys, planned=2, transports=ranks("n1", within, between) + ranks("n2", within, between)
    )


def test_tcp_between_nodes_is_a_fault_of_uncertain_nodes_where_there_is_something_faster() -> None:
    for state in ("ACTIVE", "4: ACTIVE"):
        port = ports(state)
        result = two_nodes(P2P, TCP, survey("n1", infiniband=port), survey("n2", infiniband=port))
        assert (*blamed(result), result.value) == ("failed", [("n1", False), ("n2", False)], 0.0)
    down = two_nodes(P2P, TCP, survey("n1"), survey("n2", infiniband=DOWN))
    assert "ports; here: mlx5_0:1 is 1: DOWN" in down.culprits[1].evidence
    for none in ((), DOWN):
        assert two_nodes(P2P, TCP, survey("n1", infiniband=none), survey("n2", infiniband=none)).outcome == "passed"
    quiet = survey("n1", infiniband=())
    assert two_nodes(P2P, TCP, quiet).outcome == "not_measured"
    assert two_nodes(P2P, TCP, quiet, Survey("n2", 1.7e9, problem="it hangs")).outcome == "not_measured"


def test_a_detour_within_a_node_fails_unless_it_has_no_nvlinks() -> None:
    for detour in ("SHM/direct/direct", "SHM", "NET/IB/GDRDMA", "NET/Socket"):
        result = two_nodes(P2P | {detour: 2}, RDMA)
        assert result.outcome == "failed"
        assert f"reaches GPUs of its own node through {detour}; expected NVLink or P2P" in result.reason
        assert result.culprits[0].kind == "gpu"
    anywhere = [altered(one, channels={"NET/Socket": 2}, channels_within_node={}) for one in ranks("n1", {}, {})]
    rows: list[tuple[list[Transport], dict[str, Any], str]] = [
        (ranks("n1", {"SHM/direct/direct": 4}, {}), {"nvlinks": 0}, "passed"),
        (anywhere, {}, "failed"),  # wherever it leads
        (ranks("n1", {}, {}, nvls=True), {}, "passed"),  # channels in the switch
        (ranks("n1", {}, {})[:1], {"gpus_per_node": 1}, "passed"),  # nobody to connect with
    ]
    for transports, changes, outcome in rows:
        expectation = replace(A100, **changes)
        assert judged("transport", survey("n1"), transports=transports, expectation=expectation).outcome == outcome


def test_tcp_of_which_nobody_knows_where_it_leads_counts_as_leaving_the_node() -> None:
    one_unknown = ranks("n1", P2P, RDMA)
    one_unknown[0] = altered(one_unknown[0], channels=P2P | TCP, channels_between_nodes={})
    result = judged("transport", survey("n1"), survey("n2"), transports=one_unknown + ranks("n2", P2P, RDMA))
    assert result.outcome == "failed"
    assert [culprit.host for culprit in result.culprits] == ["n1"]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"channels": {}, "channels_within_node": {}, "channels_between_nodes": {}},
            "did not connect it to any other rank",
        ),
        ({"problem": "no log"}, "no log"),
        ({"unreadable": ("Channel 0 : ? via MAGIC",)}, "unknown line in NCCL's log: Channel 0 : ? via MAGIC"),
    ],
)
def test_a_rank_of_which_nothing_is_known_does_not_pass(changes: dict[str, Any], text: str) -> None:
    transports = ranks("n1", P2P, RDMA) + ranks("n2", P2P, RDMA)
    transports[3] = altered(transports[3], **changes)
    result = judged("transport", survey("n1"), survey("n2"), transports=transports)
    assert result.outcome == "not_measured"
    assert "n1: GPU 3 (GPU-n1-3): " in result.reason
    assert text in result.reason


def test_ranks_and_nodes_that_said_nothing_do_not_pass() -> None:
    assert two_nodes(P2P, RDMA).outcome == "passed"
    assert two_nodes(P2P, {}).outcome == "not_measured"
    nodes = (survey("n1"), survey("n2"))
    assert judged("transport", *nodes).outcome == "not_measured"
    assert judged("transport", *nodes, transports=ranks("n1", P2P, RDMA)).outcome == "not_measured"
    some = ranks("n1", P2P, RDMA) + ranks("n2", P2P, RDMA)[:7]
    assert "n2: NCCL logged connections of 7 of 8 ranks" in judged("transport", *nodes, transports=some).reason


def test_rdma_through_the_hosts_memory_is_noted() -> None:
    result = two_nodes(P2P, {"NET/IB": 4})
    assert result.outcome == "passed"
    assert "no GPUDirect RDMA" in result.notes[0]


ETHERNET = InfiniBandPort("mlx5_0", 1, "ACTIVE", "Ethernet")


def test_tcp_beside_ethernet_ports_is_noted_unless_roce_is_used_somewhere() -> None:
    nodes = (survey("n1", infiniband=(ETHERNET,)), survey("n2", infiniband=(ETHERNET,)))
    result = two_nodes(P2P, TCP, *nodes)
    assert (result.outcome, result.culprits) == ("passed", ())
    assert result.notes[0] == "n1: uses TCP to other nodes; could mlx5_0:1 (Ethernet) do RoCE?"
    mixed = judged("transport", *nodes, transports=ranks("n1", P2P, TCP) + ranks("n2", P2P, RDMA))
    assert mixed.outcome == "failed"
    (culprit,) = mixed.culprits
    assert (culprit.host, culprit.is_certain) == ("n1", True)
    assert culprit.evidence == "uses TCP to other nodes although mlx5_0:1 (Ethernet) is active"


def ports(*states: str) -> tuple[InfiniBandPort, ...]:
    return tuple(InfiniBandPort(f"mlx5_{i}", 1, state, "InfiniBand") for i, state in enumerate(states))


def with_ports(*nodes: tuple[InfiniBandPort, ...]) -> Verdict:
    hosts = [f"n{i}" for i in range(len(nodes))]
    surveys = [survey(host, infiniband=its) for host, its in zip(hosts, nodes, strict=True)]
    transports = [one for host in hosts for one in ranks(host, P2P, RDMA)]
    return judged("transport", *surveys, transports=transports)


def test_a_node_with_fewer_active_infiniband_ports_than_most_others_fails_and_names_them() -> None:
    healthy = ports("ACTIVE", "ACTIVE")
    result = with_ports(healthy, healthy, ports("ACTIVE", "DOWN"))
    assert result.outcome == "failed"
    (culprit,) = result.culprits
    assert (culprit.kind, culprit.host, culprit.is_certain) == ("node", "n2", True)
    expected = "1 InfiniBand ports are active; 2 of 2 other nodes have 2; here: mlx5_0:1 is ACTIVE, mlx5_1:1 is DOWN"
    assert culprit.evidence == expected
    assert with_ports(healthy, healthy, ()).culprits[0].evidence.endswith("it has none")


def test_ports_that_no_majority_has_accuse_nobody() -> None:
    one, two = ports("ACTIVE", "DOWN"), ports("ACTIVE", "ACTIVE")
    for nodes in ((one, one, two), (one, one, one), ((ETHERNET, *one), one, one), (two, ports("ACTIVE", "1: DOWN"))):
        assert with_ports(*nodes).outcome == "passed"
    assert with_ports(two, ports("ACTIVE", "1: DOWN")).notes


def test_gloo_is_not_judged() -> None:
    transports = [Transport(host="n1", rank=0, local_rank=0, device="cpu", network="gloo")]
    result = judged("transport", cpu_survey("n1"), expectation=CPU, transports=transports)
    assert result.outcome == "not_measured"
    assert "does not apply without a GPU" in result.reason
