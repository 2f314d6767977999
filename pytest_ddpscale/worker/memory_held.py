"""Peak memory of this process, and its priority for the kernel's out-of-memory killer."""

from __future__ import annotations

import contextlib
from pathlib import Path

from pytest_ddpscale.run.records import RankMemory

_PROCESS = Path("/proc/self")
_KIB = 1024
_FIRST_TO_BE_ENDED = 1000  # proc(5): the maximum of oom_score_adj


def resident_memory(process: Path = _PROCESS) -> RankMemory:
    """Peak resident set of this process since it started, with pages of files and shared memory counted separately.

    From VmHWM, because the ru_maxrss of getrusage(2) may be that of the parent before the fork.

    Raises:
        OSError: the system does not report it.
    """
    fields: dict[str, int] = {}
    for line in (process / "status").read_text(encoding="ascii", errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name in ("VmHWM", "RssFile", "RssShmem"):
            fields[name] = int(value.split()[0]) * _KIB
    shared = fields["RssFile"] + fields["RssShmem"]
    return RankMemory(own_bytes=max(0, fields["VmHWM"] - shared), shared_bytes=shared)


def be_ended_first(process: Path = _PROCESS) -> None:
    """Let the kernel kill this process before others, including its parent, if memory runs out."""
    with contextlib.suppress(OSError):  # otherwise the kernel kills the largest process, which is a rank as well
        (process / "oom_score_adj").write_text(str(_FIRST_TO_BE_ENDED), encoding="ascii")
