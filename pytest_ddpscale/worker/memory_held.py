"""How much memory this process took, and that the kernel ends it rather than others where there is too little."""

from __future__ import annotations

import contextlib
from pathlib import Path

from pytest_ddpscale.results.memory_record import RankMemory

_PROCESS = Path("/proc/self")
_KIB = 1024
_FIRST_TO_BE_ENDED = 1000  # proc(5): the most there is of oom_score_adj


def resident_memory(process: Path = _PROCESS) -> RankMemory:
    """The peak of this process's resident set since it started; pages of files and shared memory are told apart.

    By VmHWM: the ru_maxrss of getrusage(2) may be that of the process that this one was forked from.

    Raises:
        OSError: the system does not say.
    """
    fields: dict[str, int] = {}
    for line in (process / "status").read_text(encoding="ascii", errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name in ("VmHWM", "RssFile", "RssShmem"):
            fields[name] = int(value.split()[0]) * _KIB
    shared = fields["RssFile"] + fields["RssShmem"]
    return RankMemory(own_bytes=max(0, fields["VmHWM"] - shared), shared_bytes=shared)


def be_ended_first(process: Path = _PROCESS) -> None:
    """Have the kernel end this process before others for lack of memory, the one that it answers to included."""
    with contextlib.suppress(OSError):  # where it cannot be said, the largest process is ended, which is a rank as well
        (process / "oom_score_adj").write_text(str(_FIRST_TO_BE_ENDED), encoding="ascii")
