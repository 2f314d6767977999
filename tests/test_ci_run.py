"""What .ci/run installs before the tests, run for real with a package manager that only notes what it is asked."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
REACHED = 3  # exit code of the first tool that runs after the installing: the script came that far
NEEDS_TOOLS = ("bash", "cat", "dirname", "grep", "ln", "mktemp", "nice", "rm", "timeout")
LAB = "slurm-wlm slurmctld slurmd munge"
SSH = "openssh-server openssh-client"


class Machine:
    """A directory of commands to be the whole PATH, and a checkout with .ci/run in it."""

    def __init__(self, path: Path) -> None:
        self.commands, self.checkout, self._asked = path / "bin", path / "checkout", path / "asked.txt"
        self.commands.mkdir()
        for name in NEEDS_TOOLS:
            found = shutil.which(name)
            assert found, name
            (self.commands / name).symlink_to(found)
        self.command("python3", f'echo "DDPSCALE_LAB=${{DDPSCALE_LAB-unset}}"; exit {REACHED}')
        (self.checkout / ".ci").mkdir(parents=True)
        for name in ("README.md", ".ci/run"):
            shutil.copy2(ROOT / name, self.checkout / name)

    def command(self, name: str, script: str, folder: Path | None = None) -> None:
        """Put a shell script on PATH, or in a folder."""
        path = (folder or self.commands) / name
        path.write_text(f"#!{shutil.which('bash')}\n{script}\n", encoding="utf-8")
        path.chmod(0o755)

    def with_apt(self, *, uid: int, exit_code: int = 0) -> None:
        """Give it a user id and an apt-get that notes its arguments."""
        self.command("id", f"echo {uid}")
        self.command("apt-get", f'echo "$@" >>"{self._asked}"; exit {exit_code}')

    def with_environment(self, failing: str) -> None:
        """Give it a python3 that works, and an environment of tools that say what they are; one of them fails."""
        self.command("python3", "exit 0")
        folder = self.checkout / ".venv" / "bin"
        folder.mkdir(parents=True)
        for name in ("pip", "pytest", "ruff", "mypy", "python"):
            self.command(name, f'echo "{name} $*"; exit {int(name == failing)}', folder)

    def run(self) -> subprocess.CompletedProcess[str]:
        """``.ci/run`` until it calls python3."""
        return subprocess.run(
            [str(self.commands / "bash"), ".ci/run"], cwd=self.checkout, env={"PATH": str(self.commands)},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    @property
    def updates(self) -> int:
        """How often apt-get was asked to read its lists of packages."""
        return self._lines.count("update -q")

    @property
    def asked(self) -> list[str]:
        """What apt-get was asked to install."""
        return [line.removeprefix("install -qy ") for line in self._lines if line.startswith("install")]

    @property
    def _lines(self) -> list[str]:
        return self._asked.read_text(encoding="utf-8").splitlines() if self._asked.exists() else []


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_what_tests_need_is_installed(machine: Machine) -> None:
    machine.with_apt(uid=0)
    result = machine.run()
    assert result.returncode == REACHED, result.stderr
    assert machine.asked == ["gcc libc6-dev", "shellcheck", LAB, "iproute2", SSH]
    assert machine.updates == 1


@pytest.mark.parametrize(
    ("there", "asked"),
    [
        (["cc"], ["shellcheck", LAB, "iproute2", SSH]),
        (["shellcheck", "slurmctld"], ["gcc libc6-dev", "iproute2", SSH]),
        (["cc", "shellcheck", "slurmctld", "ip", "sshd"], []),
    ],
)
def test_what_is_there_is_not_installed_again(machine: Machine, there: list[str], asked: list[str]) -> None:
    machine.with_apt(uid=0)
    for name in there:
        machine.command(name, "exit 0")
    result = machine.run()
    assert result.returncode == REACHED, result.stderr
    assert machine.asked == asked
    assert machine.updates == bool(asked)


def test_an_installation_that_fails_is_told_and_stops_nothing(machine: Machine) -> None:
    machine.with_apt(uid=0, exit_code=100)
    result = machine.run()
    assert result.returncode == REACHED, result.stderr
    for name in ("cc", "shellcheck", "slurmctld", "ip", "sshd"):
        assert f"{name} is missing and could not be installed: tests that need it cannot run" in result.stderr
    assert machine.updates == 1


@pytest.mark.parametrize("exit_code", [0, 100])
def test_the_labs_tests_must_run_where_it_can_be_installed(machine: Machine, exit_code: int) -> None:
    machine.with_apt(uid=0, exit_code=exit_code)
    assert "DDPSCALE_LAB=required" in machine.run().stdout.splitlines()


def test_without_the_right_to_install_nothing_is_tried(machine: Machine) -> None:
    machine.with_apt(uid=1000)
    result = machine.run()
    assert result.returncode == REACHED, result.stderr
    assert machine.asked == []
    assert "shellcheck is missing" in result.stderr
    assert "DDPSCALE_LAB=unset" in result.stdout.splitlines()


def test_another_package_manager_stops_nothing(machine: Machine) -> None:
    machine.command("id", "echo 0")
    result = machine.run()
    assert result.returncode == REACHED, result.stderr
    assert "shellcheck is missing" in result.stderr
    assert "DDPSCALE_LAB=unset" in result.stdout.splitlines()


@pytest.mark.parametrize("failing", ["", "pytest", "ruff", "mypy", "python"])
def test_all_that_checks_is_run_and_told_and_each_can_fail_it(machine: Machine, failing: str) -> None:
    machine.with_apt(uid=0)
    machine.with_environment(failing)
    result = machine.run()
    assert result.returncode == int(bool(failing)), result.stderr
    lines = result.stdout.splitlines()
    assert {"pip install -e .[test]", "pytest tests -n 4", "pytest tests -m lab -n 4", "ruff check ."} < set(lines)
    assert "pytest tests/session tests/plugin tests/launch -n 2" in lines
    assert ("mypy " in lines) == (failing != "ruff")
    built = any(line.startswith("python -m mkdocs build --strict") for line in lines)
    assert built == (failing in ("", "python"))
    assert any(line.startswith("pytest --gpu-sku=cpu") for line in lines) == (not failing)


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="needs shellcheck: apt-get install shellcheck")
def test_it_is_clean_to_shellcheck() -> None:
    command = ["shellcheck", str(ROOT / ".ci" / "run")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stdout
