"""The suite in several pytest-xdist workers (``-n 4``): who shares a worker, and who has the machine to themselves.

Tests that start real ranks go first, each lane to a worker of its own; the rest go with lower priority: folders that
prepare much, the longest first, and then by file.
A test marked ``timing`` runs while no other does: it would take a neighbour's work for its own ranks' slowness.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling

# Tests that start real ranks or agents, in lanes of which none takes much longer than the others: see docs/testing.md.
# Those over Slurm wait for much of their time, so that others go beside them. The first prefix counts.
# Each lane has a fork server of its own, and one cluster at most.
LANES = {
    "tests/integration/test_slurm_docs": "scripts",
    "tests/integration/test_slurm_scripts": "scripts",
    "tests/integration/test_slurm": "slurm",
    "tests/slurm_lab/test_lab": "scripts",
    "tests/integration/test_ssh": "scripts",
    "tests/integration/test_installed_wheel": "scripts",
    "tests/integration/test_cpu_run": "scripts",
    "tests/integration/": "ranks",
    "tests/nccl_rules/test_gangs": "ranks",
    "tests/suites/": "ranks",
    "tests/worker/": "ranks",
}

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
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadScopeScheduling:
    """Replace xdist's choice."""
    config.option.loadscopereorder = False
    return InGroups(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the groups first that take longest, and of those what runs alone, which later would wait for neighbours."""
    if not hasattr(config, "workerinput"):
        return
    timed = {_file_of(item) for item in items if item.get_closest_marker("timing")}
    items.sort(key=lambda item: (_turn(group_of(item.nodeid)), _file_of(item) not in timed))


def _turn(group: str) -> int:
    return 0 if group in LANES.values() else 1 if group in TOGETHER else 2


def _file_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Run a test that measures time alone, others beside each other."""
    run_id = getattr(item.config, "workerinput", {}).get("testrunuid")
    if run_id is None:
        return (yield)
    if group_of(item.nodeid) not in LANES.values():
        # For good: a worker's tests with real ranks are behind it. Those of other workers have verdicts to come to.
        os.setpriority(os.PRIO_PROCESS, 0, NICENESS)
    with _place(run_id, alone=item.get_closest_marker("timing") is not None):
        return (yield)


@contextmanager
def _place(run_id: str, *, alone: bool) -> Iterator[None]:
    """A place among the tests that run now: the only one, or one of several.

    Who waits to be alone holds the gate, so that nobody else comes in meanwhile.
    """
    gate, room = (Path(tempfile.gettempdir(), f"ddpscale-tests-{run_id}.{name}") for name in ("gate", "room"))
    with _locked(room) as inside:
        with _locked(gate) as waiting:
            fcntl.flock(waiting, fcntl.LOCK_EX)
            fcntl.flock(inside, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield


@contextmanager
def _locked(path: Path) -> Iterator[int]:
    """A file to be locked; closing it gives the lock back."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
