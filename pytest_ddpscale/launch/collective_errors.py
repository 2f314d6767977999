"""What NCCL and gloo say of a collective that failed, in a line."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pytest_ddpscale.launch.gang_state import GangState
from pytest_ddpscale.node.protocol import Failed
from pytest_ddpscale.run.records import RankGpuError

# Errors that NCCL or gloo raised, perhaps in the watchdog that aborts a rank whose collective timed out.
OF_COLLECTIVES = re.compile(r"NCCL|\bnccl[A-Z]|[Gg]loo\b|DistBackendError|[Ww]atchdog")
_LAST_ERROR = re.compile(r"Last error:\s*(\S.*)")
# "NCCL error in: ProcessGroupNCCL.cpp:94, …, NCCL version 2.27.7" and gloo's "[…/pair.cc:547] …"
_SOURCES = re.compile(r" in: \S+:\d+(?=,)|\[\S+\.[a-z]+:\d+\] ?|, NCCL version \S+.*")
_MOST_CHARACTERS = 160
# A connection whose messages are not answered, however often the adapter repeats them: by whom it was to be answered,
# and the adapter.
_NO_ANSWER = re.compile(
    r"Got completion from peer ([^\s<]+)\S* with (?:status=|error )(?:\w+\()?12\b.*?(?:\bhca (\S+)|$)", re.MULTILINE
)
_KINDS: Mapping[str, str] = {
    r"(/dev/shm)/.*No space left on device": r"\1 is full: `df -h \1`; a container gets more by --shm-size",
    r"(Call to \w+ failed.*Cannot allocate memory)": r"\1: raise the limit of locked memory (`ulimit -l unlimited`)",
    r"(no socket interface found)[\s\S]*\b(NCCL_SOCKET_IFNAME=\S+)": r"\1: \2 names none of this node's",
    r"(no socket interface found)": r"\1: does /etc/nccl.conf or ~/.nccl.conf set NCCL_SOCKET_IFNAME?",
    r"Unable to find address for: ?(\S+)": r"no socket interface \1: GLOO_SOCKET_IFNAME names it",
}


def cause_of(report: Failed, roll: GangState) -> str:
    """The cause that a failed collective gives: in words if its kind is known, else its last error."""
    message = report.message
    if found := _NO_ANSWER.search(message):
        host = roll.host_at(found[1])
        peer = f"{host} ({found[1]})" if host else found[1]
        return f"{peer} did not answer over {found[2] or 'an adapter'} (status 12): look at adapter, cable and switch"
    for pattern, words in _KINDS.items():
        if found := re.search(pattern, message):
            return found.expand(words)
    last = _LAST_ERROR.search(message)
    said = last[1] if last else next((line for line in message.splitlines() if line.strip()), "")
    said = _SOURCES.sub("", said).strip()
    return said if len(said) <= _MOST_CHARACTERS else f"{said[: _MOST_CHARACTERS - 1]}…"


def lost_connections(roll: GangState) -> tuple[RankGpuError, ...]:
    """Ranks whose adapter got no answer from another node, each with that node's address."""
    return tuple(
        RankGpuError(
            place=report.place, error=cause_of(report, roll), study=report.study, arm=report.arm, peer=found[1]
        )
        for report in roll.failures
        if (found := _NO_ANSWER.search(report.message))
    )  # fmt: skip
