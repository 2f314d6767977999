"""What a launcher is: it turns a gang into a command line, and does nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pytest_ddpscale.launch.container import Container


@dataclass(frozen=True)
class GangSpec:
    """The ranks to start.

    Attributes:
        gang_id: by what its processes are found.
        nodes: how many.
        ranks_per_node: ranks on each node, one per GPU.
        log_dir: where torchrun keeps each rank's output.
        worker_arguments: command line of ``pytest_ddpscale.worker``.
        hosts: names of the nodes, in rank order; empty where Slurm is still to choose them.
        beat_s: seconds between two words of a node's agent on every rank.
        survey: whether agents first say what their nodes are.
        has_gpus: whether that asks for GPUs.
        post_mortem: whether agents look at the GPUs once ranks have failed.
        proof: a file in the run directory that every node has to see before anything starts; None if none has to.
    """

    gang_id: str
    nodes: int
    ranks_per_node: int
    log_dir: Path
    worker_arguments: Sequence[str]
    hosts: tuple[str, ...] = ()
    beat_s: float = 2.0
    survey: bool = False
    has_gpus: bool = True
    post_mortem: bool = False
    proof: Path | None = None


class Launcher(Protocol):
    """How the agents of the nodes start, which start the ranks.

    Attributes:
        name: of the launcher.
        needs_shared_directory: whether rank 0 writes the records, so that all nodes have to see the run directory; not
            of a launcher that carries them itself.
    """

    name: str
    needs_shared_directory: bool

    def command(self, gang: GangSpec) -> list[str]:
        """The argument list that starts this gang's agents in the foreground."""


def agent_command(gang: GangSpec, container: Container, *further: str) -> list[str]:
    """``python -m pytest_ddpscale.node …``: what runs on every node, in a container if there is one."""
    agent = [container.python, "-m", "pytest_ddpscale.node", f"--gang={gang.gang_id}"]
    size = [f"--ranks-per-node={gang.ranks_per_node}", f"--log-dir={gang.log_dir}", f"--beat-s={gang.beat_s:g}"]
    survey = [] if not gang.survey else ["--survey"] if gang.has_gpus else ["--survey", "--no-gpu"]
    after = ["--post-mortem"] if gang.post_mortem else []
    after += [f"--look-for={gang.proof}"] if gang.proof else []
    return [*container.command, *agent, *size, *survey, *after, *further, "--", *gang.worker_arguments]
