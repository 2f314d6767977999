"""What Slurm says of the job around us, and why it ended a step: none of it is the fault of the machines measured."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from pytest_ddpscale.errors import OptionError

_PATIENCE_S = 10.0
# slurmstepd: error: *** STEP 5.0 ON n1 CANCELLED AT 2026-01-31T12:00:00 DUE TO TIME LIMIT ***
# Newer versions write `DUE to SIGNAL Terminated` where 22.05 gives no reason: somebody cancelled it.
_CANCELLED = re.compile(
    r"\*\*\* (?:STEP|JOB) \S+ ON \S+ CANCELLED AT \S+(?: DUE to SIGNAL .*?| DUE TO ([A-Z ]+?))?(?: \*\*\*|,|$)"
)
_NODE_FAILURE = re.compile(r"srun: error: Node failure on (\S+)")
_REASONS = {
    "TIME LIMIT": "the job reached its time limit",
    "PREEMPTION": "the job was preempted",
    "JOB REQUEUE": "the job was requeued",
    "": "the job was cancelled",
}
# A signal that comes this close to the end announces it: `#SBATCH --signal=B:TERM@120`.
_NEAR_THE_END = timedelta(minutes=5)


@dataclass(frozen=True)
class Allocation:
    """The Slurm job that we run in.

    Attributes:
        job_id: its number.
        hosts: names of its nodes, in Slurm's order.
    """

    job_id: str
    hosts: tuple[str, ...]


def allocation_of(environ: Mapping[str, str]) -> Allocation | None:
    """The allocation around us (sbatch, salloc); None outside of any.

    Raises:
        OptionError: Slurm does not say which nodes they are.
    """
    job_id, hosts = environ.get("SLURM_JOB_ID"), environ.get("SLURM_JOB_NODELIST")
    if not job_id or not hosts:
        return None
    found = _expanded(hosts)
    if not found:
        raise OptionError(
            f"Slurm job {job_id}", f"`scontrol show hostnames {hosts}` does not answer", "the names of its nodes",
            "Make Slurm's commands work here, or measure this node only with --ddp-launcher=torchrun.",
        )  # fmt: skip
    return Allocation(job_id, found)


def why_signalled(environ: Mapping[str, str], now: datetime) -> str:
    """Why Slurm would send this job a signal now; empty if it does not say, or there is no job."""
    job_id = environ.get("SLURM_JOB_ID")
    described = _asked("scontrol", "show", "job", "-o", job_id) if job_id else None
    return reason_of(described, now) if described else ""


def reason_of(described: str, now: datetime) -> str:
    """Why a job is being ended, from a line of ``scontrol show job -o``.

    Args:
        described: that line.
        now: local time, as Slurm's.
    """
    fields = dict(part.partition("=")[::2] for part in described.split() if "=" in part)
    if fields.get("JobState") == "PREEMPTED" or fields.get("PreemptTime", "None") not in ("None", "N/A", ""):
        return _REASONS["PREEMPTION"]
    # Back in the queue while we still run: Slurm 22.05 shows it so at once, also if it was preempted.
    if fields.get("JobState") == "PENDING" or "REQUEUE" in fields.get("JobState", ""):
        return _REASONS["JOB REQUEUE"]
    at_its_limit = f"{_REASONS['TIME LIMIT']} of {fields.get('TimeLimit', '?')}"
    if fields.get("JobState") == "TIMEOUT" or fields.get("Reason") == "TimeLimit":
        return at_its_limit
    # After scancel, and as long as its processes end, a job is COMPLETING, and its EndTime is when it was cancelled.
    if fields.get("JobState") in ("CANCELLED", "COMPLETING"):
        return _REASONS[""]
    end = _time(fields.get("EndTime", ""))
    return at_its_limit if end is not None and end - now < _NEAR_THE_END else ""


def why_step_ended(lines: Sequence[str]) -> str:
    """Why Slurm ended a step, from what srun printed; empty if Slurm did not end it."""
    for line in lines:
        match = _CANCELLED.search(line)
        if match and (match[1] or "").strip() in _REASONS:
            return _REASONS[(match[1] or "").strip()]
    return ""


def failed_nodes(lines: Sequence[str]) -> tuple[str, ...]:
    """Nodes that Slurm has given up during a step, from what srun printed: ``srun: error: Node failure on n3``."""
    found = [match[1] for line in lines if (match := _NODE_FAILURE.search(line))]
    return tuple(dict.fromkeys(host for hosts in found for host in _expanded(hosts)))


def step_is_gone(name: str, *, within_job: str | None) -> bool:
    """Whether Slurm says that a step has ended on all nodes, or that a job has, and has no other of its name.

    Args:
        name: of the step, or of the job.
        within_job: the job whose step it is; None if it is a job.
    """
    which = ["--steps", f"--jobs={within_job}"] if within_job else [f"--name={name}"]
    left = _asked("squeue", "--noheader", "--format=%j", *which)
    return left is not None and name not in left.split()


def queue_state(lines: Sequence[str]) -> str:
    """What srun says of its wait for nodes: ``job 17 queued and waiting for resources``; empty if nothing."""
    waiting = [line for line in lines if "queued and waiting" in line or "step creation" in line]
    return waiting[-1].removeprefix("srun: ") if waiting else ""


def _expanded(hosts: str) -> tuple[str, ...]:
    """The names in Slurm's shorthand, ``n[1-3]``; none if nobody can tell."""
    if not re.search(r"[\[,]", hosts):
        return (hosts,)  # one name needs no help
    found = _asked("scontrol", "show", "hostnames", hosts)
    return tuple(found.split()) if found else ()


def _time(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def _asked(*command: str) -> str | None:
    """What one of Slurm's commands prints, from PATH like srun; None if it does not answer, or with an error."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout if result.returncode == 0 else None
