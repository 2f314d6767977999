"""Which launcher is meant, and those that a site registers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.launch import launcher as launcher_module
from pytest_ddpscale.launch.launcher import ENTRY_POINTS, Cluster, Launch, launcher_for, launchers
from tests.builders.launches import settings

SITES = """
from pytest_ddpscale.launch.launcher import AgentProcess, Cluster, Launcher, launcher

@launcher("moon")
class MoonLauncher(Launcher):
    calls_itself = "the moon"

    @classmethod
    def is_meant(cls, settings, environ):
        return "MOON_HOSTS" in environ

    def cluster(self, *, plans_only):
        hosts = tuple(self.environ["MOON_HOSTS"].split())
        return Cluster(len(hosts), hosts, self.name, is_elsewhere=True)

    def processes(self, launch):
        return [AgentProcess(["moonrun", *launch.agent("--node-from=MOON_RANK")])]
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder whose module site_moon is an entry point."""
    known = dict(launcher_module._LAUNCHERS)
    (tmp_path / "site_moon.py").write_text(SITES)
    monkeypatch.syspath_prepend(tmp_path)
    entry = EntryPoint("moon", "site_moon:MoonLauncher", ENTRY_POINTS)
    monkeypatch.setattr(launcher_module, "entry_points", lambda group: [entry] if group == ENTRY_POINTS else [])
    yield tmp_path
    launcher_module._LAUNCHERS.clear()
    launcher_module._LAUNCHERS.update(known)


def test_all_that_are_there_are_known_by_name() -> None:
    assert list(launchers()) == ["torchrun", "exec", "ssh", "slurm"]
    assert all(name == found.name for name, found in launchers().items())


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({}, "torchrun"),
        ({"hosts": "n1"}, "ssh"),
        ({"hosts": "@hosts"}, "ssh"),
        ({"hosts": "n1", "exec": "docker exec -i {host}"}, "exec"),
        ({"nodes": "2"}, "slurm"),
        ({"slurm_args": "-p gpu"}, "slurm"),
        ({"hosts": "n1,n2", "nodes": "2"}, "ssh"),
        ({"launcher": "slurm"}, "slurm"),
    ],
)
def test_which_one_is_meant_follows_from_the_options(options: dict[str, str], name: str) -> None:
    assert launcher_for(settings(**options), {}).name == name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"launcher": "torchrun", "slurm_args": "-pgpu"},
            "found torchrun together with --ddp-slurm-args; expected slurm with",
        ),
        ({"launcher": "ssh", "exec": "x {host}"}, "found ssh together with --ddp-exec; expected exec with it"),
        ({"launcher": "slurm", "hosts": "n1"}, "found slurm together with --ddp-hosts; expected"),
        ({"hosts": "n1", "slurm_args": "-pgpu"}, "found ssh together with --ddp-slurm-args; expected slurm with it"),
        ({"launcher": "Slurm"}, "found 'Slurm'; expected one of auto, torchrun, exec, ssh, slurm"),
    ],
)
def test_options_of_another_one_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=f"^--ddp-launcher: {message}"):
        launcher_for(settings(**options), {})


def test_a_sites_own_is_asked_first_and_found_by_its_name(site: Path) -> None:
    environ = {"MOON_HOSTS": "m1 m2"}
    for asked in (settings(), settings(launcher="moon")):
        found = launcher_for(asked, environ)
        assert found.cluster(plans_only=False) == Cluster(2, ("m1", "m2"), "moon", is_elsewhere=True)
        [process] = found.processes(Launch(found, {}, ("m1", "m2")))
        assert process.command[0] == "moonrun"
        assert process.command[-1] == "--node-from=MOON_RANK"
    assert launcher_for(settings(), {}).name == "torchrun"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import nowhere_at_all", r"cannot be loaded \(ModuleNotFoundError: No module named 'nowhere_at_all'\)"),
        ("MoonLauncher = 1", 'registers no launcher with its own name; expected @launcher\\("moon"\\)'),
    ],
)
def test_one_that_is_broken_is_told(site: Path, text: str, message: str) -> None:
    (site / "site_moon.py").write_text(text)
    sys.modules.pop("site_moon", None)
    with pytest.raises(OptionError, match=f"^entry point moon of {ENTRY_POINTS}: {message}"):
        launcher_for(settings(), {})
    sys.modules.pop("site_moon", None)
