"""The launcher of a site's own in docs/how-to/launcher.md does what the page says."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from pytest_ddpscale.launch import launcher as launcher_module
from pytest_ddpscale.launch.launcher import ENTRY_POINTS, Cluster, Launch, launcher_for
from tests.builders.launches import settings

EXAMPLE = Path(__file__).parents[2] / "docs/examples/pbs"


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """The environment within a job of two nodes of four GPUs, where the example is installed."""
    known = dict(launcher_module.launchers())
    monkeypatch.syspath_prepend(EXAMPLE)
    monkeypatch.delitem(sys.modules, "site_pbs", raising=False)  # so that it registers itself again
    project = (EXAMPLE / "pyproject.toml").read_text(encoding="utf-8")
    assert f'[project.entry-points."{ENTRY_POINTS}"]\npbs = "site_pbs:PbsLauncher"\n' in project
    entry = EntryPoint("pbs", "site_pbs:PbsLauncher", ENTRY_POINTS)
    monkeypatch.setattr(launcher_module, "entry_points", lambda group: [entry])
    (tmp_path / "nodes").write_text("gpu07.site\n" * 4 + "gpu11.site\n" * 4)
    yield {"PBS_NODEFILE": str(tmp_path / "nodes")}
    launcher_module._LAUNCHERS.clear()
    launcher_module._LAUNCHERS.update(known)


def test_within_a_job_its_nodes_are_used_and_outside_this_machine(job: dict[str, str]) -> None:
    found = launcher_for(settings(), job)
    cluster = found.cluster(plans_only=True)
    assert cluster == Cluster(2, ("gpu07.site", "gpu11.site"), "pbs", is_elsewhere=True, slots=4)
    assert launcher_for(settings(), {}).name == "torchrun"
    assert launcher_for(settings(hosts="n1"), job).name == "ssh"


def test_ssh_starts_an_agent_on_each(job: dict[str, str]) -> None:
    found = launcher_for(settings(launcher="pbs", remote_python="/opt/python3"), job)
    first, second = found.processes(Launch(found, {}, ("gpu07.site", "gpu11.site"), nodes=2))
    assert first.command[0] == "ssh"
    assert (second.host, second.command[-2]) == ("gpu11.site", "gpu11.site")
    agent = ["exec", "/opt/python3", "-m", "pytest_ddpscale.node", "--node=1", "--host=gpu11.site"]
    assert shlex.split(second.command[-1]) == agent
