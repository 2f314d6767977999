"""A machine without loopback is refused before ranks start: seen by the real command and the real agent."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_ddpscale.errors import SkuError
from pytest_ddpscale.launch import launcher
from pytest_ddpscale.launch.launcher import Cluster, TorchrunLauncher
from pytest_ddpscale.node.addresses import loopback_problem
from pytest_ddpscale.node.protocol import Report, decode_news
from tests.builders.launches import settings
from tests.rows import rows

# A network of its own, whose loopback is down until somebody brings it up.
UNSHARE = ["unshare", "--net", *([] if os.geteuid() == 0 else ["--map-root-user"])]


@pytest.fixture(scope="module")
def apart() -> list[str]:
    """What runs a command without loopback."""
    try:
        tried = subprocess.run([*UNSHARE, "true"], capture_output=True, text=True, timeout=60, check=False)
    except FileNotFoundError:
        pytest.skip("unshare is not on PATH: install util-linux")
    if tried.returncode:
        pytest.skip(f"no network namespace can be made here ({tried.stderr.strip()}): run the tests as root")
    return UNSHARE


def test_the_command_names_it_in_one_line_and_leaves_nothing(apart: list[str], tmp_path: Path) -> None:
    command = [*apart, sys.executable, "-m", "pytest", "--gpu-sku=cpu", "-p", "no:cacheprovider"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == pytest.ExitCode.USAGE_ERROR, result.stdout
    [line] = [line for line in result.stderr.splitlines() if line]
    assert line.startswith("ERROR: loopback on ")
    assert "127.0.0.1 cannot be reached (Network is unreachable)" in line
    assert "`ip link set lo up`" in line
    assert list(tmp_path.iterdir()) == []


def test_an_agent_says_so_when_it_comes_up(apart: list[str], tmp_path: Path) -> None:
    command = [*apart, sys.executable, "-m", "pytest_ddpscale.node"]
    result = subprocess.run(command, cwd=tmp_path, input=b"", stdout=subprocess.PIPE, timeout=60, check=False)
    up = decode_news(result.stdout.splitlines()[0])
    assert isinstance(up, Report)
    assert up.loopback_problem == "Network is unreachable"


def test_here_it_is_up_and_no_name_is_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("gethostbyname", "gethostname", "getfqdn"):
        monkeypatch.delattr(f"socket.{name}")
    assert loopback_problem() == ""


@rows(("error", "words"), [
    (PermissionError(1, "Operation not permitted"), "Operation not permitted"),  # a sandbox
    (OSError(99, "Cannot assign requested address"), "Cannot assign requested address"),  # lo has ::1 alone
    (TimeoutError("timed out"), "timed out"),  # a firewall drops packets
])  # fmt: skip
def test_whatever_else_keeps_ranks_apart_is_said_in_the_systems_words(error: OSError, words: str) -> None:
    def fails(*_: object) -> None:
        raise error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("socket.create_connection", fails)
        assert loopback_problem() == words


def test_who_only_plans_needs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "loopback_problem", lambda: "Network is unreachable")
    assert TorchrunLauncher(settings(), {}).cluster(plans_only=True) == Cluster()
    with pytest.raises(SkuError, match=r"^loopback on .*a firewall or a sandbox blocks connections\.$"):
        TorchrunLauncher(settings(), {}).cluster(plans_only=False)
