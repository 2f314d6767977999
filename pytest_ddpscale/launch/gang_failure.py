"""Finds why a gang ended, as a reason: rank and host; study, arm, round and phase; error; last lines of its logs.

The sentences are in `report.words.gangs`. Which ranks ended by an error of their own GPU is read from the texts of
CUDA, NCCL and gloo: what it does to other ranks, which NCCL tells them, is none of theirs. Whether the GPU or the
software is at fault `judge.coverage` decides.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pytest_ddpscale.launch.gang_state import GangState, RankEnd
from pytest_ddpscale.node.protocol import Failed, RankSeen, Report
from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.reason import Reason, Why, because
from pytest_ddpscale.run.records import RankGpuError

_LAST_LINES = 12
_NCCL_LINES = 20
# torchrun prefixes its lines with time, thread and source position, which are noise here.
_TORCHRUN_PREFIX = re.compile(r"^[WEI]\d{4} [\d:.]+ \d+ \S+\] (\[default\d+\]:)?")
# torchrun's error if it gets SIGTERM, SIGINT or SIGHUP.
_TORCHRUN_SIGNALLED = re.compile(r"SignalException: Process \d+ got signal: (\d+)")
# Errors of a rank whose partner is gone: a consequence, not a cause.
_PARTNER_IS_GONE = re.compile(
    r"Connection (closed|reset|refused)|Broken pipe|Socket (Timeout|closed)|[Tt]imed out|NCCL|gloo|recvBytes"
    r"|Dist(Network|Backend|Store)Error|(TCP|File|Hash|Prefix)Store|(?<![\w/.-])[Ss]tore\b"
)
# Errors of the rank's own GPU, although reported by NCCL.
_OWN_GPU = re.compile(r"ncclUnhandledCudaError|unhandled cuda error|Cuda failure|CUDA error")
_TRACEBACK = "Original Traceback (most recent call last):"  # of a worker process, whose error comes last
_SIGTERM, _SIGABRT = -int(signal.SIGTERM), -int(signal.SIGABRT)


def describe(roll: GangState, exit_code: int | None, other_lines: Sequence[str]) -> Why:
    """Describe what ended a gang that was not ended by us, as far as known.

    Args:
        exit_code: exit code of the launcher; None if it was stopped.
    """
    # A killed torchrun comes first, because its ranks end with it. Aborts come last: NCCL's watchdog aborts ranks that
    # wait for another one, so they explain least.
    for why in (_torchrun_killed(roll), _killed(roll), _left_early(roll), _failed(roll), _killed(roll, aborted=True)):
        if why:
            return why
    if signals := _TORCHRUN_SIGNALLED.findall("\n".join(other_lines)):
        return describe_killed("torchrun", -int(signals[0]))
    lines = _clean(other_lines) or ["(no output)"]
    # Of a scheduler that refuses, the last line is the reason, but for getopt's hint after it.
    last = next((line for line in reversed(lines) if "--help" not in line), lines[0])
    return because("no-rank-reported", exit_code, last.strip(), lines)


def blames_nobody(roll: GangState) -> bool:
    """Whether ranks reported nothing but lost partners."""
    if _torchrun_killed(roll) or _killed(roll) or _left_early(roll):
        return False
    return all(map(_lost_its_partner, roll.failures)) if roll.failures else not _exited(roll)


def rank_ends(roll: GangState) -> tuple[RankEnd, ...]:
    """Ranks that torchrun saw fail or that were gone before its report, without those that it ended itself."""
    ended = _ended(roll)
    ends: dict[tuple[int, int], RankEnd] = {}
    for _, exit_, rank in roll.exits:
        if (rank.node, exit_.pid) not in ended:
            ends[rank.node, rank.local_rank] = RankEnd(rank.name, exit_.exit_code)
    killed = {report.node for report in _without_torchrun(roll)}
    for rank in roll.gone:
        if (rank.node, rank.pid) not in ended and rank.node not in killed:
            ends.setdefault((rank.node, rank.local_rank), RankEnd(rank.name, None))
    return tuple(ends.values())


def _ended(roll: GangState) -> set[tuple[int, int]]:
    """Node and pid of ranks that torchrun ended itself."""
    return {(report.node, pid) for report in roll.final_reports for pid in report.ended_pids}


def describe_killed(launcher: str, exit_code: int) -> Reason:
    """Describe a launcher that was killed by a signal; its last output does not explain that."""
    return because("killed-from-outside", launcher, _signal_name(-exit_code))


def describe_standstill(roll: GangState, unheard: Sequence[str] = (), ranks_per_node: int = 0) -> Reason:
    """Describe which rank holds up a gang that makes no progress.

    Args:
        unheard: nodes whose ranks' state is unknown.
        ranks_per_node: that were to be started; 0 if unknown.
    """
    if unheard:
        return because("stuck-agents", unheard)
    stopped = [rank for rank in roll.ranks.values() if rank.state in ("T", "t")]
    if stopped:
        return because("stuck-stopped", _names(stopped), _place(stopped[0]))
    absent = [
        f"local rank {rank} on {node.host}"
        for index, node in sorted(roll.nodes.items())
        for rank in range(ranks_per_node)
        if (index, rank) not in roll.ranks
    ]
    if absent:  # they import torch, or could not be started
        return because("stuck-absent", absent, ranks_per_node * len(roll.nodes))
    everybody = list(roll.ranks.values())
    # A rank that an arm does not use waits in the phase after it, so it is not behind the ranks of the arm.
    least = min((rank.progress for rank in everybody), default=(0, 0))
    behind = [rank for rank in everybody if rank.progress == least]
    if 1 < len(behind) == len(everybody):  # all are equally far
        behind = []
    in_kernel = [rank for rank in behind or everybody if rank.state == "D"]
    if 0 < 2 * len(in_kernel) < len(behind or everybody):
        return _stuck(roll, "stuck-in-kernel", in_kernel)
    if late := _not_connecting(roll, behind or everybody):
        others = [rank for rank in behind or everybody if rank not in late]
        return _stuck(roll, "stuck-connecting", late, _names(others))
    if not behind:
        waiting = sorted({rank.phase for rank in roll.ranks.values()})
        return because("all-stuck", waiting) if waiting else because("none-begun")
    does = {"D": because("waits-for-device"), "R": because("computes")}.get(behind[0].state, "")
    if len(roll.ranks) == 1:
        return _stuck(roll, "stuck-alone", behind, does)
    return _stuck(roll, "stuck-behind" if behind[1:] else "stuck-one-behind", behind, len(roll.ranks), does)


def _stuck(roll: GangState, code: str, ranks: Sequence[RankSeen], *args: Any) -> Reason:
    """A reason that names ranks, with the place and the last output of the first of them, and of its NCCL."""
    return _quoted(roll, ranks[0], because(code, _names(ranks), *args, _place(ranks[0])), is_stuck=True)


def _not_connecting(roll: GangState, ranks: Sequence[RankSeen]) -> list[RankSeen]:
    """Those among ranks that wait for each other whose NCCL has not begun to connect, as that of most others has.

    A rank logs ``Init START`` before it meets the others of a communicator, and ``Init COMPLETE`` after it.
    """
    late = []
    for rank in ranks:
        if (words := roll.log_tails.get((rank.node, rank.local_rank))) is None:
            return []
        ends = [line for line in words.nccl if line.endswith(("Init START", "Init COMPLETE"))]
        if not ends or ends[-1].endswith("COMPLETE"):
            late.append(rank)
    return late if 2 * len(late) <= len(ranks) else []


def _torchrun_killed(roll: GangState) -> Why:
    """Describe a torchrun that was killed; its ranks are not to blame for ending with it."""
    for report in _without_torchrun(roll):
        if report.oom_kills and report.code == -int(signal.SIGKILL):
            return because("torchrun-out-of-memory", report.host)
        return describe_killed(f"torchrun on {report.host}", report.code)
    return ""


def _without_torchrun(roll: GangState) -> list[Report]:
    """Agents whose torchrun a signal ended that they did not send; torchrun reports a SIGTERM itself."""
    return [
        report for report in roll.final_reports if report.code < 0 and report.code != _SIGTERM and not report.was_ended
    ]


def _killed(roll: GangState, *, aborted: bool = False) -> Why:
    """Describe a rank ended by a signal: SIGABRT if `aborted`, else others except SIGTERM, which torchrun sends."""
    for report, exit_, rank in roll.exits:
        code = exit_.exit_code
        if code < 0 and code != _SIGTERM and (code == _SIGABRT) == aborted:
            oom = report.oom_kills > 0 and code == -9
            return _quoted(roll, rank, because("rank-killed", rank.name, _signal_name(-code), _place(rank), oom))
    return ""


def _left_early(roll: GangState) -> Why:
    """Describe a rank that ended with work left, and that torchrun neither saw fail nor ended."""
    failed = {(rank.node, rank.local_rank) for _, _, rank in roll.exits}
    ended = _ended(roll)
    for rank in roll.gone:
        if (rank.node, rank.local_rank) not in failed and (rank.node, rank.pid) not in ended:
            return _quoted(roll, rank, because("rank-left", rank.name, _place(rank)))
    return ""


def _failed(roll: GangState) -> Why:
    """Describe the first rank with an error of its own, or else the first that lost its partner."""
    if not roll.failures:
        return _exited(roll)
    own = [report for report in roll.failures if not _lost_its_partner(report)]
    first = (own or roll.failures)[0]
    error: Why
    who = f"rank {first.rank} on {first.host}"
    error, *rest = _split_error(first.message)
    of_collective = OF_COLLECTIVES.search(f"{first.type}: {first.message}")
    if of_collective and _TRACEBACK not in first.message and (cause := cause_of(first, roll)) != error:
        error, rest = cause, [error, *rest]
    if of_cuda := cuda_error_in(first.message):
        if first.device and not of_cuda.cause:
            who += f", {first.place.name},"
        todo = of_cuda.cause or because("look-for-xid", first.host)
        error = _full(roll, first, error) if todo == OUT_OF_MEMORY else because("all", error, todo)
    more = len(roll.failures) - 1
    others = because("others-failed", more) if more else ""
    failed = because("rank-failed", who, _place(first), first.type, error, others)
    return because("quoted", (failed, *rest), (), _nccl(roll, first) if of_collective else ())


def _full(roll: GangState, report: Failed, error: Why) -> Why:
    """The error of a rank without memory, and which memory of its GPU others held before the run, if they did."""
    survey = roll.nodes[report.node].survey
    for gpu in survey.gpus if survey else ():
        if gpu.local_rank == report.local_rank:
            held = gpu.processes or ()
            whose = [because("process", process.pid, process.name) for process in held]
            gib = (gpu.memory_used_bytes or sum(process.memory_bytes or 0 for process in held)) / 2**30
            if whose or gib > 1:
                return because("memory-in-use", gib, gpu.index, whose, error)
    return error


def _split_error(message: str) -> list[str]:
    """What an error says in one line, and its other lines.

    The first line says it, except for one that only announces the next (``backend='inductor' raised:``) or the
    traceback of a worker process.
    """
    lines = [line.rstrip() for line in message.splitlines() if line.strip()] or [""]
    if _TRACEBACK in lines:
        return [f"{lines[0]} {lines[-1].strip()}", *lines[1:]]
    if lines[0].endswith(":") and lines[1:]:
        lines[:2] = [f"{lines[0]} {lines[1].strip()}"]
    return lines


def _exited(roll: GangState) -> Why:
    """Describe a rank that ended with an error code and without a report."""
    for _, exit_, rank in roll.exits:
        if exit_.is_root_cause and exit_.exit_code > 0:
            return _quoted(roll, rank, because("rank-exited", rank.name, exit_.exit_code, _place(rank)))
    return ""


def _lost_its_partner(report: Failed) -> bool:
    message = f"{report.type}: {report.message}"
    return bool(_PARTNER_IS_GONE.search(message)) and not _OWN_GPU.search(message)


def _names(ranks: Sequence[RankSeen]) -> list[str]:
    return [rank.name for rank in ranks]


def _place(rank: RankSeen | Failed) -> Reason:
    return because("in-phase", rank.phase, rank.study, rank.arm, rank.round is not None and str(rank.round))


def _quoted(roll: GangState, rank: RankSeen, why: Reason, *, is_stuck: bool = False) -> Reason:
    """With the last output of a rank, and of its NCCL if NCCL raised its error or it is stuck, perhaps in a
    collective."""
    words = roll.log_tails.get((rank.node, rank.local_rank))
    lines = words.lines if words else ()
    shows_nccl = is_stuck or any(map(OF_COLLECTIVES.search, lines))
    return because("quoted", (why,), _clean(lines), _nccl(roll, rank) if shows_nccl else ())


def _nccl(roll: GangState, rank: RankSeen | Failed) -> list[str]:
    """The last lines of a rank's NCCL log; empty without NCCL."""
    words = roll.log_tails.get((rank.node, rank.local_rank))
    return _clean(words.nccl, _NCCL_LINES) if words else []


def _clean(lines: Sequence[str], most: int = _LAST_LINES) -> list[str]:
    # Output may contain anything; drop control characters.
    return ["".join(c for c in _TORCHRUN_PREFIX.sub("", line) if c.isprintable()) for line in lines[-most:]]


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


# Whose an error is, by its text as cudaGetErrorString has it (CUDA Runtime API, "CUDA error types"), or its status of a
# library. ``device``: after it the context is unusable. ``program``: a wrong kernel or a wrong batch is as likely as
# the GPU. Others are none of the GPU's: what explains them. Of two that fit at one place the first counts.
_DEVICE, _PROGRAM = "device", "program"
_CAPTURE = "a program captured a CUDA graph wrongly"
_NO_FEATURE = "the GPU, its driver or a virtual machine lacks a feature that the program uses"
OUT_OF_MEMORY = "too little memory"
_ERRORS = {
    "uncorrectable ECC error encountered": _DEVICE,  # 214
    "uncorrectable NVLink error detected": _DEVICE,  # 220
    "Invalid access of peer GPU memory over nvlink or a hardware error": _DEVICE,  # 226
    "OS call failed or operation not supported on this OS": _DEVICE,  # 304
    "the launch timed out and was terminated": _DEVICE,  # 702
    "hardware stack error": _DEVICE,  # 714
    "an illegal instruction was encountered": _DEVICE,  # 715
    "operation not supported on global/shared address space": _DEVICE,  # 717
    "invalid program counter": _DEVICE,  # 718
    "unspecified launch failure": _DEVICE,  # 719
    "unknown error": _DEVICE,  # 999
    "an illegal memory access was encountered": _PROGRAM,  # 700
    "device-side assert triggered": _PROGRAM,  # 710
    "misaligned address": _PROGRAM,  # 716
    r"CU\w+_STATUS_EXECUTION_FAILED": _PROGRAM,
    r"CU\w+_STATUS_INTERNAL_ERROR": _PROGRAM,
    r"CU\w+_STATUS_(?:ALLOC_FAILED|NOT_INITIALIZED)": OUT_OF_MEMORY,
    r"(?:operation|dependency|attempt) [^\n]*captur": _CAPTURE,  # 900 to 908
    "captur(?:e was|ing stream)": _CAPTURE,
    "invalid argument": "a program called CUDA wrongly",  # 1
    "out of memory": OUT_OF_MEMORY,  # 2
    "initialization error": "the driver does not start, or CUDA was used before a fork",  # 3
    "invalid configuration argument": "a program launched a kernel that is too large for this GPU",  # 9
    "driver version is insufficient": "install a driver for torch's CUDA, or torch for the driver's",  # 35
    "busy or unavailable": "another process has it, in compute mode Exclusive_Process: `nvidia-smi -c 0`",  # 46
    "no CUDA-capable device": "look at CUDA_VISIBLE_DEVICES, and at the container's GPUs",  # 100
    "invalid device ordinal": "fewer GPUs are visible than ranks were started: look at CUDA_VISIBLE_DEVICES",  # 101
    "no kernel image": "this torch or a library has no kernels for this GPU: install a wheel that has",  # 209
    "unsupported toolchain": "kernels are of a newer CUDA than the driver: install a newer driver",  # 222
    "operation not permitted": _NO_FEATURE,  # 800
    "operation not supported": _NO_FEATURE,  # 801
    "system not yet initialized": "start nvidia-fabricmanager, of the driver's version",  # 802
    "unsupported display driver": "libcuda and kernel module differ: reboot, or match the container's",  # 803
    "forward compatibility was attempted": "cuda-compat does not fit this GPU: take it off LD_LIBRARY_PATH",  # 804
}
_OWN_ERROR = re.compile(rf"[^\n]*?((?:CUDA|Cuda|cuDNN|cuBLAS)[^\n]*?({'|'.join(_ERRORS)}))")
_MOST_CHARACTERS = 120


class CudaError(NamedTuple):
    """An error of CUDA or one of its libraries in a text.

    Attributes:
        text: ``CUDA error: unspecified launch failure``.
        cause: what explains it; empty if its GPU may be at fault.
    """

    text: str
    is_program: bool = False
    cause: str = ""


def cuda_error_in(text: str) -> CudaError | None:
    """The first one that a GPU may be at fault for, else the first; None if there is none."""
    errors = []
    for match in _OWN_ERROR.finditer(text):
        whose = next(whose for error, whose in _ERRORS.items() if re.fullmatch(error, match[2]))
        cause = "" if whose in (_DEVICE, _PROGRAM) else whose
        errors.append(CudaError(match[1][-_MOST_CHARACTERS:], whose == _PROGRAM, cause))
    return min(errors, key=lambda error: bool(error.cause), default=None)


def gpu_errors(roll: GangState) -> tuple[RankGpuError, ...]:
    """Ranks that an error of their own GPU ended: by their reports, or by their last words if they were aborted.

    NCCL's watchdog aborts a rank whose GPU failed before the rank notices.
    """
    messages: dict[tuple[int, int], tuple[Place, str, Failed | RankSeen]] = {
        (failure.node, failure.local_rank): (failure.place, failure.message, failure) for failure in roll.failures
    }
    for of_node, exit_, rank in roll.exits:
        key = rank.node, rank.local_rank
        if exit_.exit_code != 0 and key not in messages and key in roll.log_tails:
            messages[key] = Place(of_node.host, rank.local_rank), "\n".join(roll.log_tails[key].lines), rank
    return tuple(
        RankGpuError(place=place, error=error.text, is_program=error.is_program, study=of.study, arm=of.arm)
        for _, (place, text, of) in sorted(messages.items())
        if (error := cuda_error_in(text)) and not error.cause
    )


# Errors that NCCL or gloo raised, perhaps in the watchdog that aborts a rank whose collective timed out.
OF_COLLECTIVES = re.compile(r"NCCL|\bnccl[A-Z]|[Gg]loo\b|DistBackendError|[Ww]atchdog")
_LAST_ERROR = re.compile(r"Last error:\s*(\S.*)")
# "NCCL error in: ProcessGroupNCCL.cpp:94, …, NCCL version 2.27.7" and gloo's "[…/pair.cc:547] …"
_SOURCES = re.compile(r" in: \S+:\d+(?=,)|\[\S+\.[a-z]+:\d+\] ?|, NCCL version \S+.*")
_MOST_OF_CAUSE = 160
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
    if match := _NO_ANSWER.search(message):
        host = roll.host_at(match[1])
        peer = f"{host} ({match[1]})" if host else match[1]
        return f"{peer} did not answer over {match[2] or 'an adapter'} (status 12): look at adapter, cable and switch"
    for pattern, words in _KINDS.items():
        if match := re.search(pattern, message):
            return match.expand(words)
    last = _LAST_ERROR.search(message)
    cause = last[1] if last else next((line for line in message.splitlines() if line.strip()), "")
    cause = _SOURCES.sub("", cause).strip()
    return cause if len(cause) <= _MOST_OF_CAUSE else f"{cause[: _MOST_OF_CAUSE - 1]}…"


def lost_connections(roll: GangState) -> tuple[RankGpuError, ...]:
    """Ranks whose adapter got no answer from another node, each with that node's address."""
    return tuple(
        RankGpuError(
            place=report.place, error=cause_of(report, roll), study=report.study, arm=report.arm, peer=match[1]
        )
        for report in roll.failures
        if (match := _NO_ANSWER.search(report.message))
    )  # fmt: skip
