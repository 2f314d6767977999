"""Acceptance runs over the nodes of the lab's Slurm, as a job that an operator submits."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.strict_json import parse_strict_json
from tests.forks.agent import site_of_agents
from tests.integration.sites import HARDLY_WARM_UP
from tests.slurm_lab.lab import SlurmLab
from tests.slurm_lab.polling import wait_until
from tests.slurm_scripts.stage import SLURM

ROOT = Path(__file__).parents[2]
THRESHOLDS = (ROOT / "tests" / "data" / "lab_thresholds.yaml").read_text(encoding="utf-8")
# Without checks of nodes and probes; with the checks.
TRAINING, _, _ = THRESHOLDS.partition("      # Node health")
CHECKED = TRAINING + THRESHOLDS.splitlines()[-1]
DEADLINE_S = 240
# Short blocks and few rounds: what is to be told apart here differs by factors.
QUICK = ("--ddp-gpus-per-node=1", "--ddp-rounds=14", "--ddp-block=0.4s", "--ddp-inactivity-limit=60s")


@dataclass(frozen=True)
class LabRun:
    """What a job left behind.

    Attributes:
        state: Slurm's last word on the job.
        output: what it printed.
        run: its run directory.
    """

    state: str
    output: str
    run: RunDirectory

    @property
    def judgement(self) -> dict[str, Any]:
        """The content of verdicts.json."""
        content: dict[str, Any] = parse_strict_json(self.run.verdicts_json.read_text(encoding="utf-8"))
        return content

    def verdict(self, metric: str) -> dict[str, Any]:
        """The verdict on the one requirement of a metric."""
        return next(one for one in self.judgement["verdicts"] if one["metric"] == metric)

    @property
    def accused(self) -> set[str]:
        """Every host that any verdict names."""
        culprits = [culprit for one in self.judgement["verdicts"] for culprit in one["culprits"]]
        return {place["host"] for culprit in culprits for place in culprit["places"]}


def thresholds_for(nodes: int, folder: Path, text: str = TRAINING) -> Path:
    """The lab's thresholds, asking for that many nodes of one rank each."""
    path = folder / "thresholds.yaml"
    path.write_text(text.replace("3 nodes", f"{nodes} nodes"), encoding="utf-8")
    return path


def pytest_command(run_dir: Path, thresholds: Path, *arguments: str) -> list[str]:
    """An acceptance run of the SKU ``cpu``, with this interpreter; its ranks are forks, without torchrun."""
    command = ["env", f"PYTHONPATH={site_of_agents(thresholds.with_name('site'))}"]
    command += [str(Path(sys.executable).with_name("pytest")), "--gpu-sku=cpu", f"--thresholds={thresholds}"]
    command += [f"--ddp-run-dir={run_dir}", "-p", "no:cacheprovider", *HARDLY_WARM_UP, "--ddp-launcher=slurm"]
    return [*command, *QUICK, *arguments, str(ROOT / "acceptance")]


def accept(
    lab: SlurmLab,
    folder: Path,
    nodes: int,
    *arguments: str,
    thresholds: str = TRAINING,
    once_up: Callable[[], None] | None = None,
) -> LabRun:
    """Submit a run over the first nodes, and wait for its end.

    Args:
        lab: the cluster.
        folder: for thresholds and run directory.
        nodes: how many to use.
        arguments: further ones of pytest.
        thresholds: YAML, in which 3 nodes stand for all of them.
        once_up: called when the ranks are: a node with little CPU takes a minute to import torch.
    """
    run_dir = folder / "run"
    command = pytest_command(run_dir, thresholds_for(nodes, folder, thresholds), *arguments)
    names = ",".join(f"n{number + 1}" for number in range(nodes))
    job = lab.submit(" ".join(["exec", *command]), f"--nodes={nodes}", f"--nodelist={names}", cwd=folder)
    run = RunDirectory(run_dir)
    if once_up is not None:
        wait_until(lambda: bool(run.read_records()), DEADLINE_S, "ranks to be up", seen=lambda: lab.job_output(job))
        once_up()
    return LabRun(lab.wait_for_job(job, DEADLINE_S), lab.job_output(job), run)


def drain_failed(lab: SlurmLab, *arguments: str | Path) -> str:
    """Execute drain_failed.sh on the head; its output."""
    command = [str(SLURM / "drain_failed.sh"), *map(str, arguments)]
    return lab.run(command, environ={"DDPSCALE_VENV": sys.prefix}).stdout
