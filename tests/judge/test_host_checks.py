"""Checks of hosts: software, how devices are connected, links that NCCL uses, room and clocks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as altered

from pytest_ddpscale.judge.host_checks import connections
from pytest_ddpscale.run.survey_record import ClockSkew, InfiniBandPort, Survey
from pytest_ddpscale.run.transport_record import Transport
from pytest_ddpscale.run.verdicts import Verdict
from tests.builders.nodes_checked import A100, CPU, GIB, TOPOLOGY, VERSIONS, blamed, cpu_survey, judged, survey

COMPARED = [name for name in VERSIONS if name != "kernel"]


def node(host: str, **versions: Any) -> Survey:
    return survey(host, versions=VERSIONS | versions)


def test_the_odd_one_out_is_named_with_what_it_has_and_what_most_have() -> None:
    for name in COMPARED:
        result = judged("versions", node("n1"), node("n2"), node("n3", **{name: "0.9"}), node("n4"))
        assert (*blamed(result), result.value) == ("failed", [("n3", True)], 0.75)
        assert result.culprits[0].evidence == f"{name} 0.9; 3 of 4 nodes have {VERSIONS[name]}"


def test_without_a_majority_nobody_is_certain_and_one_node_agrees_with_itself() -> None:
    assert blamed(judged("versions", node("n1"))) == ("passed", [])
    two = judged("versions", node("n1"), node("n2", nccl="2.26.2"))
    assert (*blamed(two), two.value) == ("failed", [("n1", False), ("n2", False)], 0.0)
    halves = judged("versions", node("n1"), node("n2"), node("n3", driver="570.1"), node("n4", driver="570.1"))
    assert [culprit.is_certain for culprit in halves.culprits] == [False] * 4


def test_other_kernels_and_a_torch_that_was_not_tried_are_noted_once_and_fail_nobody() -> None:
    kernel = judged("versions", node("n1"), node("n2"), node("n3", kernel="5.15"))
    torch = judged("versions", *(node(f"n{number}", torch="2.99.0+cu150") for number in range(1, 5)))
    for result in (kernel, torch):
        assert (result.outcome, len(result.notes)) == ("passed", 1)


def test_a_version_that_is_not_known_is_never_the_same() -> None:
    for name in COMPARED:
        other = survey("n2", versions=VERSIONS | {name: None}, torch_problem="too slow")
        result = judged("versions", node("n1"), other)
        assert result.outcome == "not_measured"
        assert f"n2: no version of {name} (too slow)" in result.reason


def test_nodes_without_gpus_are_compared_by_what_they_have() -> None:
    assert judged("versions", cpu_survey("n1"), cpu_survey("n2"), expectation=CPU).outcome == "passed"
    other = cpu_survey("n2", versions={"torch": "2.11.0+cpu", "python": "3.11.9", "pytest_ddpscale": "0.1.0"})
    assert judged("versions", cpu_survey("n1"), other, expectation=CPU).outcome == "failed"


CUDA_13 = {"torch": "2.14.1+cu130", "cuda": "13.0", "cuda_driver": "12.8", "driver": "570.86.15"}


def old_driver(host: str, torch_gpus: int | None, **versions: Any) -> Survey:
    return altered(node(host, **CUDA_13 | versions), torch_gpus=torch_gpus)


def test_a_driver_that_is_too_old_for_torch_fails_with_what_to_install() -> None:
    result = judged("kernels", old_driver("n1", 0))
    assert blamed(result) == ("failed", [("n1", True)])
    assert result.reason == (
        "1 of 1 node not as expected: n1: the driver supports CUDA 12.8, torch 2.14.1+cu130 needs 13.0: "
        "driver 580 or later, or a cu126 or cu128 wheel"
    )
    everywhere = judged("kernels", old_driver("n1", 0), old_driver("n2", 0))
    assert blamed(everywhere) == ("failed", [("n1", False), ("n2", False)]), "the wheel may be wrong"


def test_an_older_driver_of_the_same_major_version_or_with_cuda_compat_is_enough() -> None:
    for good in (
        old_driver("n1", None, cuda_driver="13.0", cuda="13.2"), old_driver("n1", None, cuda_driver="14.0"),
        old_driver("n1", 8), old_driver("n1", None, cuda=None), old_driver("n1", None, cuda_driver="unknown"),
    ):  # fmt: skip
        result = judged("kernels", good)
        assert (result.outcome, result.notes) == ("passed", ())


def test_where_torch_was_not_asked_an_older_driver_is_only_noted() -> None:
    result = judged("kernels", old_driver("n1", None))
    assert (result.outcome, len(result.notes)) == ("passed", 1)


ODD = TOPOLOGY.replace("GPU0\t X \tNV12", "GPU0\t X \tSYS").replace("GPU1\tNV12", "GPU1\tSYS")
WITHOUT_A_CARD = "\n".join(
    line.replace("\tNIC1", "", 1).replace("\tPXB\tSYS\t4", "\tPXB\t4").replace("\tSYS\tPXB\t1", "\tSYS\t1")
    for line in TOPOLOGY.splitlines()
    if not line.startswith("NIC1")
).replace("NIC0\tPXB\tPXB\tSYS\tSYS\t X \tSYS", "NIC0\tPXB\tPXB\tSYS\tSYS\t X")


def test_a_matrix_is_read_without_affinities_and_legend_and_what_is_none_has_no_connections() -> None:
    found = connections(TOPOLOGY)
    assert found is not None
    assert len(found) == 6 * 5
    assert (found["GPU0", "GPU3"], found["GPU2", "NIC1"], found["NIC0", "NIC1"]) == ("NV12", "PXB", "SYS")
    assert connections("") is None
    assert connections("Failed to initialize NVML: Driver/library version mismatch") is None


# Of a virtual machine with an H200, nvidia-smi 580.159.04.
ONE_GPU = "GPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \t0-15\t0\t\tN/A\n\nLegend:\n\n  X    = Self"


def test_a_single_gpu_has_no_connections_which_is_not_silence() -> None:
    assert connections(ONE_GPU) == {}
    assert judged("topology", survey("n1", topology=ONE_GPU)).outcome == "passed"
    lacking = judged("topology", survey("n1"), survey("n2", topology=ONE_GPU), survey("n3"))
    assert blamed(lacking) == ("failed", [("n2", True)])


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
        Transport(
            host=host,
            rank=0,
            local_rank=n,
            device=f"GPU-{host}-{n}",
            gpu_index=n,
            network=network,
            **channels,
            **changes,
        )
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
        # Nobody to connect with: NCCL may not have begun its log.
        (ranks("n1", {}, {}, problem="no log")[:1], {"gpus_per_node": 1}, "passed"),
        (ranks("n1", {}, {}, problem="no log")[:1], {}, "not_measured"),  # the other seven are silent
    ]
    two_alone = [altered(ranks(host, {}, {}, problem="no log")[0]) for host in ("n1", "n2")]
    for crosses_nodes, outcome in ((False, "passed"), (True, "not_measured")):
        expectation = replace(A100, gpus_per_node=1, crosses_nodes=crosses_nodes)
        nodes = (survey("n1"), survey("n2"))
        assert judged("transport", *nodes, transports=two_alone, expectation=expectation).outcome == outcome
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


def test_the_backend_that_may_not_overlap_is_noted_with_the_versions() -> None:
    transports = ranks("n1", P2P, RDMA, process_group="ProcessGroupNCCL2") + ranks("n2", P2P, RDMA)
    result = judged("versions", survey("n1"), survey("n2"), transports=transports)
    assert result.outcome == "passed"
    [note] = result.notes
    assert note.startswith("n1: torch communicates through ProcessGroupNCCL2; it may not overlap")
    assert "TORCH_DIST_USE_NCCL2=0,1" in note


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


def with_clock(host: str, skew_s: float, width_s: float = 0.02) -> Survey:
    return survey(host, clock=ClockSkew(skew_s - width_s / 2, skew_s + width_s / 2))


def clocks(*skews_s: float) -> Verdict:
    """Of nodes n0, n1 …"""
    return judged("clock", *(with_clock(f"n{number}", skew_s) for number, skew_s in enumerate(skews_s)))


def test_a_full_disk_fails_its_node_and_room_that_is_not_known_is_not_enough() -> None:
    full = survey("n2", free_bytes={"run_directory": GIB // 2})
    assert blamed(judged("disk", survey("n1"), full, survey("n3"))) == ("failed", [("n2", True)])
    assert judged("disk", survey(free_bytes={"temporary": 9 * GIB})).outcome == "not_measured"
    little = judged("disk", survey(free_bytes={"run_directory": 9 * GIB, "shared_memory": GIB // 16}))
    assert (little.outcome, len(little.notes)) == ("passed", 1)
    for name, place in (("temporary", "the temporary folder"), ("shared_memory", "shared memory (/dev/shm)")):
        [noted] = judged("disk", survey(free_bytes={"run_directory": 9 * GIB, name: 0})).notes
        assert noted.endswith(f"0.00 GiB are free in {place}")


def test_on_cpu_each_rank_needs_a_core() -> None:
    for cores, outcome in ((2, "passed"), (1, "failed"), (None, "not_measured")):
        assert judged("gpus", cpu_survey(cores=cores), expectation=CPU).outcome == outcome


def test_a_clock_that_is_off_is_named_and_certain_only_beside_a_majority() -> None:
    for skews_s, expected in (
        ((0.0, 0.1, -4.0), [("n2", True)]),
        ((0.0, 1.5), [("n0", False), ("n1", False)]),
        ((0.0, 10.0, 0.0, 10.0), [(f"n{number}", False) for number in range(4)]),
        ((0.0, 0.9, 1.9, 5.0), [("n0", False), ("n3", False)]),  # the median means nothing
        ((0.0, 0.9), []),
        ((500.0,) * 4, []),  # the supervisor's own clock is off
    ):
        assert blamed(clocks(*skews_s)) == ("failed" if expected else "passed", expected)


def test_a_clock_of_which_little_or_nothing_is_known_neither_passes_nor_fails() -> None:
    vague = with_clock("n3", 2.0, width_s=5.0)
    assert judged("clock", with_clock("n1", 0.0), with_clock("n2", 0.0), vague).outcome == "not_measured"
    silent = survey("n1", clock=None)
    assert judged("clock", with_clock("n2", 0.0), silent).outcome == "not_measured"
    assert judged("clock", silent, survey("n2", clock=None)).outcome == "not_measured"
    assert judged("clock", silent, planned=2).outcome == "not_measured"
    assert judged("clock", silent).outcome == "passed", "it has no other clock to agree with"


@given(offset_s=st.floats(-1e6, 1e6), skews_s=st.lists(st.floats(-30, 30), min_size=2, max_size=7))
def test_what_the_supervisors_clock_shows_makes_no_difference(offset_s: float, skews_s: list[float]) -> None:
    whole = [round(skew_s * 8) / 8 + 1 / 16 for skew_s in skews_s]  # off every boundary, and exact in binary
    offset_s = float(round(offset_s))
    plain = judged("clock", *(with_clock(f"n{i}", skew_s, 0.25) for i, skew_s in enumerate(whole)))
    moved = judged("clock", *(with_clock(f"n{i}", skew_s + offset_s, 0.25) for i, skew_s in enumerate(whole)))
    assert (plain.outcome, plain.value) == (moved.outcome, moved.value)
