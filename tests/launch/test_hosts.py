"""Hosts as users name them, and what is started for each of them."""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import sys
import time
from pathlib import Path

import pytest

from pytest_ddpscale import __version__
from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.launch.hosts import read_hostfile
from pytest_ddpscale.launch.launcher import Cluster, ExecLauncher, Launch, PerHostLauncher, SshLauncher
from pytest_ddpscale.report.words.reasons import say
from tests.builders.launches import settings
from tests.tables import assert_rows, each_block, is_so

AGENT = [sys.executable, "-m", "pytest_ddpscale.node"]


TABLE = Path(__file__).with_name("hosts.txt")


@each_block(TABLE)
def test_hosts_are_as_users_name_them(block: str, tmp_path: Path) -> None:
    """A row of hosts.txt: --ddp-hosts, or @ and what its file says; other options; hosts with slots, or a refusal."""
    path = tmp_path / "hosts"

    def why_wrong(row: str) -> str:
        text, options, expected = (part.strip() for part in row.split("|"))
        path.write_text(text[1:].replace("\\n", "\n"), encoding="utf-8")
        asked = {"hosts": f"@{path}" if text.startswith("@") else text} if text else {}
        asked |= dict(option.split("=") for option in options.split())
        try:
            cluster = SshLauncher(settings(**asked), {}).cluster(plans_only=True)
            said = " ".join(cluster.hosts) + (f" with {cluster.slots}" if cluster.slots else "")
        except OptionError as error:
            said = f"refused {error}"
        return "" if is_so(expected, said) else said

    assert_rows(block, why_wrong)


def test_a_host_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"^--ddp-hosts: .*none cannot be read \(No such file or directory\)"):
        read_hostfile(tmp_path / "none")


@pytest.mark.skipif(shutil.which("ssh") is None, reason="needs ssh: apt-get install openssh-client")
def test_the_cluster_is_the_hosts_that_are_named(tmp_path: Path) -> None:
    ssh = SshLauncher(settings(hosts="n[1-3]"), {})
    assert ssh.cluster(plans_only=False) == Cluster(3, ("n1", "n2", "n3"), "ssh", is_elsewhere=True)
    assert SshLauncher(settings(hosts="n[1-3]", nodes="2"), {}).cluster(plans_only=True).hosts == ("n1", "n2")
    here = SshLauncher(settings(hosts=f"n1,{socket.gethostname()}.cluster"), {})
    assert not here.cluster(plans_only=False).is_elsewhere
    (tmp_path / "hosts").write_text("n1:8\nn2:8\n")
    from_file = SshLauncher(settings(hosts=f"@{tmp_path / 'hosts'}"), {})
    assert from_file.cluster(plans_only=False) == Cluster(2, ("n1", "n2"), "ssh", is_elsewhere=True, slots=8)


def test_without_ssh_or_the_command_it_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OptionError, match=r"^--ddp-launcher=ssh: ssh is not on PATH; expected a program"):
        SshLauncher(settings(hosts="n1"), {}).cluster(plans_only=False)
    with pytest.raises(OptionError, match=r"^--ddp-launcher=exec: kubectl is not on PATH"):
        ExecLauncher(settings(hosts="n1", exec="kubectl exec -i {host} --"), {}).cluster(plans_only=False)
    SshLauncher(settings(hosts="n1"), {}).cluster(plans_only=True)


def commands(launcher: PerHostLauncher, *hosts: str) -> list[tuple[str, list[str]]]:
    return [(one.host, one.command) for one in launcher.processes(Launch(launcher, {}, hosts))]


def test_ssh_starts_an_agent_on_each_host_by_one_word_for_its_shell() -> None:
    first, second = commands(SshLauncher(settings(hosts="n1,ops@n2"), {}), "n1", "n2")
    host, command = second
    assert (first[0], host) == ("n1", "n2")
    assert command[:4] == ["ssh", "-T", "-x", "-a"]
    assert command[4:-3:2] == ["-o"] * 5
    assert {"BatchMode=yes", "ConnectTimeout=15", "ControlPath=none"} <= set(command)
    assert command[-3:-1] == ["--", "ops@n2"]
    assert shlex.split(command[-1]) == ["exec", *AGENT, "--node=1", "--host=n2"]


def test_the_python_of_the_hosts_may_be_another_one() -> None:
    [(_, command)] = commands(SshLauncher(settings(hosts="n1", remote_python="/opt/my python/bin/python3"), {}), "n1")
    assert shlex.split(command[-1])[1] == "/opt/my python/bin/python3"


def test_a_command_of_the_users_is_started_for_each_host_without_a_shell() -> None:
    command = "kubectl exec -n 'my jobs' -i pod/{host} -c {host}-c --"
    launcher = ExecLauncher(settings(hosts="w-0", exec=command, remote_python="p"), {})
    assert commands(launcher, "w-0") == [
        ("w-0", ["kubectl", "exec", "-n", "my jobs", "-i", "pod/w-0", "-c", "w-0-c", "--", "p", *AGENT[1:], "--node=0",
                 "--host=w-0"]),
    ]  # fmt: skip


@pytest.mark.parametrize("command", ["", "kubectl exec -i w-0 --"])
def test_a_command_that_names_no_host_is_refused(command: str) -> None:
    with pytest.raises(OptionError, match=r"^--ddp-exec: found no(thing| \{host\} in it); expected a command such as"):
        ExecLauncher(settings(hosts="n1", **({"exec": command} if command else {})), {}).cluster(plans_only=True)


@pytest.mark.parametrize(
    ("code", "lines", "expected"),
    [
        (255, ["ssh: connect to host n2 port 22: Connection refused"],
         "n2 cannot be reached by ssh: connect to host n2 port 22: Connection refused (try `ssh n2 true`)"),
        (255, ["@@@", "Host key verification failed.", ""],
         "n2 cannot be reached by ssh: Host key verification failed (try `ssh n2 true`)"),
        (255, [], "n2 cannot be reached by ssh: ssh gave no reason (try `ssh n2 true`)"),
        (1, ["/usr/bin/python3: No module named pytest_ddpscale"],
         f"n2: pytest-ddpscale is not installed for {sys.executable} there: install version {__version__}, or name "
         "another Python with --ddp-remote-python"),
        (1, ["/usr/bin/python3: Error while finding module (ModuleNotFoundError: No module named 'pytest_ddpscale')"],
         f"n2: pytest-ddpscale is not installed for {sys.executable} there: install version {__version__}, or name "
         "another Python with --ddp-remote-python"),
        (127, ["sh: 1: exec: /x/python: not found"],
         f"n2: {sys.executable} cannot be started there: name its Python with --ddp-remote-python"),
        (3, ["what", ""], "n2: ssh ended with exit code 3; its last message: what"),
    ],
)  # fmt: skip
def test_why_an_agent_did_not_come_up_is_one_sentence(code: int, lines: list[str], expected: str) -> None:
    assert say(SshLauncher(settings(hosts="n2"), {}).why_not_up("n2", code, lines)) == expected


@pytest.mark.parametrize("kind", ["a pipe", "a character device", "a directory"])
def test_a_host_file_that_is_a_pipe_or_a_device_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    path = Path("/dev/zero") if kind == "a character device" else tmp_path / "hosts"
    if kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a directory":
        path.mkdir()
    what = kind if kind == "a directory" else "a pipe, socket or device"
    expected = rf"^--ddp-hosts: {path} cannot be read \({what}, not a regular file\); expected a file with one host"
    began_s = time.monotonic()
    with pytest.raises(OptionError, match=expected):
        read_hostfile(path)
    assert time.monotonic() - began_s < 2.0
