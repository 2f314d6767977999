"""A directory in which a script runs, with stand-ins for the programs it calls."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

SLURM = Path(__file__).parents[2] / "slurm"
SCRIPTS = sorted(path for path in SLURM.iterdir() if path.suffix in {".sh", ".sbatch"})
TIMEOUT_S = 60
_FOREIGN = ("SLURM", "SBATCH_", "DDPSCALE_")


class Stage:
    """Where a script runs, and what its programs were called with.

    Attributes:
        path: the directory.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._programs = path / "venv" / "bin"
        self._programs.mkdir(parents=True)
        self._calls = path / "calls"

    def provide(self, program: str, script: str = "") -> None:
        """A stand-in for a program: its calls are recorded, then it does what a shell script says."""
        record = f'printf "%s\\n" "$(basename "$0")" "$@" "" >>{shlex.quote(str(self._calls))}'
        file = self._programs / program
        file.write_text(f"#!/usr/bin/env bash\n{record}\n{script}\n", encoding="utf-8")
        file.chmod(0o755)

    def calls(self, program: str) -> list[list[str]]:
        """The arguments of every call of a program, in order."""
        text = self._calls.read_text(encoding="utf-8") if self._calls.exists() else ""
        calls = [call.split("\n") for call in text.split("\n\n") if call]
        return [arguments for name, *arguments in calls if name == program]

    def environ(self, settings: Mapping[str, str]) -> dict[str, str]:
        """What the script finds in its environment: nothing of a Slurm or site around the tests."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
        found = {"PATH": f"{self._programs}:{os.environ['PATH']}", "DDPSCALE_VENV": str(self.path / "venv")}
        return kept | found | dict(settings)

    def run(
        self, script: str, *arguments: str | Path, settings: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Execute a script of slurm/ in the directory."""
        command: Sequence[str] = [str(SLURM / script), *map(str, arguments)]
        return subprocess.run(
            command, cwd=self.path, env=self.environ(settings or {}), capture_output=True, text=True,
            timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
