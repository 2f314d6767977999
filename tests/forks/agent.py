"""``python -m tests.forks.agent ADDRESS OPTION...``: a node's agent whose ranks a fork server starts."""

from __future__ import annotations

import sys
from pathlib import Path

from pytest_ddpscale.node import agent
from pytest_ddpscale.node.__main__ import main
from tests.forks.start import command_at


def forked_ranks(address: str) -> None:
    """Have agents of this process start ranks at a server."""

    def command(gang_id: str, ranks_per_node: int, log_dir: Path, rendezvous: Path) -> list[str]:
        return command_at(address, "tests.forks.ranks", str(ranks_per_node), str(log_dir))

    vars(agent)["torchrun_command"] = command


if __name__ == "__main__":
    forked_ranks(sys.argv.pop(1))
    sys.exit(main())
