"""NCCL's connections of this rank, read from the log that NCCL writes when it starts.

NCCL reports them nowhere else. In its sources these messages (``Channel … via …``, ``Using network …``, ``… nvls
channels``) are tagged INIT: they are written when a communicator is created or first used, not for each collective, so
they cost no throughput.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.variables import variable_of
from pytest_ddpscale.run.records import RankTransport

_LEVEL, _SUBSYSTEMS, _FILE = "NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"
# Limit for reading, because a log that the user requested may have any length.
_MOST_CHARACTERS = 64 * 2**20
_MOST_UNREADABLE, _LONGEST_UNREADABLE = 5, 200

_LINE = re.compile(r":\d+:\d+ \[\d+\] NCCL INFO (.*)")
_NETWORK = re.compile(r"Using network (\S.*)")
# Also of a configuration file, /etc/nccl.conf or ~/.nccl.conf, which NCCL reads into its own environment.
_VARIABLE = re.compile(r"(NCCL_\w+) set (?:by environment )?to (.+?)\.?")
_NVLS = re.compile(r"\b([1-9]\d*) nvls channels\b")
_CHANNEL = re.compile(
    r"Channel \d+(?:/\d+)? : (?P<sender>\d+)(?:\[[0-9a-f]+\])? -> (?P<receiver>\d+)(?:\[[0-9a-f]+\])? "
    r"(?:\[(?P<direction>send|receive)\] )?via (?P<via>.+)"
)
_COLLNET = re.compile(r"Coll(?:Net)? \d+(?:/\d+)? : \d+ \[(?P<direction>send|receive)\] via (?P<via>COLLNET/.+)")
_CONNECTION = re.compile(r"(?:Channel|Coll|CollNet) .* via ")
# Number of the adapter, and in parentheses the rank that owns it.
_NET = re.compile(r"(?P<name>(?:NET|COLLNET)/.+?)/\d+(?:\(\d+\))?(?P<flags>(?:/\S+)?)")
_SUFFIX = re.compile(r" comm 0x[0-9a-f]+.*")
_INDIRECT = re.compile(r"(P2P/indirect)/.*")


def transport_environment(directory: Path, kept: Path, rank: int, environ: Mapping[str, str]) -> dict[str, str]:
    """Environment variables that make NCCL log its connections; set them before NCCL starts.

    Args:
        directory: folder of the rank's log file, preferably local to the node.
        kept: folder instead if the user requested NCCL's messages; it is kept.
    """
    is_asked = _LEVEL in environ
    path = str((kept if is_asked else directory) / f"nccl-rank-{rank}.log").replace("%", "%%")
    found = {_LEVEL: "INFO", _FILE: path}
    if not is_asked:
        found[_SUBSYSTEMS] = "INIT,ENV"
    elif _SUBSYSTEMS in environ:
        found[_SUBSYSTEMS] = f"INIT,ENV,{environ[_SUBSYSTEMS]}"
    return found


def read_transport(
    rank: int, layout: Layout, backend: str, environ: Mapping[str, str], groups: Iterable[Sequence[int]] = ()
) -> RankTransport:
    """Connections of this process with other ranks. Never raises.

    Args:
        groups: global ranks of every process group that this rank was in, each in the order of the group's ranks,
            because NCCL numbers ranks within a communicator. The group of all ranks is always included.

    Returns:
        The connections; with `problem` if nothing is known.
    """
    if backend != "nccl":
        return RankTransport(rank=rank, network=backend)
    heard = _Heard(rank, layout, (range(layout.world_size), *groups))
    heard.variables.update(environ)
    problem = _read(environ, heard)
    if "Libfabric" in (heard.network or "") and "NCCL_PROTO" not in environ:
        heard.variables.pop("NCCL_PROTO", None)  # EFA's plugin sets it where NCCL must not choose LL128
    return RankTransport(
        rank=rank,
        network=heard.network,
        channels=dict(heard.channels),
        channels_within_node=dict(heard.within_node),
        channels_between_nodes=dict(heard.between_nodes),
        nvls=heard.nvls,
        variables={
            name: value[:_LONGEST_UNREADABLE]
            for name, value in sorted(heard.variables.items())
            if variable_of(name, value)
        },
        problem=problem,
        unreadable=tuple(heard.unreadable),
    )


@dataclass
class _Heard:
    """Connections found in the log so far."""

    rank: int
    layout: Layout
    groups: Sequence[Sequence[int]]
    network: str | None = None
    nvls: bool = False
    channels: Counter[str] = field(default_factory=Counter)
    within_node: Counter[str] = field(default_factory=Counter)
    between_nodes: Counter[str] = field(default_factory=Counter)
    unreadable: list[str] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)

    def hear(self, text: str) -> None:
        """Parse one message, without its prefix."""
        if match := _NETWORK.match(text):
            self.network = match[1].strip()
        elif match := _VARIABLE.fullmatch(text):
            self.variables[match[1]] = match[2]
        elif _NVLS.search(text):
            self.nvls = True
        elif _CONNECTION.match(text):
            self._connect(text)

    def _connect(self, text: str) -> None:
        match = _CHANNEL.fullmatch(text) or _COLLNET.fullmatch(text)
        transport = None if match is None else _name_of(match["via"])
        if match is None or transport is None:
            if len(self.unreadable) < _MOST_UNREADABLE:
                self.unreadable.append(text[:_LONGEST_UNREADABLE])
            return
        if match["direction"] == "receive":
            return  # counted by the sender
        self.channels[transport] += 1
        ends = match.groupdict()
        stays = self._stays(transport, ends.get("sender"), ends.get("receiver"))
        if stays is not None:
            (self.within_node if stays else self.between_nodes)[transport] += 1

    def _stays(self, transport: str, sender: str | None, receiver: str | None) -> bool | None:
        """Whether a connection stays on the node; None if the groups that it may belong to disagree."""
        if sender is None or receiver is None:
            return False  # COLLNET connects nodes
        if transport.startswith(("P2P/", "SHM/")) and "MNNVL" not in transport:
            return True
        own, peer, per_node = int(sender), int(receiver), self.layout.ranks_per_node
        here = self.rank // per_node
        found = {
            group[peer] // per_node == here
            for group in self.groups
            if max(own, peer) < len(group) and group[own] == self.rank
        }
        return found.pop() if len(found) == 1 else None


def _name_of(via: str) -> str | None:
    """``NET/IB/GDRDMA`` for ``NET/IB/3(9)/GDRDMA``; None if unknown."""
    via = _SUFFIX.sub("", via).strip()
    if match := _NET.fullmatch(via):
        return match["name"] + match["flags"]
    if match := _INDIRECT.fullmatch(via):
        return match[1]
    return via if via.startswith(("P2P/", "SHM/")) else None


def _read(environ: Mapping[str, str], heard: _Heard) -> str:
    """Parse the log. Returns why nothing is known, or an empty string."""
    path = Path(environ[_FILE].replace("%%", "%"))
    try:
        count = 0
        for text in _messages(path):
            count += 1
            heard.hear(text)
    except OSError as error:
        return f"{path} cannot be read: {error.strerror or error}"
    if not (heard.network or heard.channels or heard.nvls):
        return f"{path} has nothing on NCCL's connections ({count} messages)"
    return ""


def _messages(path: Path) -> Iterator[str]:
    if not path.is_file():
        raise FileNotFoundError(2, "there is no such file")
    left = _MOST_CHARACTERS
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            left -= len(line)
            if left < 0:
                return
            match = _LINE.search(line)
            if match is not None:
                yield match[1].rstrip()
