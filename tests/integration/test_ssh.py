"""Runs over hosts that only ssh, or a command of the user's, reaches: they share no file system with anybody."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pytest_ddpscale
from pytest_ddpscale import __version__
from pytest_ddpscale.run.evidence import read_evidence
from pytest_ddpscale.run.run_directory import RunDirectory
from tests.builders.measurements import measurements_in
from tests.integration.lab_runs import QUICK, ROOT, thresholds_for
from tests.integration.sites import HARDLY_WARM_UP
from tests.slurm_lab.fixtures import require_lab, skip_or_fail
from tests.slurm_lab.polling import wait_until
from tests.ssh_lab.lab import NOBODY, SshLab, why_not

GONE_S = 120


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshLab]:
    require_lab()
    skip_or_fail(why_not())
    with SshLab(tmp_path_factory.mktemp("ssh-lab")) as lab:
        yield lab


def ended(lab: SshLab, folder: Path, **options: str) -> str:
    """How a tiny study over hosts ended."""
    command = [sys.executable, "-m", "tests.ssh_lab.start", str(folder / "run")]
    done = lab.run([*command, *(f"{name}={value}" for name, value in options.items())], ROOT)
    wait_until(lambda: not lab.processes(), GONE_S, "agents to end", seen=lambda: f"{lab.processes()}")
    return done.stdout.strip()


def accepted(lab: SshLab, folder: Path, nodes: int, hosts: str, *more: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("pytest")), "--gpu-sku=cpu", "-p", "no:cacheprovider"]
    command += [*HARDLY_WARM_UP, f"--thresholds={thresholds_for(nodes, folder)}", f"--ddp-hosts={hosts}", *QUICK]
    return lab.run([*command, "--ddp-rounds=8", "--ddp-run-dir=run", *more, str(ROOT / "acceptance")], folder)


@pytest.mark.lab
def test_hosts_are_measured_and_judged_and_nothing_is_left_on_them(hosts: SshLab, tmp_path: Path) -> None:
    # A busy machine imports torch for a minute.
    done = accepted(hosts, tmp_path, 2, "n[1-2]", "--ddp-block=0.1s", "--ddp-inactivity-limit=200s")
    run = RunDirectory(tmp_path / "run")
    measured = measurements_in(run)
    assert {one.host for one in measured} == {"n1", "n2"}, done.stdout
    assert {one.arm for one in measured} >= {"alone", "ddp@2"}
    assert read_evidence(run).hosts == ["n1", "n2"]
    assert "[ERROR]" not in done.stdout
    wait_until(lambda: not hosts.processes(), GONE_S, "agents to end")
    left = hosts.run(["sh", "-c", "for n in n1 n2; do ssh $n ls /tmp /dev/shm; done"], tmp_path).stdout
    assert "ddpscale" not in left
    assert str(tmp_path.name) not in left


@pytest.mark.lab
def test_a_host_that_refuses_is_the_error_and_the_exit_code_says_so(hosts: SshLab, tmp_path: Path) -> None:
    done = accepted(hosts, tmp_path, 3, "n1,head")
    sentence = "head cannot be reached by ssh: connect to host head port 22: Connection refused (try `ssh head true`)"
    assert sentence in done.stdout
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    wait_until(lambda: not hosts.processes(), GONE_S, "agents to end")


@pytest.mark.lab
@pytest.mark.parametrize(
    ("host", "sentence"),
    [
        ("n7", "n7 cannot be reached by ssh: Could not resolve hostname n7: "),
        (NOBODY, f"{NOBODY} cannot be reached by ssh: connect to host {NOBODY} port 22: "),
    ],
)
def test_a_host_that_is_not_there_is_named(hosts: SshLab, tmp_path: Path, host: str, sentence: str) -> None:
    assert ended(hosts, tmp_path, hosts=f"n1,{host}").startswith(f"error: {sentence}")


@pytest.mark.lab
def test_a_host_with_another_key_is_not_talked_to(hosts: SshLab, tmp_path: Path) -> None:
    known = hosts.known_hosts
    others = hosts.directory / "other_key"
    hosts.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(others)], tmp_path)
    [line] = [one for one in known.splitlines() if one.startswith("n2,")]
    names, _, _ = line.partition(" ")
    hosts.write("known_hosts", known.replace(line, f"{names} {others.with_suffix('.pub').read_text().strip()}"))
    try:
        expected = "error: n2 cannot be reached by ssh: Host key verification failed (try `ssh n2 true`)"
        assert ended(hosts, tmp_path, hosts="n1,n2") == expected
    finally:
        hosts.write("known_hosts", known)


@pytest.mark.lab
def test_a_python_without_the_package_is_told(hosts: SshLab, tmp_path: Path) -> None:
    python = f"{sys.base_prefix}/bin/python3"
    found = ended(hosts, tmp_path, hosts="n1,n2", remote_python=python)
    assert found.startswith(
        f"error: n[1-2]: pytest-ddpscale is not installed for {python} there: install version {__version__}, or name"
    )
    assert ended(hosts, tmp_path / "2", hosts="n1", remote_python="/no/python").startswith(
        "error: n1: /no/python cannot be started there: name its Python with --ddp-remote-python"
    )


@pytest.mark.lab
def test_another_version_is_told(hosts: SshLab, tmp_path: Path) -> None:
    module = Path(pytest_ddpscale.__file__)
    with hosts.other_file("n2", module, module.read_text(encoding="utf-8").replace(__version__, "0.0.9")):
        found = ended(hosts, tmp_path, hosts="n1,n2")
    assert (
        found == f"error: n2 runs pytest-ddpscale 0.0.9, but this session runs {__version__}: install the same version"
    )


@pytest.mark.lab
def test_any_command_that_reaches_a_host_will_do(hosts: SshLab, tmp_path: Path) -> None:
    found = ended(hosts, tmp_path, hosts="n2", exec=f"{hosts.entering()} {{host}}")
    assert found == "rounds:"
    measured = measurements_in(RunDirectory(tmp_path / "run"))
    assert {one.host for one in measured} == {"n2"}
