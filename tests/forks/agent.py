"""``python -m tests.forks.agent ADDRESS OPTION...``: a node's agent whose ranks a fork server starts.

Where `site_of_agents` is on PYTHONPATH, so are the ranks of ``python -m pytest_ddpscale.node``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pytest_ddpscale.node import agent
from pytest_ddpscale.node.ranks import torchrun_command
from pytest_ddpscale.node.survey import survey_command
from tests.forks.script import python_exec
from tests.forks.start import address, command_at

# In the environment of an agent it has torchrun start the ranks, all of them forks.
TORCHRUN = "TESTS_TORCHRUN"
SITE = """\
import sys
if sys.orig_argv[1:3] == ["-m", "pytest_ddpscale.node"]:
    from tests.forks.agent import forked_ranks
    forked_ranks({address!r}, surveys={surveys!r})
"""


def site_of_agents(folder: Path, preload: str = "", *, surveys: bool = False) -> Path:
    """Make a folder for PYTHONPATH. For `preload` see `address`, for `surveys` `forked_ranks`."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(SITE.format(address=address(preload), surveys=surveys), encoding="utf-8")
    return folder


def forked_ranks(address: str, *, surveys: bool = False) -> None:
    """Have agents of this process start ranks, and surveys of their node, at a server."""

    def command(gang_id: str, ranks_per_node: int, log_dir: Path, rendezvous: Path) -> list[str]:
        if TORCHRUN not in os.environ:
            return command_at(address, "tests.forks.ranks", str(ranks_per_node), str(log_dir))
        _, _, *torchrun = torchrun_command(gang_id, ranks_per_node, log_dir, rendezvous)
        return ["env", f"PYTHON_EXEC={python_exec(rendezvous.parent, address)}", *command_at(address, *torchrun)]

    vars(agent)["torchrun_command"] = command
    if surveys:
        vars(agent)["survey_command"] = lambda *given: command_at(address, *survey_command(*given)[2:])


if __name__ == "__main__":
    from pytest_ddpscale.node.__main__ import main

    forked_ranks(sys.argv.pop(1))
    sys.exit(main())
