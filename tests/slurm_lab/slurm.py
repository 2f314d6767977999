"""Slurm's commands, run on the lab's head, and what they say about jobs and nodes."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path

from tests.slurm_lab.config import Paths
from tests.slurm_lab.machine import Machine, lab_path
from tests.slurm_lab.polling import wait_until

COMMAND_DEADLINE_S = 60
# Of a surrounding Slurm job or of the user's preferences: they would change what the lab's commands do.
_FOREIGN = re.compile(r"^(SLURM|SLURMD|SBATCH|SALLOC|SQUEUE|SINFO|SCANCEL|SCONTROL|SRUN|PMI|PMIX)_")
FINAL_STATES = frozenset(
    ["BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT"]
)


class Slurm:
    """The lab's Slurm, as a user on its head sees it."""

    def __init__(self, head: Machine, paths: Paths) -> None:
        self.head = head
        self.paths = paths

    @property
    def environ(self) -> dict[str, str]:
        """A copy of this process's environment in which Slurm's commands find the lab, and only the lab."""
        environ = {name: value for name, value in os.environ.items() if not _FOREIGN.match(name)}
        return lab_path({**environ, "SLURM_CONF": str(self.paths.slurm_conf)})

    def command(self, argv: Sequence[str]) -> list[str]:
        """The command that runs ``argv`` on the head: host name ``head``, every node's name resolved.

        It becomes ``argv``'s process itself: a signal sent to its pid reaches ``argv``, which works in the directory
        the command is started in. Give it ``environ``.
        """
        return self.head.enter(argv, as_member=False)

    def run(
        self, argv: Sequence[str], *, deadline_s: float = COMMAND_DEADLINE_S, cwd: Path | None = None,
        environ: Mapping[str, str] | None = None, text: str | None = None, check: bool = True,
    ) -> subprocess.CompletedProcess[str]:  # fmt: skip
        """Run a command on the head to its end.

        Args:
            argv: what to run.
            deadline_s: when it is killed (subprocess.TimeoutExpired).
            cwd: where; default: the lab's directory.
            environ: added to ``self.environ``.
            text: its standard input.
            check: whether another exit code than 0 is an error.

        Raises:
            RuntimeError: with its output, when it failed and ``check`` is set.
        """
        done = subprocess.run(
            self.command(argv), env={**self.environ, **(environ or {})}, cwd=cwd or self.paths.directory,
            input=text or "", capture_output=True, text=True, timeout=deadline_s, check=False,
        )  # fmt: skip
        if check and done.returncode != 0:
            raise RuntimeError(f"{' '.join(argv)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    def submit(
        self, script: str | Path, *options: str, arguments: Sequence[str] = (), cwd: Path | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> int:  # fmt: skip
        """Submit a job with sbatch and return its id.

        Args:
            script: shell commands, or the path of a batch script. Without an ``--output`` of its own, text leaves its
                output where ``job_output`` finds it.
            options: sbatch's.
            arguments: the script's.
            cwd: where sbatch is called, which is where the job starts.
            environ: added to the job's environment.
        """
        argv = ["sbatch", "--parsable"]
        if isinstance(script, Path):
            done = self.run([*argv, *options, str(script), *arguments], cwd=cwd, environ=environ)
        else:
            text = script if script.startswith("#!") else f"#!/bin/bash\n{script}\n"
            argv += [f"--output={self.paths.jobs}/%j.out", *options, "/dev/stdin", *arguments]
            done = self.run(argv, cwd=cwd, environ=environ, text=text)
        return int(done.stdout.strip().split(";")[0])

    def job(self, job_id: int) -> list[dict[str, str]]:
        """What ``scontrol show job`` says: one mapping a job, several for an array; none once Slurm forgot it."""
        done = self.run(["scontrol", "--oneliner", "show", "job", str(job_id)], check=False)
        return [dict(re.findall(r"(\S+?)=(\S*)", line)) for line in done.stdout.splitlines() if "JobId=" in line]

    def job_state(self, job_id: int) -> str:
        """``PENDING``, ``RUNNING``, ``COMPLETED``, …; of an array the first state that is not ``COMPLETED``."""
        states = [job["JobState"] for job in self.job(job_id)]
        return next((state for state in states if state != "COMPLETED"), "COMPLETED") if states else "UNKNOWN"

    def wait_for_state(self, job_id: int, state: str, deadline_s: float = 30) -> None:
        """Wait until a job is in a state (LabTimeoutError)."""
        wait_until(
            lambda: self.job_state(job_id) == state, deadline_s, f"job {job_id} to be {state}",
            seen=lambda: f"{self.job(job_id)}",
        )  # fmt: skip

    def wait_for_job(self, job_id: int, deadline_s: float = 60) -> str:
        """Wait until a job, or every task of an array, has ended, and return its last state (LabTimeoutError)."""
        wait_until(
            lambda: all(job["JobState"] in FINAL_STATES for job in self.job(job_id)), deadline_s,
            f"job {job_id} to end", seen=lambda: f"{self.job(job_id)}\n{self.job_output(job_id)}",
        )  # fmt: skip
        return self.job_state(job_id)

    def end_at_time_limit(self, job_id: int, after_s: float) -> None:
        """Let a running job's time limit (which Slurm's options give in whole minutes) be up in some seconds.

        Slurm looks at time limits every 30 s, and SIGTERM comes 15 s before SIGKILL: a job ends up to 50 s later.
        """
        end = datetime.now() + timedelta(seconds=after_s)  # local time, as Slurm's commands speak it
        self.run(["scontrol", "update", f"JobId={job_id}", f"EndTime={end:%Y-%m-%dT%H:%M:%S}"])

    def job_output(self, job_id: int) -> str:
        """What a job wrote so far to its output file; empty before it has one."""
        files = [Path(job["StdOut"]) for job in self.job(job_id) if "StdOut" in job]
        return "".join(file.read_text(encoding="utf-8") for file in files if file.is_file())

    def cancel_all(self) -> None:
        """End every job at once."""
        jobs = self.run(["squeue", "--noheader", "--format=%A"]).stdout.split()
        if jobs:
            # A job may end by itself meanwhile: whether all are gone is for wait_idle to find.
            self.run(["scancel", "--full", "--signal=KILL", *jobs], check=False)
            self.run(["scancel", *jobs], check=False)

    def node_states(self) -> dict[str, str]:
        """Node name → state as Slurm's ``sinfo`` names it: ``idle``, ``allocated``, ``drained``, ``down*``, …"""
        lines = self.run(["sinfo", "--noheader", "--Node", "--partition=main", "--format=%N %T"]).stdout.splitlines()
        return dict(line.split() for line in lines)

    def drain_reason(self, node: str) -> str | None:
        """Why a node is drained or down, without who and when; None when it has no reason."""
        shown = self.run(["scontrol", "--oneliner", "show", "node", node]).stdout
        found = re.search(r" Reason=(.*?)(?: \[\S+@\S+\])?\s*$", shown)
        return found[1] if found else None

    def drain(self, node: str, reason: str) -> None:
        """Let no further job start on a node."""
        self.run(["scontrol", "update", f"NodeName={node}", "State=DRAIN", f"Reason={reason}"])

    def resume(self, *nodes: str) -> None:
        """Give nodes that were drained or down back to the jobs."""
        # Refused for a node that needs no resuming, as when it came back by itself meanwhile.
        self.run(["scontrol", "update", f"NodeName={','.join(nodes)}", "State=RESUME"], check=False)

    def is_idle(self) -> bool:
        """Whether no job is left and every node is idle."""
        jobs = self.run(["squeue", "--noheader", "--format=%A"]).stdout.split()
        return not jobs and set(self.node_states().values()) == {"idle"}

    def wait_idle(self, deadline_s: float = 30) -> None:
        """Wait until no job is left and every node is idle (LabTimeoutError)."""
        wait_until(self.is_idle, deadline_s, "every node to be idle", seen=lambda: f"{self.node_states()}")
