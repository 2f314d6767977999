"""The command that measures a requirement again measures it as it was measured."""

from __future__ import annotations

import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pytest_ddpscale.launch.launcher import Cluster
from pytest_ddpscale.plugin.items import asked_again
from pytest_ddpscale.session.open import THIS_MACHINE, Machine, Site, Subject
from pytest_ddpscale.settings import settings_from
from tests.rows import rows


def command(cluster: Cluster = THIS_MACHINE, devices: int | None = None, paths: Any = (), **options: Any) -> str:
    """Of a session on these nodes, that was started with these options."""
    settings = settings_from(options, {}, {})
    asked = asked_again(SimpleNamespace(option=SimpleNamespace(**options)))  # type: ignore[arg-type]
    site = Site(settings, Path("/site"), Path("/site"), asked=asked, paths=paths)
    thresholds: Any = None  # it needs none
    return shlex.join(Subject(site, thresholds, "b200").command_again(Machine(cluster, devices)))


OPTIONS: dict[str, Any] = {
    "ddp_nodes": "2", "ddp_gpus_per_node": "8", "ddp_slurm_args": "--partition=gpu --exclusive",
    "ddp_block": "3s", "ddp_nvtx": False, "ddp_allow_incomplete": True, "ddp_run_dir": "mine",
}  # fmt: skip


@rows(
    ("again", "cluster", "devices", "options"),
    [
        ("", THIS_MACHINE, 8, {}),
        (" --ddp-launcher=slurm --ddp-nodes=2 --ddp-gpus-per-node=8 '--ddp-slurm-args=--partition=gpu --exclusive' "
         "--ddp-block=3s --ddp-allow-incomplete", Cluster(2, launcher="slurm", is_elsewhere=True), 16, OPTIONS),
        # The nodes of an allocation are named for who types it outside of it.
        (" --ddp-launcher=slurm --ddp-nodes=2 --ddp-gpus-per-node=8", Cluster(2, ("n1", "n2"), launcher="slurm"), 16,
         {}),
        (" acceptance ours", THIS_MACHINE, None, {"paths": ("acceptance", "ours")}),
        # Of a run that was judged only, only what was asked is known.
        (" --ddp-confidence=0.9", THIS_MACHINE, None, {"ddp_judge": "run", "ddp_confidence": "0.9"}),
        (" '--ddp-slurm-args=--comment=password=***'", THIS_MACHINE, None,
         {"ddp_slurm_args": "--comment=password=hunter2"}),
    ],
)  # fmt: skip
def test_launcher_nodes_paths_and_options_are_carried_along(
    again: str, cluster: Cluster, devices: int | None, options: dict[str, Any]
) -> None:
    assert command(cluster, devices, **options) == f"pytest --gpu-sku=b200{again}"
