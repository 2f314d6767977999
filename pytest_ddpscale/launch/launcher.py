"""What a launcher is: it turns a gang into a command line, and does nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True)
class GangSpec:
    """The ranks to start.

    Attributes:
        ranks_per_node: ranks on each node, one per GPU.
        log_dir: where the launcher keeps each rank's output.
        worker_arguments: command line of ``pytest_ddpscale.worker``.
    """

    ranks_per_node: int
    log_dir: Path
    worker_arguments: Sequence[str]


class Launcher(Protocol):
    """How ranks start."""

    name: str

    def command(self, gang: GangSpec) -> list[str]:
        """The argument list that starts this gang in the foreground."""
