"""Ranks on the nodes of a Slurm job: ``srun`` starts one agent a node, which starts torchrun there."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_ddpscale.launch.container import NO_CONTAINER, Container
from pytest_ddpscale.launch.launcher import GangSpec, agent_command

_SRUN = (
    "--ntasks-per-node=1",
    "--export=ALL",  # of what the supervisor passes; a site may have set SLURM_EXPORT_ENV to less
    "--cpu-bind=none",  # else the one task of a node, and all ranks under it, may be bound to one core
    "--kill-on-bad-exit=0",  # when one node fails, the others say first where they were
    "--wait=0",
    "--no-kill",  # nor when Slurm gives a node up: the job needs that option too
)
# A step that still ends on a broken node must not keep the next one waiting.
_WITHIN_AN_ALLOCATION = ("--overlap",)
# It asks for whole nodes. Of a step it would mean as many cores as tasks: one for all ranks of a node.
_FOR_AN_ALLOCATION = re.compile(r"--exclusive(=|$)")
_TRIAL_S = 30.0
# What slurmctld says, in place of srun, of options that it never accepts; that nodes are busy or down may change.
_NO_ALLOCATION = "allocation failure:"
_NEVER = re.compile(r"[Ii]nvalid")
# Which line of what they say is the sentence: srun also tells what is missing for options that it does not mind.
_SENTENCES = tuple(
    map(re.compile, ("srun: fatal: (.+)", "srun: error: (.+)", f"{_NO_ALLOCATION} (.+)", "srun: (.*option.*)"))
)


@dataclass(frozen=True)
class SlurmLauncher:
    """Inside an allocation a step of it; elsewhere srun asks for an allocation.

    Attributes:
        arguments: further ones of srun, such as ``--partition=gpu``; they win over ours. ``--exclusive`` is left out
            inside an allocation.
        container: what agents and ranks run in.
    """

    arguments: tuple[str, ...] = ()
    container: Container = NO_CONTAINER
    name = "slurm"
    needs_shared_directory = True

    def command(self, gang: GangSpec) -> list[str]:
        """``srun --job-name=… --nodes=N --ntasks=N … python -m pytest_ddpscale.node --slurm …``."""
        srun = self._srun(gang.nodes, gang.hosts, [f"--job-name={step_name(gang.gang_id)}"])
        return [*srun, *agent_command(gang, self.container, "--slurm")]

    def complaint(self, nodes: int, hosts: tuple[str, ...], environment: Mapping[str, str]) -> str:
        """What srun, or slurmctld, says of arguments that it never accepts; empty if they are fine, or nobody knows.

        Args:
            nodes: how many are to be used.
            hosts: their names; empty where Slurm is still to choose them.
            environment: of srun.
        """
        command = [*self._srun(nodes, hosts), "--test-only", "true"]
        try:
            tried = subprocess.run(
                command, env=dict(environment), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                timeout=_TRIAL_S, check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired):
            return ""
        return "" if tried.returncode == 0 else complaint_in(tried.stderr, is_step=bool(hosts))

    def _srun(self, nodes: int, hosts: tuple[str, ...], name: Sequence[str] = ()) -> list[str]:
        where, own = [f"--nodes={nodes}", f"--ntasks={nodes}"], list(self.arguments)
        if hosts:
            where += [*_WITHIN_AN_ALLOCATION, f"--nodelist={','.join(hosts)}"]
            own = [argument for argument in own if not _FOR_AN_ALLOCATION.match(argument)]
        return ["srun", *name, *_SRUN, *where, *self.container.srun_arguments, *own]


def step_name(gang_id: str) -> str:
    """What a gang's step, or from a login node its job, is called: no other has the name."""
    return f"ddpscale-{gang_id[:8]}"


def complaint_in(said: str, *, is_step: bool) -> str:
    """The sentence about wrong arguments in what ``srun --test-only`` said; empty if there is none.

    Args:
        said: its standard error.
        is_step: the allocation is there, so that it does not matter whether Slurm would give another one.
    """
    lines = said.splitlines()
    slurmctlds = [line for line in lines if line.startswith(_NO_ALLOCATION)]
    if slurmctlds and (is_step or not any(map(_NEVER.search, slurmctlds))):
        return ""
    found = (match[1] for sentence in _SENTENCES for line in lines if (match := sentence.match(line)))
    return next(found, "")
