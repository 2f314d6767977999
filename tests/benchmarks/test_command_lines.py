"""Every benchmark can be asked how it is run, and refuses at once what it cannot do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks.scripts import BENCHMARKS

pytestmark = pytest.mark.slow


def _run(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if name != "RANK"}
    return subprocess.run(command, env=inherited | environment, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    "name",
    [
        *("control_plane", "gang_reuse", "fidelity", "hostile_inputs", "judging", "plugin_load"),
        *("sampler_overhead", "stragglers", "time_to_verdict", "wrong_verdicts"),
    ],
)
def test_help_shows_the_command(name: str) -> None:
    done = _run(sys.executable, BENCHMARKS / f"{name}.py", "--help")
    assert done.returncode == 0, done.stderr
    assert f"python benchmarks/{name}.py" in done.stdout
    assert "--json FILE" in done.stdout


def test_the_bare_loop_names_torchrun_when_started_without_it() -> None:
    done = _run(sys.executable, BENCHMARKS / "bare_ddp.py", "--device", "cpu")
    assert done.returncode == 1
    assert "torchrun" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_bare_loop_imports_nothing_of_the_package() -> None:
    lines = (BENCHMARKS / "bare_ddp.py").read_text(encoding="utf-8").splitlines()
    imports = [line for line in lines if line.startswith(("import ", "from "))]
    assert imports
    assert not [line for line in imports if "ddpscale" in line or "reporting" in line]
