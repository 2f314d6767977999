"""What NCCL's log says of a rank's connections.

The excerpts are lines of real logs, as people posted them, of NCCL up to 2.27 and of AMD's RCCL.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.run.records import RankTransport
from pytest_ddpscale.worker.transport import TransportLog, transport_environment


def log_of(path: Path, rank: int = 0, nodes: int = 4, per_node: int = 1, backend: str = "nccl", **environ: str) -> Any:
    return TransportLog(rank, Layout(nodes, per_node), backend, {"NCCL_DEBUG_FILE": str(path), **environ})


def heard(path: Path, messages: Sequence[str], groups: Any = (), **of_log: Any) -> RankTransport:
    """What is read of messages that NCCL wrote."""
    path.write_text("".join(f"node-0-0:188:585 [0] NCCL INFO {message}\n" for message in messages), encoding="utf-8")
    transport: RankTransport = log_of(path, **of_log).read(groups)
    return transport


def said(network: str | None, within: dict[str, int], between: dict[str, int], **others: Any) -> dict[str, Any]:
    sides = {"channels_within_node": within, "channels_between_nodes": between, "channels": within | between}
    return {"network": network, **sides, **others}


IN_GROUP = ["Channel 00/0 : 1[0] -> 0[0] [send] via NET/IB/0"]
ON_SECOND_NODE = {"rank": 8, "nodes": 2, "per_node": 8}
NOWHERE = said(None, {}, {}, channels={"NET/IB": 1})
UNREADABLE = ["Channel 00/0 : 0[0] -> 1[1] via TELEPATHY/0", "Channel 00/0 : here -> there via P2P/CUMEM"]
SIMPLE = "NCCL_PROTO set by environment to simple"
ON_EFA = ["Using network AWS Libfabric", SIMPLE]
LOGS: dict[str, tuple[list[str], dict[str, Any], dict[str, Any]]] = {
    "NCCL 2.27, four nodes, AWS's libfabric plugin, connected when it was first used": (
        [
            "NCCL version 2.27.3+cuda12.9",
            "NET/Plugin: Failed to find ncclCollNetPlugin_v10 symbol.",
            "Using network Libfabric",
            "comm 0x556d504b7460 rank 0 nRanks 4 nNodes 4 localRanks 1 localRank 0 MNNVL 0",
            "Channel 00/02 : 0 1 2 3",
            "2 coll channels, 2 collnet channels, 0 nvls channels, 2 p2p channels",
            "Channel 00/0 : 3[0] -> 0[0] [receive] via NET/Libfabric/0/GDRDMA",
            "Channel 00/0 : 0[0] -> 1[0] [send] via NET/Libfabric/0/GDRDMA",
            "Channel 01/0 : 0[0] -> 1[0] [send] via NET/Libfabric/0/GDRDMA",
        ],
        {}, said("Libfabric", {}, {"NET/Libfabric/GDRDMA": 2}),
    ),
    "two nodes of four GPUs with InfiniBand and NVIDIA's plugin": (
        [
            "Using network IBext_v8",
            "Channel 03/0 : 7[3] -> 3[3] [receive] via NET/IBext_v8/3/GDRDMA",
            "Channel 03/0 : 3[3] -> 7[3] [send] via NET/IBext_v8/3/GDRDMA",
            "Channel 07/0 : 3[3] -> 1[1] via P2P/CUMEM",
            "Channel 01/0 : 3[3] -> 2[2] via P2P/CUMEM",
        ],
        {"rank": 3, "nodes": 2, "per_node": 4}, said("IBext_v8", {"P2P/CUMEM": 2}, {"NET/IBext_v8/GDRDMA": 1}),
    ),
    "eight nodes of eight GPUs whose switches reduce": (
        [
            "Channel 00/0 : 35[3] -> 34[2] via P2P/CUMEM",
            "Connected NVLS tree",
            "16 coll channels, 0 collnet channels, 16 nvls channels, 16 p2p channels",
        ],
        {"rank": 35, "nodes": 8, "per_node": 8}, said(None, {"P2P/CUMEM": 1}, {}, nvls=True),
    ),
    "one rank sends by another one's adapter": (
        ["Channel 00/0 : 9[1] -> 0[0] [send] via NET/IB/0(8)/GDRDMA"],
        ON_SECOND_NODE | {"rank": 9}, said(None, {}, {"NET/IB/GDRDMA": 1}),
    ),
    "four GPUs of which pairs have NVLink": (
        ["Channel 02 : 1[1] -> 2[2] via SHM/direct/direct", "Channel 00/0 : 1[1] -> 0[0] via P2P/CUMEM/read"],
        {"rank": 1, "nodes": 1, "per_node": 4}, said(None, {"SHM/direct/direct": 1, "P2P/CUMEM/read": 1}, {}),
    ),
    "RCCL 2.26 names the communicator after the transport": (
        ["Using network Socket", "Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0 comm 0x2083dd50 nRanks 02"],
        {}, said("Socket", {}, {"NET/Socket": 1}),
    ),
    "CollNet": (
        ["CollNet 00/0 : 0 [send] via COLLNET/SHARP/0/GDRDMA", "Coll 00 : 0 [send] via COLLNET/SHARP/0"],
        {}, said(None, {}, {"COLLNET/SHARP/GDRDMA": 1, "COLLNET/SHARP": 1}),
    ),
    "group over nodes": (IN_GROUP, ON_SECOND_NODE | {"groups": [(0, 8)]}, said(None, {}, {"NET/IB": 1})),
    "group in a node": (IN_GROUP, ON_SECOND_NODE | {"rank": 9, "groups": [(8, 9)]}, said(None, {"NET/IB": 1}, {})),
    "nothing known of groups": (IN_GROUP, ON_SECOND_NODE, NOWHERE),
    "groups disagree": (IN_GROUP, ON_SECOND_NODE | {"groups": [(0, 8), (7, 8), (9, 8)]}, NOWHERE),
    "not to be read, kept as it is": (
        ["Using network IB", *UNREADABLE], {}, said("IB", {}, {}, unreadable=tuple(UNREADABLE)),
    ),
    "variables of the process, and of what NCCL says that it read": (
        [
            "Using network Socket", "NCCL_IB_DISABLE set by environment to 1.",
            "NCCL_P2P_LEVEL set by environment to SYS", "NCCL_IB_HCA set to mlx5_0",
            "NCCL_ALGO set by environment to ring,tree",
        ],
        {"CUDA_LAUNCH_BLOCKING": "1", "NCCL_P2P_DISABLE": "0", "HOME": "/root"},
        said("Socket", {}, {}, variables={
            "CUDA_LAUNCH_BLOCKING": "1", "NCCL_ALGO": "ring,tree", "NCCL_IB_DISABLE": "1", "NCCL_IB_HCA": "mlx5_0",
        }),
    ),
    "a protocol that a plugin sets": (ON_EFA, {}, said("AWS Libfabric", {}, {})),
    "a protocol that the user sets": (
        ON_EFA, {"NCCL_PROTO": "simple"}, said("AWS Libfabric", {}, {}, variables={"NCCL_PROTO": "simple"}),
    ),
    "a protocol in a configuration file": (
        ["Using network IB", SIMPLE], {}, said("IB", {}, {}, variables={"NCCL_PROTO": "simple"}),
    ),
    "gloo has no channels": ([], {"backend": "gloo"}, said("gloo", {}, {})),
}  # fmt: skip
# As NCCL calls them less the number of the adapter; within a node, and between nodes.
NAMES: tuple[dict[str, str], dict[str, str]] = (
    {"P2P/direct pointer": "P2P/direct pointer", "P2P/CUMEM/CE": "P2P/CUMEM/CE", "P2P/indirect/1[1]": "P2P/indirect"},
    {
        "NET/Socket/0/Shared": "NET/Socket/Shared", "NET/IB/0/GDRDMA(PCI)": "NET/IB/GDRDMA(PCI)",
        "NET/AWS Libfabric/11/GDRDMA": "NET/AWS Libfabric/GDRDMA", "P2P/MNNVL": "P2P/MNNVL",
    },
)  # fmt: skip
for within, between in product(*NAMES):
    found = said(None, {NAMES[0][within]: 1}, {NAMES[1][between]: 1})
    LOGS[f"{within}, {between}"] = ([f"Channel 00/0 : 0[0] -> 1[0] via {via}" for via in (within, between)], {}, found)


@pytest.mark.parametrize(("messages", "of_log", "told"), LOGS.values(), ids=LOGS)
def test_connections_are_counted_by_transport_and_where_they_lead(
    tmp_path: Path, messages: list[str], of_log: dict[str, Any], told: dict[str, Any]
) -> None:
    assert heard(tmp_path / "log", messages, **of_log) == RankTransport(rank=of_log.get("rank", 0), **told)


def test_a_log_is_read_once_and_goes_on_with_what_was_written_since(tmp_path: Path) -> None:
    prefix = "n2:7:9 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [send] via"
    path = tmp_path / "log"
    log = log_of(path, 8, 2, 8)
    path.write_text(f"{prefix} NET/IB/0\n{prefix} NET/", encoding="utf-8")
    assert log.read([(0, 8)]).channels == {"NET/IB": 1}
    path.write_text(f"{prefix} NET/IB/0\n{prefix} NET/Socket/0\n", encoding="utf-8")
    again = log.read([(0, 8), (9, 8)])
    assert again.channels == {"NET/IB": 1, "NET/Socket": 1}
    assert again.channels_between_nodes == {"NET/IB": 1}, "the second may be of either group"


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("none", "none cannot be read: there is no such file"),
        ("", "cannot be read: there is no such file"),
        ("mute", "mute has nothing on NCCL's connections (1 messages)"),
    ],
)
def test_a_log_that_says_nothing_is_a_problem_in_words(tmp_path: Path, name: str, problem: str) -> None:
    (tmp_path / "mute").write_text("n1:7:9 [0] NCCL INFO cudaDriverVersion 13000\nnoise\n", encoding="utf-8")
    transport = log_of(tmp_path / name).read()
    assert problem in transport.problem
    assert transport.channels == {}


ASKED_BY_NOBODY = {"NCCL_DEBUG_SUBSYS": "INIT,ENV", "NCCL_DEBUG_FILE": "/run/100%%/nccl-rank-3.log"}


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        ({"NCCL_IB_HCA": "mlx5"}, ASKED_BY_NOBODY),
        ({"NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": "/var/log/nccl.%h"}, {}),
        ({"NCCL_DEBUG": "TRACE", "NCCL_DEBUG_SUBSYS": "NET"}, {"NCCL_DEBUG_SUBSYS": "INIT,ENV,NET"}),
    ],
)
def test_nccl_is_asked_for_its_start_in_a_file_that_is_kept_if_the_user_asked(asked: Any, given: Any) -> None:
    found = transport_environment(Path("/run/100%"), Path("/run/logs"), 3, asked)
    assert found == {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": "/run/logs/nccl-rank-3.log"} | given


@given(text=st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=80))
def test_no_message_is_too_odd_to_be_read(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "odd"
    transport = heard(path, [f"Channel 00/0 : {text} via {text}"])
    assert sum(transport.channels.values()) + len(transport.unreadable) <= 1
