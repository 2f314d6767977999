"""The suite in several pytest-xdist workers (``-n 4``): who shares a worker, and who goes first.

Tests that start real ranks go first, each lane to a worker of its own; the rest go with lower priority: folders that
prepare much, the longest first, and then by file.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.forks.start import SHARED, address, command

# Tests that start real ranks or agents, in lanes of which none takes much longer than the others: see docs/testing.md.
# Those over Slurm wait for much of their time, so that others go beside them. The first prefix counts.
# Each lane has one cluster at most.
LANES = {
    "tests/integration/test_slurm_docs": "scripts",
    "tests/integration/test_slurm_scripts": "scripts",
    "tests/integration/test_slurm": "slurm",
    "tests/slurm_lab/test_lab": "scripts",
    "tests/benchmarks/test_fidelity": "ranks",
    "tests/benchmarks/test_witnesses": "defects",
    "tests/integration/test_ssh": "scripts",
    "tests/integration/test_installed_wheel": "scripts",
    "tests/integration/test_cpu_run": "scripts",
    "tests/integration/played_gpus/": "played",
    "tests/integration/": "ranks",
    "tests/nccl_rules/test_gangs": "ranks",
    "tests/suites/": "worker",
    "tests/worker/": "worker",
}

# Which goes first: the longest of the labs, of which it has 300 s to 30 s, so that none begins when others end.
LONGEST_FIRST = ("played", "slurm", "scripts", "ranks", "defects", "worker")

# Folders that stay together: each worker with a part of one would import what all of its forks have, for seconds.
TOGETHER = ("tests/plugin/",)

# Of tests without real ranks, beside those with them: a tenth of a core that both want.
NICENESS = 10


def group_of(node_id: str) -> str:
    """Which tests stay in one worker: those with real ranks, over Slurm or not, those of one folder or of one file."""
    found = [group for start, group in LANES.items() if node_id.startswith(start)]
    found += [folder for folder in TOGETHER if node_id.startswith(folder)]
    return found[0] if found else node_id.partition("::")[0]


class InGroups(LoadScopeScheduling):  # type: ignore[misc]
    """Gives each worker whole groups, in the order of collection.

    As xdist's own ``loadgroup``, which finds no groups under pytest 9: xdist 3.8.0 writes them into node ids, which
    stay as they are.
    """

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(specs: Sequence[Any]) -> None:
    """Have workers be forks of one process, and what they start too: importing torch for tests takes each seconds."""
    os.environ[SHARED] = address()
    for spec in specs:
        spec.python = shlex.join(command("tests.forks.script"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadScopeScheduling:
    """Replace xdist's choice."""
    config.option.loadscopereorder = False
    return InGroups(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the groups first that take longest."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: _turn(group_of(item.nodeid)))


def _turn(group: str) -> int:
    order = (*LONGEST_FIRST, *TOGETHER)
    return order.index(group) if group in order else len(order)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Lower a worker's priority once its tests with real ranks are behind it: others have verdicts to come to."""
    if hasattr(item.config, "workerinput") and group_of(item.nodeid) not in LANES.values():
        os.setpriority(os.PRIO_PROCESS, 0, NICENESS)
