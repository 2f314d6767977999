"""The command that measures a requirement again measures it as it was measured."""

from __future__ import annotations

import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pytest_ddpscale.launch.launcher import Cluster
from pytest_ddpscale.plugin.items import rerun_options
from pytest_ddpscale.session.open import THIS_MACHINE, Machine, Site, Subject
from pytest_ddpscale.settings import settings_from
from tests.approved import assert_approved
from tests.builders.sessions import PACKAGED


def subject(paths: Any = (), **options: Any) -> Subject:
    """Of a session that was started with these options."""
    asked = rerun_options(SimpleNamespace(option=SimpleNamespace(**options)))  # type: ignore[arg-type]
    site = Site(settings_from(options, {}, {}), Path("/site"), Path("/site"), options=asked, paths=paths)
    return Subject(site, PACKAGED, "b200")


def again(cluster: Cluster = THIS_MACHINE, per_node: int | None = None, **options: Any) -> str:
    """On these nodes."""
    return shlex.join(subject(**options).command_again(Machine(cluster, per_node)))


SLURM = {
    "ddp_nodes": "2", "ddp_gpus_per_node": "8", "ddp_slurm_args": "--partition=gpu --exclusive",
    "ddp_block": "3s", "ddp_nvtx": False, "ddp_allow_incomplete": True, "ddp_run_dir": "mine",
}  # fmt: skip
RUN = Path("/runs/a b")
SAID = (
    again(per_node=8), again(Cluster(2, launcher="slurm", is_elsewhere=True), 8, **SLURM),
    # The nodes of an allocation are named for who types it outside of it.
    again(Cluster(2, ("n1", "n2"), launcher="slurm"), 8), again(paths=("acceptance", "ours")),
    # Of a run that was judged only, only what was asked is known.
    again(ddp_judge="run", ddp_confidence="0.9"), again(ddp_slurm_args="--comment=password=hunter2"),
    # The calibration of a run extends the thresholds that it was judged by.
    subject().calibrate_command(RUN, is_simulated=False),
    subject(thresholds="site.yaml").calibrate_command(RUN, is_simulated=True),
)  # fmt: skip


def test_launcher_nodes_paths_and_options_are_carried_along() -> None:
    assert_approved("commands-again.txt", "\n".join([*SAID, ""]))
