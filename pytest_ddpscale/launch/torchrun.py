"""Ranks on this machine, by torchrun."""

from __future__ import annotations

import sys

from pytest_ddpscale.launch.launcher import GangSpec


class TorchrunLauncher:
    """One node: ``torchrun --standalone`` of the running interpreter, not of whatever is on PATH."""

    name = "torchrun"

    def command(self, gang: GangSpec) -> list[str]:
        """``python -m torch.distributed.run --standalone … -m pytest_ddpscale.worker …``."""
        # Without an address torchrun asks for this host's name, which may not resolve, or to something unreachable.
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
        ranks = [f"--nproc-per-node={gang.ranks_per_node}", "--max-restarts=0"]
        logs = ["--redirects=3", f"--log-dir={gang.log_dir}"]
        return [*torchrun, *ranks, *logs, "-m", "pytest_ddpscale.worker", *gang.worker_arguments]
