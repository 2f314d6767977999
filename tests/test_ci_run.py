"""What .ci/run installs before the tests, run for real with a package manager that only notes what it is asked."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
REACHED = 3  # exit code of the first tool that runs after the installing: the script came that far
NEEDS_TOOLS = ("bash", "dirname", "grep")


class Machine:
    """A directory of commands to be the whole PATH, and a checkout with .ci/run in it."""

    def __init__(self, path: Path) -> None:
        self.commands, self.checkout, self._asked = path / "bin", path / "checkout", path / "asked.txt"
        self.commands.mkdir()
        for name in NEEDS_TOOLS:
            found = shutil.which(name)
            assert found, name
            (self.commands / name).symlink_to(found)
        self.command("python3", f"exit {REACHED}")
        (self.checkout / ".ci").mkdir(parents=True)
        for name in ("README.md", ".ci/run"):
            shutil.copy2(ROOT / name, self.checkout / name)

    def command(self, name: str, script: str) -> None:
        """Put a shell script on PATH."""
        path = self.commands / name
        path.write_text(f"#!{shutil.which('bash')}\n{script}\n", encoding="utf-8")
        path.chmod(0o755)

    def with_apt(self, *, uid: int, exit_code: int = 0) -> None:
        """Give it a user id and an apt-get that notes its arguments."""
        self.command("id", f"echo {uid}")
        self.command("apt-get", f'echo "$@" >>"{self._asked}"; exit {exit_code}')

    def run(self) -> subprocess.CompletedProcess[str]:
        """``.ci/run`` until it calls python3."""
        return subprocess.run(
            [str(self.commands / "bash"), ".ci/run"], cwd=self.checkout, env={"PATH": str(self.commands)},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    @property
    def asked(self) -> list[str]:
        """What apt-get was asked to install."""
        lines = self._asked.read_text(encoding="utf-8").splitlines() if self._asked.exists() else []
        return [line.removeprefix("install -qy ") for line in lines if line.startswith("install")]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_what_tests_need_is_installed(machine: Machine) -> None:
    machine.with_apt(uid=0)
    result = machine.run()
    assert result.returncode == REACHED, result.stderr
    assert machine.asked == ["gcc libc6-dev", "shellcheck"]


@pytest.mark.parametrize(("there", "asked"), [("cc", ["shellcheck"]), ("shellcheck", ["gcc libc6-dev"])])
def test_what_is_there_is_not_installed_again(machine: Machine, there: str, asked: list[str]) -> None:
    machine.with_apt(uid=0)
    machine.command(there, "exit 0")
    result = machine.run()
    assert result.returncode == REACHED, result.stderr
    assert machine.asked == asked


def test_an_installation_that_fails_is_told_and_stops_nothing(machine: Machine) -> None:
    machine.with_apt(uid=0, exit_code=100)
    result = machine.run()
    assert result.returncode == REACHED, result.stderr
    for name in ("cc", "shellcheck"):
        assert f"{name} is missing and could not be installed: tests that need it are skipped" in result.stderr


def test_without_the_right_to_install_nothing_is_tried(machine: Machine) -> None:
    machine.with_apt(uid=1000)
    result = machine.run()
    assert result.returncode == REACHED, result.stderr
    assert machine.asked == []
    assert "shellcheck is missing" in result.stderr


def test_another_package_manager_stops_nothing(machine: Machine) -> None:
    machine.command("id", "echo 0")
    result = machine.run()
    assert result.returncode == REACHED, result.stderr
    assert "shellcheck is missing" in result.stderr


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="needs shellcheck: apt-get install shellcheck")
def test_it_is_clean_to_shellcheck() -> None:
    command = ["shellcheck", str(ROOT / ".ci" / "run")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stdout
