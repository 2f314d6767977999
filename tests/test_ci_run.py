"""What .ci/run installs and checks, run for real with tools that only say what they are asked."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NEEDS_TOOLS = ("bash", "cat", "dirname", "grep", "ln", "mktemp", "nice", "rm", "timeout")


class Machine:
    """A directory of commands to be the whole PATH, and a checkout with .ci/run and an environment of tools in it."""

    def __init__(self, path: Path) -> None:
        self._commands, self._checkout = path / "bin", path / "checkout"
        self._tools = self._checkout / ".venv" / "bin"
        for folder in (self._commands, self._checkout / ".ci", self._tools):
            folder.mkdir(parents=True)
        for name in NEEDS_TOOLS:
            (self._commands / name).symlink_to(str(shutil.which(name)))
        for name in ("README.md", ".ci/run"):
            shutil.copy2(ROOT / name, self._checkout / name)
        self._write(self._commands / "srun", "exit 1")
        self._write(self._commands / "python3", 'echo "DDPSCALE_LAB=${DDPSCALE_LAB-unset}"')

    def with_apt(self, *, uid: int, exit_code: int = 0) -> None:
        """Give it a user id and an apt-get."""
        self._write(self._commands / "id", f"echo {uid}")
        self._write(self._commands / "apt-get", f'echo "apt-get $@"; exit {exit_code}')

    def run(self, failing: str = "", failures: int = 99) -> subprocess.CompletedProcess[str]:
        """``.ci/run`` with tools, of which a command that starts like this one fails so many times."""
        for name in ("pip", "pytest", "ruff", "mypy", "python"):
            fails = f'[[ "{name} $*" == "{failing or "none"}"* ]]'
            count = f'echo >> "{self._checkout}/failed"; (( $(grep -c "" "{self._checkout}/failed") > {failures} ))'
            told = f'echo "{name} $*"; ! type srun >/dev/null || echo "with Slurm: {name} $*"'
            self._write(self._tools / name, f"{told}; if {fails}; then {count}; fi")
        return subprocess.run(
            [str(self._commands / "bash"), ".ci/run"], cwd=self._checkout, env={"PATH": str(self._commands)},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    def _write(self, path: Path, script: str) -> None:
        path.write_text(f"#!{shutil.which('bash')}\n{script}\n", encoding="utf-8")
        path.chmod(0o755)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize("exit_code", [0, 100])
def test_what_tests_need_is_installed_and_its_tests_must_run(machine: Machine, exit_code: int) -> None:
    machine.with_apt(uid=0, exit_code=exit_code)
    result = machine.run()
    assert result.returncode == 0, result.stderr
    assert [line for line in result.stdout.splitlines() if line.startswith("apt-get")] == [
        "apt-get update -q", "apt-get install -qy gcc libc6-dev", "apt-get install -qy shellcheck",
        "apt-get install -qy slurm-wlm slurmctld slurmd munge", "apt-get install -qy iproute2",
        "apt-get install -qy nftables", "apt-get install -qy openssh-server openssh-client",
    ]  # fmt: skip
    assert ("cc is missing and could not be installed" in result.stderr) == bool(exit_code)
    assert "DDPSCALE_LAB=required" in result.stdout.splitlines()


def test_without_the_right_to_install_nothing_is_tried(machine: Machine) -> None:
    machine.with_apt(uid=1000)
    result = machine.run()
    assert result.returncode == 0, result.stderr
    assert "apt-get" not in result.stdout
    assert "DDPSCALE_LAB=unset" in result.stdout.splitlines()


@pytest.mark.parametrize(
    "failing",
    [
        "", "pytest", "ruff", "mypy", "python benchmarks/versions.py", "python benchmarks/plugins.py --only",
        "python -m mkdocs", "pytest --gpu-sku",
    ],
)  # fmt: skip
def test_all_that_checks_is_run_and_each_can_fail_it(machine: Machine, failing: str) -> None:
    machine.with_apt(uid=1000)
    result = machine.run(failing)
    assert result.returncode == int(bool(failing)), result.stderr
    lines = result.stdout.splitlines()
    assert {"pip install -e .[test]", "pytest tests -n 4", "ruff check ."} <= set(lines)
    if failing not in {"", "python -m mkdocs", "pytest --gpu-sku"}:
        assert {"python benchmarks/versions.py", "python benchmarks/versions.py --whole lowest"} <= set(lines)
        assert result.stderr.splitlines()[-1].startswith("tests: exit code ")
    if not failing:
        assert {"mypy ", "with Slurm: pytest tests -m lab -n 4"} <= set(lines)
        assert "with Slurm: pytest tests -n 4" not in lines
        assert any(line.startswith("python -m mkdocs build --strict") for line in lines)
        assert any(line.startswith("pytest --gpu-sku=cpu") for line in lines)


def test_what_fails_beside_others_is_run_once_more_alone(machine: Machine) -> None:
    machine.with_apt(uid=1000)
    result = machine.run("pytest tests -m lab -n 4", failures=1)
    alone = "pytest tests -m lab -n 4 --last-failed --last-failed-no-failures none -n 0 --maxfail 1"
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines.index(alone) > lines.index("pytest tests -m lab -n 4")
    assert [line for line in lines if "--last-failed" in line and line.startswith("pytest")] == [alone]


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="needs shellcheck: apt-get install shellcheck")
def test_it_is_clean_to_shellcheck() -> None:
    result = subprocess.run(["shellcheck", str(ROOT / ".ci" / "run")], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout
