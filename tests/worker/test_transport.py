"""What NCCL's log says of a rank's connections.

The excerpts are lines of real logs, as people posted them, of NCCL up to 2.27 and of AMD's RCCL.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.run.records import RankTransport
from pytest_ddpscale.worker.transport import TransportLog, transport_environment

# NCCL 2.27, four nodes, AWS's libfabric plugin; connected when it was first used, by another thread.
LIBFABRIC = """\
llama-3-8b-node-0-0:188:188 [0] NCCL INFO NCCL version 2.27.3+cuda12.9
llama-3-8b-node-0-0:188:585 [0] NCCL INFO NET/Plugin: Failed to find ncclCollNetPlugin_v10 symbol.
llama-3-8b-node-0-0:188:585 [0] NCCL INFO Initialized NET plugin Libfabric
llama-3-8b-node-0-0:188:585 [0] NCCL INFO Using network Libfabric
llama-3-8b-node-0-0:188:585 [0] NCCL INFO comm 0x556d504b7460 rank 0 nRanks 4 nNodes 4 localRanks 1 localRank 0 MNNVL 0
llama-3-8b-node-0-0:188:585 [0] NCCL INFO Channel 00/02 : 0 1 2 3
llama-3-8b-node-0-0:188:585 [0] NCCL INFO 2 coll channels, 2 collnet channels, 0 nvls channels, 2 p2p channels, 2 p2p \
channels per peer
llama-3-8b-node-0-0:188:709 [0] NCCL INFO Channel 00/0 : 3[0] -> 0[0] [receive] via NET/Libfabric/0/GDRDMA
llama-3-8b-node-0-0:188:709 [0] NCCL INFO Channel 01/0 : 3[0] -> 0[0] [receive] via NET/Libfabric/0/GDRDMA
llama-3-8b-node-0-0:188:709 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Libfabric/0/GDRDMA
llama-3-8b-node-0-0:188:709 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[0] [send] via NET/Libfabric/0/GDRDMA
"""
# Two nodes of four GPUs with InfiniBand and NVIDIA's plugin.
IB_PLUGIN = """\
kolyoz1:27225:27907 [3] NCCL INFO Using network IBext_v8
kolyoz1:27225:27907 [3] NCCL INFO Channel 03/0 : 7[3] -> 3[3] [receive] via NET/IBext_v8/3/GDRDMA
kolyoz1:27225:27907 [3] NCCL INFO Channel 03/0 : 3[3] -> 7[3] [send] via NET/IBext_v8/3/GDRDMA
kolyoz1:27225:27907 [3] NCCL INFO Channel 07/0 : 3[3] -> 7[3] [send] via NET/IBext_v8/3/GDRDMA
kolyoz1:27225:27907 [3] NCCL INFO Channel 07/0 : 3[3] -> 1[1] via P2P/CUMEM
kolyoz1:27225:27907 [3] NCCL INFO Channel 01/0 : 3[3] -> 2[2] via P2P/CUMEM
kolyoz1:27225:27907 [3] NCCL INFO Channel 05/0 : 3[3] -> 2[2] via P2P/CUMEM
"""
# Eight nodes of eight GPUs whose switches reduce.
IN_THE_SWITCH = """\
hostname-test:983:1261 [3] NCCL INFO Channel 00/0 : 35[3] -> 34[2] via P2P/CUMEM
hostname-test:983:1261 [3] NCCL INFO Connected NVLS tree
hostname-test:983:1261 [3] NCCL INFO threadThresholds 8/8/64 | 512/8/64 | 512 | 512
hostname-test:983:1261 [3] NCCL INFO 16 coll channels, 0 collnet channels, 16 nvls channels, 16 p2p channels, 1 p2p \
channels per peer
"""
# One rank sends by another one's adapter.
BY_ANOTHERS_ADAPTER = """\
tpgds-aihub0008:181412:181412 [1] NCCL INFO Channel 00/0 : 9[1] -> 0[0] [send] via NET/IB/0(8)/GDRDMA
tpgds-aihub0008:181412:181412 [1] NCCL INFO Channel 01/0 : 9[1] -> 0[0] [send] via NET/IB/0(8)/GDRDMA
"""
# Four GPUs of which pairs have NVLink.
PAIRS = """\
dbaaa2700fd2:1891:1891 [1] NCCL INFO Channel 02 : 1[1] -> 2[2] via SHM/direct/direct
dbaaa2700fd2:1891:1891 [1] NCCL INFO Channel 00/0 : 1[1] -> 0[0] via P2P/CUMEM/read
"""
# RCCL 2.26 names the communicator after the transport.
RCCL = """\
corona:927:927 [0] NCCL INFO Using network Socket
corona:927:927 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Socket/0 comm 0x2083dd50 nRanks 02
corona:927:927 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0 comm 0x2083dd50 nRanks 02
corona:927:927 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[0] [send] via NET/Socket/0 comm 0x2083dd50 nRanks 02
"""


def heard(
    path: Path, log: str, rank: int, world_size: int, per_node: int, groups: Sequence[Sequence[int]] = ()
) -> RankTransport:
    """What is read of a log that NCCL wrote."""
    environ = transport_environment(path, path, rank, {})
    (path / f"nccl-rank-{rank}.log").write_text(log, encoding="utf-8")
    return TransportLog(rank, Layout(world_size // per_node, per_node), "nccl", environ).read(groups)


@pytest.mark.parametrize(
    ("log", "gang", "network", "within", "between"),
    [
        (LIBFABRIC, (0, 4, 1), "Libfabric", {}, {"NET/Libfabric/GDRDMA": 2}),
        (IB_PLUGIN, (3, 8, 4), "IBext_v8", {"P2P/CUMEM": 3}, {"NET/IBext_v8/GDRDMA": 2}),
        (IN_THE_SWITCH, (35, 64, 8), None, {"P2P/CUMEM": 1}, {}),
        (BY_ANOTHERS_ADAPTER, (9, 16, 8), None, {}, {"NET/IB/GDRDMA": 2}),
        (PAIRS, (1, 4, 4), None, {"SHM/direct/direct": 1, "P2P/CUMEM/read": 1}, {}),
        (RCCL, (0, 2, 1), "Socket", {}, {"NET/Socket": 2}),
    ],
    ids=["libfabric", "ib-plugin", "nvls", "pxn", "pairs", "rccl"],
)
def test_connections_are_counted_by_transport_and_where_they_lead(
    tmp_path: Path,
    log: str,
    gang: tuple[int, int, int],
    network: str | None,
    within: dict[str, int],
    between: dict[str, int],
) -> None:
    transport = heard(tmp_path, log, *gang)
    assert transport.network == network
    assert transport.channels == within | between
    assert (transport.channels_within_node, transport.channels_between_nodes) == (within, between)
    assert (transport.problem, transport.unreadable) == ("", ())
    assert transport.nvls is (log is IN_THE_SWITCH)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0/Shared", "NET/Socket/Shared"),
        ("Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA(PCI)", "NET/IB/GDRDMA(PCI)"),
        ("Channel 00/0 : 0[0] -> 1[0] [send] via NET/AWS Libfabric/11/GDRDMA", "NET/AWS Libfabric/GDRDMA"),
        ("Channel 00/0 : 0[0] -> 1[1] via P2P/direct pointer", "P2P/direct pointer"),
        ("Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/CE", "P2P/CUMEM/CE"),
        ("Channel 00/0 : 0[0] -> 1[1] via P2P/MNNVL", "P2P/MNNVL"),
        ("Channel 00/0 : 0[0] -> 2[2] via P2P/indirect/1[1]", "P2P/indirect"),
        ("CollNet 00/0 : 0 [send] via COLLNET/SHARP/0/GDRDMA", "COLLNET/SHARP/GDRDMA"),
        ("Coll 00 : 0 [send] via COLLNET/SHARP/0", "COLLNET/SHARP"),
    ],
)
def test_a_transport_is_called_as_nccl_does_less_the_number_of_the_adapter(
    tmp_path: Path, text: str, name: str
) -> None:
    transport = heard(tmp_path, f"n1:7:9 [0] NCCL INFO {text}\n", 0, 4, 1)
    assert transport.channels == {name: 1}
    leaves = not name.startswith("P2P") or "MNNVL" in name
    assert transport.channels_between_nodes == ({name: 1} if leaves else {})


def test_a_communicators_ranks_are_those_of_its_group(tmp_path: Path) -> None:
    log = "n2:7:9 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [send] via NET/IB/0\n"
    spread_over_nodes = heard(tmp_path, log, 8, 16, 8, groups=[(0, 8)])
    assert spread_over_nodes.channels_between_nodes == {"NET/IB": 1}
    within_a_node = heard(tmp_path, log, 9, 16, 8, groups=[(8, 9)])
    assert within_a_node.channels_within_node == {"NET/IB": 1}


def test_a_log_is_read_once_and_goes_on_with_what_was_written_since(tmp_path: Path) -> None:
    prefix = "n2:7:9 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [send] via"
    environ = transport_environment(tmp_path, tmp_path, 8, {})
    path, log = tmp_path / "nccl-rank-8.log", TransportLog(8, Layout(2, 8), "nccl", environ)
    path.write_text(f"{prefix} NET/IB/0\n{prefix} NET/", encoding="utf-8")
    assert log.read([(0, 8)]).channels == {"NET/IB": 1}
    path.write_text(f"{'x' * len(f'{prefix} NET/IB/0')}\n{prefix} NET/Socket/0\n", encoding="utf-8")
    again = log.read([(0, 8), (9, 8)])
    assert again.channels == {"NET/IB": 1, "NET/Socket": 1}
    assert again.channels_between_nodes == {"NET/IB": 1}, "the second may be of either group"


@pytest.mark.parametrize("groups", [[], [(0, 8), (7, 8)]])
def test_where_groups_tell_nothing_or_different_things_it_is_not_known(
    tmp_path: Path, groups: Sequence[Sequence[int]]
) -> None:
    log = "n2:7:9 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [send] via NET/IB/0\n"
    others = [] if not groups else [*groups, (9, 8)]
    transport = heard(tmp_path, log, 8, 16, 8, groups=others)
    assert transport.channels == {"NET/IB": 1}
    assert (transport.channels_within_node, transport.channels_between_nodes) == ({}, {})


@pytest.mark.parametrize(
    "text", ["Channel 00/0 : 0[0] -> 1[1] via TELEPATHY/0", "Channel 00/0 : here -> there via P2P/CUMEM"]
)
def test_a_connection_that_cannot_be_read_is_kept_as_it_is(tmp_path: Path, text: str) -> None:
    transport = heard(tmp_path, f"n1:7:9 [0] NCCL INFO Using network IB\nn1:7:9 [0] NCCL INFO {text}\n", 0, 2, 2)
    assert transport.unreadable == (text,)
    assert transport.channels == {}


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
    transport = TransportLog(0, Layout(2, 1), "nccl", {"NCCL_DEBUG_FILE": str(tmp_path / name)}).read()
    assert problem in transport.problem
    assert transport.channels == {}


def test_variables_are_those_of_the_process_and_of_what_nccl_says_that_it_read(tmp_path: Path) -> None:
    lines = (
        "NCCL_IB_DISABLE set by environment to 1.",
        "NCCL_P2P_LEVEL set by environment to SYS",
        "NCCL_IB_HCA set to mlx5_0",
    )
    log = "\n".join(["Using network Socket", *lines, "NCCL_ALGO set by environment to ring,tree", ""])
    path = tmp_path / "nccl.log"
    path.write_text(re.sub("^", "n1:7:9 [0] NCCL INFO ", log, flags=re.MULTILINE), encoding="utf-8")
    seen = {"NCCL_DEBUG_FILE": str(path), "CUDA_LAUNCH_BLOCKING": "1", "NCCL_P2P_DISABLE": "0", "HOME": "/root"}
    assert TransportLog(0, Layout(2, 1), "nccl", seen).read().variables == {
        "CUDA_LAUNCH_BLOCKING": "1", "NCCL_ALGO": "ring,tree", "NCCL_IB_DISABLE": "1", "NCCL_IB_HCA": "mlx5_0"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("network", "environ", "variables"),
    [
        ("AWS Libfabric", {}, {}),
        ("AWS Libfabric", {"NCCL_PROTO": "simple"}, {"NCCL_PROTO": "simple"}),
        ("IB", {}, {"NCCL_PROTO": "simple"}),
    ],
)
def test_a_protocol_that_the_plugin_of_a_network_sets_is_no_variable(
    tmp_path: Path, network: str, environ: dict[str, str], variables: dict[str, str]
) -> None:
    path, said = tmp_path / "nccl.log", (f"Using network {network}", "NCCL_PROTO set by environment to simple")
    path.write_text("".join(f"n1:7:9 [0] NCCL INFO {line}\n" for line in said), encoding="utf-8")
    seen = {"NCCL_DEBUG_FILE": str(path), **environ}
    assert TransportLog(0, Layout(2, 1), "nccl", seen).read().variables == variables


def test_gloo_has_no_channels(tmp_path: Path) -> None:
    transport = TransportLog(1, Layout(1, 2), "gloo", {}).read()
    assert transport == RankTransport(rank=1, network="gloo")


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        ({"NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": "/var/log/nccl.%h"}, {}),
        ({"NCCL_DEBUG": "TRACE", "NCCL_DEBUG_SUBSYS": "NET"}, {"NCCL_DEBUG_SUBSYS": "INIT,ENV,NET"}),
    ],
)
def test_messages_that_the_user_asked_for_are_kept_with_the_run(asked: dict[str, str], given: dict[str, str]) -> None:
    found = transport_environment(Path("/shm"), Path("/run/logs"), 3, asked)
    assert found == given | {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": "/run/logs/nccl-rank-3.log"}


def test_nccl_is_asked_for_its_start_only_in_a_file_for_each_rank() -> None:
    found = transport_environment(Path("/run/100%"), Path("/run/logs"), 11, {"NCCL_IB_HCA": "mlx5"})
    assert found == {
        "NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV", "NCCL_DEBUG_FILE": "/run/100%%/nccl-rank-11.log"
    }  # fmt: skip


@given(text=st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=80))
def test_no_message_is_too_odd_to_be_read(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.mktemp("log", numbered=True)
    transport = heard(path, f"n1:7:9 [0] NCCL INFO Channel 00/0 : {text} via {text}\n", 0, 2, 2)
    assert sum(transport.channels.values()) + len(transport.unreadable) <= 1
