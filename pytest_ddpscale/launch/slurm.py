"""Launcher for Slurm: ``srun`` starts one agent per node. No other module knows Slurm.

Inside an allocation a gang is a job step; elsewhere srun requests an allocation. Lost nodes and the reason why a job or
step ended are read from the output of srun, slurmstepd and Slurm's commands.
"""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from datetime import datetime, timedelta

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.launch.hosts import expanded
from pytest_ddpscale.launch.launcher import AgentProcess, Cluster, Launch, Launcher, is_among
from pytest_ddpscale.run.reason import Why, because
from pytest_ddpscale.settings import AUTO, Settings

_SRUN = (
    "--ntasks-per-node=1",
    "--export=ALL",  # a site's SLURM_EXPORT_ENV may restrict what is passed
    "--cpu-bind=none",  # otherwise a node's one task, with all of its ranks, may be bound to one core
    "--kill-on-bad-exit=0",  # after one node fails, the others report where they were
    "--wait=0",
    "--no-kill",  # the same if Slurm gives up a node; the job needs this option too
)
# Requests whole nodes for a job. For a step it would mean as many cores as tasks: one for all ranks of a node.
_FOR_AN_ALLOCATION = re.compile(r"--exclusive(=|$)")
# With one task per node, the task's number is the node's index. Draining a node needs slurmd's name for it.
_WHICH_NODE = ("--node-from=SLURM_PROCID", "--host-from=SLURMD_NODENAME")
# Arguments by which a user requests GPUs, which replace ours.
_ASKS_FOR_GPUS = re.compile(r"(--gpus(-per-(node|task|socket))?|--gres|--tres-per-(node|task|socket))(=|$)|-G")
_PASSED = ("SLURM_", "SLURMD_", "SRUN_")
# These describe the surrounding step; srun would apply them to ours.
_WITHHELD = frozenset(
    {
        "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE", "SLURM_NTASKS_PER_CORE", "SLURM_NTASKS_PER_SOCKET",
        "SLURM_NTASKS_PER_GPU", "SLURM_TASKS_PER_NODE", "SLURM_CPUS_PER_TASK", "SLURM_TRES_PER_TASK",
        "SLURM_CPU_BIND", "SLURM_CPU_BIND_LIST", "SLURM_CPU_BIND_TYPE", "SLURM_CPU_BIND_VERBOSE",
        "SLURM_DISTRIBUTION", "SLURM_ARBITRARY_NODELIST", "SLURM_EXPORT_ENV", "SLURM_GPUS_PER_TASK",
        "SLURM_GPU_BIND", "SLURM_LABELIO", "SLURM_UNBUFFEREDIO", "SLURM_STDINMODE", "SLURM_STDOUTMODE",
        "SLURM_STDERRMODE", "SLURM_KILL_BAD_EXIT", "SLURM_WAIT", "SLURM_STEP_NODELIST", "SLURM_STEP_NUM_NODES",
        "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID",
        "SLURM_MULTI_PROG", "SLURM_TIMELIMIT", "SRUN_CPUS_PER_TASK", "SLURM_EXACT", "SLURM_EXCLUSIVE", "SLURM_HINT",
        "SLURM_THREADS_PER_CORE", "SLURM_MEM_BIND", "SLURM_MEM_BIND_LIST", "SLURM_MEM_BIND_TYPE",
        "SLURM_MEM_BIND_PREFER", "SLURM_MEM_BIND_SORT", "SLURM_MEM_BIND_VERBOSE",
    }
)  # fmt: skip
_HAS_NODES = "has been allocated resources"
_OF_THE_QUEUE = re.compile(f"queued and waiting|step creation|{_HAS_NODES}")
_PATIENCE_S = 10.0
# slurmstepd: error: *** STEP 5.0 ON n1 CANCELLED AT 2026-01-31T12:00:00 DUE TO TIME LIMIT ***
# For scancel, newer versions write `DUE to SIGNAL Terminated` where 22.05 gives no reason.
_CANCELLED = re.compile(
    r"\*\*\* (?:STEP|JOB) \S+ ON \S+ CANCELLED AT \S+"
    r"(?: DUE to SIGNAL .*?| DUE TO (TIME LIMIT|PREEMPTION|JOB REQUEUE))?(?: \*\*\*|,|$)"
)
_NODE_FAILURE = re.compile(r"srun: error: Node failure on (\S+)")
# What `scontrol show job` says of a job that is being ended, and why that is; the first that fits counts.
_STATES = {
    r"JobState=PREEMPTED|PreemptTime=\d": "preemption",
    # Slurm 22.05 shows a requeued job as pending while it still runs, also after preemption.
    r"JobState=(?:PENDING|\w*REQUEUE)": "job-requeue",
    r"JobState=TIMEOUT|Reason=TimeLimit": "time-limit",
    r"JobState=NODE_FAIL|Reason=NodeDown": "node-failed",
    r"JobState=OUT_OF_MEMORY|Reason=OutOfMemory": "out-of-memory",
    r"JobState=DEADLINE|Reason=DeadLine": "deadline",
    # After scancel a job is COMPLETING while its processes end, and its EndTime is the time of cancellation.
    r"JobState=(?:CANCELLED|COMPLETING)": "cancelled",
}
# A signal this close to the job's end announces the time limit: `#SBATCH --signal=B:TERM@120`.
_NEAR_THE_END = timedelta(minutes=5)


class SlurmLauncher(Launcher, called="slurm"):
    """Starts agents by srun. ``--ddp-slurm-args`` override ours; ``--exclusive`` is dropped inside an allocation."""

    calls_itself = "Slurm"
    program = "srun"
    service = "its slurmd"
    voices = ("srun:", "slurmstepd")
    options = ("slurm_args",)

    @classmethod
    def is_meant(cls, settings: Settings, environ: Mapping[str, str]) -> bool:
        """Whether several nodes, srun arguments or a job on another node (as in an salloc shell) call for Slurm."""
        if settings.slurm_args or (settings.nodes or 1) > 1:
            return True
        try:
            hosts = allocated_hosts(environ)
        except OptionError:
            return True  # `cluster` raises the error again
        return bool(hosts) and ((settings.nodes != 1 and len(hosts) > 1) or not is_among(hosts, _here(environ)))

    @classmethod
    def passes(cls, variable: str) -> bool | None:
        """Pass variables of the job, but not those of the surrounding step."""
        return False if variable in _WITHHELD else True if variable.startswith(_PASSED) else None

    def cluster(self, *, plans_only: bool) -> Cluster:
        """The first nodes of the surrounding allocation, or the requested number of nodes of a new job.

        Raises:
            OptionError: more nodes are requested than allocated, the job is heterogeneous, srun is missing or would
                refuse its environment.
        """
        settings = self.settings
        hosts: tuple[str, ...] = ()
        with suppress(OptionError) if plans_only else nullcontext():
            hosts = allocated_hosts(self.environ)
        nodes = settings.nodes or len(hosts) or 1
        if plans_only:
            return Cluster(nodes, launcher=self.name, is_elsewhere=True) if nodes > 1 else Cluster()
        if hosts and nodes > len(hosts):
            raise OptionError(
                "--ddp-nodes", f"found {nodes}, but Slurm job {self.environ['SLURM_JOB_ID']} has {len(hosts)}",
                f"at most {len(hosts)}", "Ask sbatch or salloc for more nodes.",
            )  # fmt: skip
        if shutil.which("srun") is None:
            raise OptionError(
                "--ddp-launcher", "srun is not on PATH", "Slurm's commands",
                f"On one machine leave --ddp-nodes and --ddp-slurm-args out ({AUTO} is torchrun there).",
            )  # fmt: skip
        memory = [name for name in sorted(self.environ) if name.startswith("SLURM_MEM_PER_")]
        if memory[1:] and not any(argument.startswith("--mem") for argument in settings.slurm_args):
            found = "are set, which srun refuses as mutually exclusive"
            raise OptionError(" and ".join(memory), found, "one of them", "Unset all but one.")
        if not hosts and settings.is_isolated:
            raise OptionError(
                "--ddp-profile", "each study would be its own Slurm job, possibly on other nodes", "one allocation",
                "Start pytest with sbatch or within salloc.",
            )  # fmt: skip
        return Cluster(nodes, hosts[:nodes], self.name, is_elsewhere=not is_among(hosts, _here(self.environ)))

    def processes(self, launch: Launch) -> list[AgentProcess]:
        """``srun --job-name=… --nodes=N --ntasks=N … python -m pytest_ddpscale.node …``."""
        where, own = [f"--nodes={launch.nodes}", f"--ntasks={launch.nodes}"], list(self.settings.slurm_args)
        if launch.hosts:
            # A step that is still ending on a broken node must not delay the next one: --overlap.
            where += ["--overlap", f"--nodelist={','.join(launch.hosts)}"]
            own = [argument for argument in own if not _FOR_AN_ALLOCATION.match(argument)]
        elif launch.device_type == "cuda" and not any(map(_ASKS_FOR_GPUS.match, own)):
            own.insert(0, f"--gpus-per-node={self.settings.gpus_per_node}")
        srun = ["srun", f"--job-name={launch.name}", *_SRUN, *where, *launch.container.arguments, *own]
        return [AgentProcess([*srun, *launch.agent(*_WHICH_NODE)])]

    def image_arguments(self, image: str) -> tuple[str, ...]:
        """srun's argument for Pyxis with Enroot."""
        return (f"--container-image={image}",)

    def queue_state(self, lines: Sequence[str]) -> str:
        """srun's state while it waits for nodes: ``job 17 queued and waiting for resources``."""
        if {"-Q", "--quiet"}.intersection(self.settings.slurm_args):
            return "srun --quiet does not say whether Slurm has allocated nodes"
        messages = [line for line in lines if _OF_THE_QUEUE.search(line)]
        return messages[-1].removeprefix("srun: ") if messages and _HAS_NODES not in messages[-1] else ""

    def why_ended(self, lines: Sequence[str]) -> Why:
        """Why Slurm ended a step, from srun's output."""
        ends = (match[1] or "cancelled" for line in lines if (match := _CANCELLED.search(line)))
        return next((because(why.lower().replace(" ", "-"), "") for why in ends), "")

    def why_signalled(self) -> Why:
        """Why Slurm may be signalling this job now; empty if unknown or outside of a job."""
        job_id = self.environ.get("SLURM_JOB_ID")
        described = _asked("scontrol", "show", "job", "-o", job_id) if job_id else None
        return reason_of(described, datetime.now()) if described else ""

    def given_up(self, lines: Sequence[str]) -> tuple[str, ...]:
        """Nodes that Slurm gave up during a step: ``srun: error: Node failure on n3``."""
        hosts: dict[str, None] = {}
        for line in lines:
            if match := _NODE_FAILURE.search(line):
                with suppress(OptionError):
                    hosts |= dict.fromkeys(expanded("srun", match[1]))
        return tuple(hosts)

    def left_behind(self, launch: Launch) -> Why:
        """The step or job, until squeue no longer lists its name."""
        job_id = self.environ.get("SLURM_JOB_ID") if launch.hosts else None
        which = ["--steps", f"--jobs={job_id}"] if job_id else [f"--name={launch.name}"]
        left = _asked("squeue", "--noheader", "--format=%j", *which)
        if left is not None and launch.name not in left.split():
            return ""
        return because("step-left", launch.name)


def allocated_hosts(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Names of the nodes of the surrounding allocation (sbatch, salloc), in Slurm's order; empty outside of one.

    Raises:
        OptionError: the job is heterogeneous.
    """
    job_id, hosts = environ.get("SLURM_JOB_ID"), environ.get("SLURM_JOB_NODELIST")
    if not job_id or not hosts:
        return ()
    components = [environ[name] for name in sorted(environ) if name.startswith("SLURM_JOB_NODELIST_HET_GROUP_")]
    if components[1:]:
        found = f"it is heterogeneous, with the components {' and '.join(components)}"
        raise OptionError(f"Slurm job {job_id}", found, "nodes that are alike", "Submit one component as a job.")
    return expanded("SLURM_JOB_NODELIST", hosts)


def reason_of(described: str, now: datetime) -> Why:
    """Why a job is being ended, from a line of ``scontrol show job -o``; empty if it is not."""
    limit, end = (re.search(rf"(?<!\S){name}=(\S+)", described) for name in ("TimeLimit", "EndTime"))
    why = next((why for state, why in _STATES.items() if re.search(rf"(?<!\S)(?:{state})", described)), "")
    with suppress(ValueError):
        if not why and end and datetime.fromisoformat(end[1]) - now < _NEAR_THE_END:
            why = "time-limit"
    return because(why, limit[1] if limit else "") if why else ""


def _here(environ: Mapping[str, str]) -> str:
    return environ.get("SLURMD_NODENAME") or socket.gethostname()


def _asked(*command: str) -> str | None:
    """Output of one of Slurm's commands, found on PATH like srun; None if it fails or times out."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout if result.returncode == 0 else None
