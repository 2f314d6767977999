"""NCCL's connections of this rank, read from the log that NCCL writes when it starts.

NCCL reports them nowhere else. In its sources these messages (``Channel … via …``, ``Using network …``, ``… nvls
channels``) are tagged INIT: they are written when a communicator is created or first used, not for each collective, so
they cost no throughput.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.variables import variable_of
from pytest_ddpscale.run.records import RankTransport

_LEVEL, _SUBSYSTEMS, _FILE = "NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"
# Limit for reading, because a log that the user requested may have any length.
_MOST_BYTES = 64 * 2**20
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
    environment = {_LEVEL: "INFO", _FILE: path}
    if not is_asked:
        environment[_SUBSYSTEMS] = "INIT,ENV"
    elif _SUBSYSTEMS in environ:
        environment[_SUBSYSTEMS] = f"INIT,ENV,{environ[_SUBSYSTEMS]}"
    return environment


class TransportLog:
    """NCCL's log of this process, of which each reading goes on where the one before ended.

    Args:
        backend: of torch.distributed.
        environ: of this process, with `transport_environment`.
    """

    def __init__(self, rank: int, layout: Layout, backend: str, environ: Mapping[str, str]) -> None:
        self._rank, self._layout, self._backend, self._environ = rank, layout, backend, environ
        self._variables: dict[str, str] = {}
        self._network: str | None = None
        self._has_nvls = False
        self._channels, self._within_node, self._between_nodes = Counter[str](), Counter[str](), Counter[str]()
        self._unreadable: list[str] = []
        self._bytes = self._messages = 0

    def read(self, groups: Iterable[Sequence[int]] = ()) -> RankTransport:
        """Connections of this process with other ranks so far. Never raises.

        Args:
            groups: global ranks of every process group that this rank was in, each in the order of the group's ranks,
                because NCCL numbers ranks within a communicator. The group of all ranks is always included.

        Returns:
            The connections; with `problem` if nothing is known.
        """
        if self._backend != "nccl":
            return RankTransport(rank=self._rank, network=self._backend)
        path, problem = Path(self._environ[_FILE].replace("%%", "%")), ""
        try:
            self._read(path, (range(self._layout.world_size), *groups))
        except OSError as error:
            problem = f"{path} cannot be read: {error.strerror or error}"
        if not (problem or self._network or self._channels or self._has_nvls):
            problem = f"{path} has nothing on NCCL's connections ({self._messages} messages)"
        variables = {**self._environ, **self._variables}
        if "Libfabric" in (self._network or "") and "NCCL_PROTO" not in self._environ:
            variables.pop("NCCL_PROTO", None)  # EFA's plugin sets it where NCCL must not choose LL128
        known = sorted((name, value) for name, value in variables.items() if variable_of(name, value))
        return RankTransport(
            rank=self._rank,
            network=self._network,
            channels=dict(self._channels),
            channels_within_node=dict(self._within_node),
            channels_between_nodes=dict(self._between_nodes),
            nvls=self._has_nvls,
            variables={name: value[:_LONGEST_UNREADABLE] for name, value in known},
            problem=problem,
            unreadable=tuple(self._unreadable),
        )

    def _read(self, path: Path, groups: Sequence[Sequence[int]]) -> None:
        if not path.is_file():
            raise FileNotFoundError(2, "there is no such file")
        with path.open("rb") as log:
            log.seek(self._bytes)
            # A line without an end is still being written.
            while self._bytes < _MOST_BYTES and (line := log.readline(_MOST_BYTES)).endswith(b"\n"):
                self._bytes += len(line)
                if match := _LINE.search(line.decode("utf-8", "replace")):
                    self._messages += 1
                    self._hear(match[1].rstrip(), groups)

    def _hear(self, text: str, groups: Sequence[Sequence[int]]) -> None:
        """Parse one message, without its prefix."""
        if match := _NETWORK.match(text):
            self._network = match[1].strip()
        elif match := _VARIABLE.fullmatch(text):
            self._variables[match[1]] = match[2]
        elif _NVLS.search(text):
            self._has_nvls = True
        elif _CONNECTION.match(text):
            match = _CHANNEL.fullmatch(text) or _COLLNET.fullmatch(text)
            transport = None if match is None else _name_of(match["via"])
            if match is None or transport is None:
                if len(self._unreadable) < _MOST_UNREADABLE:
                    self._unreadable.append(text[:_LONGEST_UNREADABLE])
            elif match["direction"] != "receive":  # which is counted by the sender
                self._channels[transport] += 1
                ends = match.groupdict()
                stays = self._stays(transport, ends.get("sender"), ends.get("receiver"), groups)
                if stays is not None:
                    (self._within_node if stays else self._between_nodes)[transport] += 1

    def _stays(
        self, transport: str, sender: str | None, receiver: str | None, groups: Sequence[Sequence[int]]
    ) -> bool | None:
        """Whether a connection stays on the node; None if the groups that it may belong to disagree."""
        if sender is None or receiver is None:
            return False  # COLLNET connects nodes
        if transport.startswith(("P2P/", "SHM/")) and "MNNVL" not in transport:
            return True
        own, peer, per_node = int(sender), int(receiver), self._layout.ranks_per_node
        node = self._rank // per_node
        kept = {
            group[peer] // per_node == node
            for group in groups
            if max(own, peer) < len(group) and group[own] == self._rank
        }
        return kept.pop() if len(kept) == 1 else None


def _name_of(via: str) -> str | None:
    """``NET/IB/GDRDMA`` for ``NET/IB/3(9)/GDRDMA``; None if unknown."""
    via = _SUFFIX.sub("", via).strip()
    if match := _NET.fullmatch(via):
        return match["name"] + match["flags"]
    if match := _INDIRECT.fullmatch(via):
        return match[1]
    return via if via.startswith(("P2P/", "SHM/")) else None
