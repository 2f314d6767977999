"""The exact command line of a gang."""

from __future__ import annotations

import sys
from pathlib import Path

from pytest_ddpscale.launch.launcher import GangSpec, Launcher
from pytest_ddpscale.launch.torchrun import TorchrunLauncher


def test_torchrun_starts_the_worker_with_the_running_interpreter() -> None:
    launcher: Launcher = TorchrunLauncher()
    gang = GangSpec(
        ranks_per_node=8,
        log_dir=Path("run dir/logs/gang-0"),
        worker_arguments=["--run-dir", "run dir", "--studies", "weak/r,strong/r"],
    )
    assert launcher.name == "torchrun"
    assert launcher.command(gang) == [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--local-addr=127.0.0.1",
        "--nproc-per-node=8",
        "--max-restarts=0",
        "--redirects=3",
        "--log-dir=run dir/logs/gang-0",
        "-m",
        "pytest_ddpscale.worker",
        "--run-dir",
        "run dir",
        "--studies",
        "weak/r,strong/r",
    ]
