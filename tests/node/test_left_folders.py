"""Folders of an agent that was killed are removed by who ends its gang, or the next agent on its node."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_ddpscale.node.processes import stop_gang
from pytest_ddpscale.node.protocol import Start, Stop, encode_order
from pytest_ddpscale.run.rank_folder import STATUS_VARIABLE
from tests.builders.launches import task

# In the place of torchrun: runs until it is ended.
TORCHRUN = f"""
import os, sys, time
from pathlib import Path
Path(os.environ["STARTED"]).write_text(os.environ["{STATUS_VARIABLE}"])
time.sleep(120)
"""
LIMIT_S = 30.0
Agent = Callable[[str], "tuple[subprocess.Popen[bytes], Path]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Agent]:
    """An agent whose torchrun runs, and the folder of its ranks."""
    run = tmp_path / "site/torch/distributed/run.py"
    run.parent.mkdir(parents=True)
    (run.parent.parent / "__init__.py").touch()
    run.write_text(TORCHRUN, encoding="utf-8")
    (tmp_path / "tmp").mkdir()
    paths = {"PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), *filter(None, sys.path)])}
    agents: list[subprocess.Popen[bytes]] = []

    def begin(name: str) -> tuple[subprocess.Popen[bytes], Path]:
        started = tmp_path / name
        environment = {**os.environ, **paths, "TMPDIR": str(tmp_path / "tmp"), "STARTED": str(started)}
        command = [sys.executable, "-m", "pytest_ddpscale.node", "--node=0", "--host=n1"]
        agent = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        agents.append(agent)
        assert agent.stdin is not None
        agent.stdin.write(encode_order(task()) + encode_order(Start()))
        agent.stdin.flush()
        ends_s = time.monotonic() + LIMIT_S
        while not (started.exists() and started.read_text()) and time.monotonic() < ends_s:
            time.sleep(0.05)
        return agent, Path(started.read_text())

    yield begin
    for agent in agents:
        agent.kill()
        agent.communicate()


def logs(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "tmp").glob("ddpscale-*"))


def test_who_ends_a_gang_on_this_machine_removes_them(start: Agent, tmp_path: Path) -> None:
    killed, left = start("killed")
    _, kept = start("living")
    killed.kill()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
        stop_gang([killed], "of another name", 5.0)
    assert (left.exists(), kept.exists(), len(logs(tmp_path))) == (False, True, 1)


def test_the_next_agent_removes_what_no_living_one_owns(start: Agent, tmp_path: Path) -> None:
    killed, left = start("killed")
    living, kept = start("living")
    assert left.parent == kept.parent == Path("/dev/shm" if Path("/dev/shm").is_dir() else tempfile.gettempdir())
    killed.kill()
    killed.wait()
    assert left.is_dir(), "nobody was left to remove it"
    assert len(logs(tmp_path)) == 2
    last, _ = start("last")
    assert not left.exists()
    assert kept.is_dir(), "its agent lives"
    assert len(logs(tmp_path)) == 2, "of the two that live"
    for agent in (living, last):
        agent.communicate(encode_order(Stop()), timeout=LIMIT_S)
    assert not kept.exists()
    assert logs(tmp_path) == []
