"""Every command of docs/cluster.md and nightly.md for Slurm, executed as it stands there against a real one."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forks.agent import site_of_agents
from tests.integration.lab_runs import DEADLINE_S, ROOT
from tests.slurm_lab.lab import SlurmLab

pytestmark = pytest.mark.lab

# What is another in the lab: its sizes, names and places.
LAB = {
    "/shared/pytest-ddpscale": str(ROOT),
    "b200": "cpu",
    "--nodes=16": "--nodes=2",
    "--ddp-nodes=16": "--ddp-nodes=2",
    "--gpus-per-node=8": "--gpus-per-node=2",
    "--ddp-gpus-per-node=8": "--ddp-gpus-per-node=1",
    "--partition=gpu": "--partition=main",
    "n7": "n1",
    "sbatch …": "sbatch --nodes=2",
}
# What else than 0 a command ends with where all is well.
EXIT_CODES = {
    "tail -f": 124,  # it never ends by itself
    "sinfo -R": 1,  # nobody is drained
}
# The checks of the nodes alone, which take seconds; an argument in the document wins. The lab's nodes have no GPUs.
ONLY_CHECKS = {"PYTEST_ADDOPTS": "-k node_check -p no:cacheprovider", "DDPSCALE_SKU": "cpu"}


def documented() -> list[str]:
    """The commands in the documents, in order, each in one line and without its comment."""
    text = "".join((ROOT / "docs" / name).read_text("utf-8") for name in ("cluster.md", "nightly.md"))
    blocks = re.findall(r"^```bash\n(.*?)^```", text, re.DOTALL | re.MULTILINE)  # those of other launchers are sh
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [line for line in (re.sub(r"\s+# .*", "", line).strip() for line in lines) if line]


class Reader:
    """Somebody who types what is written there, on the head."""

    def __init__(self, lab: SlurmLab, site: Path) -> None:
        self._lab = lab
        self._site = site
        self._jobs: list[int] = []

    def type(self, command: str) -> None:
        """Execute a command, and wait for the job that it submits, if it does."""
        if command.startswith("cd "):
            return  # every command is executed there
        if "pip install" in command:
            (self._site / ".venv").symlink_to(sys.prefix)
            return
        done = self._execute(command)
        expected = next((code for start, code in EXIT_CODES.items() if start in command), 0)
        assert done.returncode == expected, f"{command}\n{done.stdout}{done.stderr}"
        for job in re.findall(r"[Ss]ubmitted (?:batch )?job (\d+)", done.stdout):
            self._wait_for(int(job), command)

    def _wait_for(self, job: int, command: str) -> None:
        state, output = self._lab.wait_for_job(job, DEADLINE_S), self._lab.job_output(job)
        self._jobs.append(job)
        if "--ddp-container" in command:  # there is neither Pyxis nor Apptainer
            assert state == "FAILED"
            assert "unrecognized option '--container-image=" in output or "apptainer" in output, output
            assert "Traceback" not in output
            return
        assert state == "COMPLETED", f"{command}\n{output}"

    def _execute(self, command: str) -> subprocess.CompletedProcess[str]:
        for there, here in LAB.items():
            command = re.sub(rf"(?<![\w-]){re.escape(there)}", here, command)
        command = command.replace("/shared/site", str(self._site))
        if self._jobs:
            command = command.replace("<job id>", str(self._jobs[0])).replace("job-1234", f"job-{self._jobs[0]}")
        if command.startswith("tail "):
            command = f"timeout 1 {command}"
        shell = ["bash", "-c", command]
        forks = {"PYTHONPATH": str(self._site / "forks")}
        environ = {**self._lab.environ, **ONLY_CHECKS, **forks, "PATH": f"{sys.prefix}/bin:{os.environ['PATH']}"}
        if command.startswith("ssh "):
            _, node, there = shlex.split(command)
            shell = self._lab.node(node).command(["bash", "-c", there])
        else:
            shell = self._lab.command(shell)
        return subprocess.run(
            shell, env=environ, cwd=self._site, capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )


def test_every_command_of_the_document_does_what_is_said_of_it(lab: SlurmLab, tmp_path: Path) -> None:
    for node in lab.nodes:  # nothing is compared
        node.cpu_quota(None)
    lab.submit("sleep 600", "--nodes=4", "--nodelist=n[3-6]", "--exclusive")  # nightly checks leave busy nodes out
    commands = documented()
    assert len(commands) > 20
    site_of_agents(tmp_path / "forks", surveys=True)
    reader = Reader(lab, tmp_path)
    for command in commands:
        reader.type(command)
