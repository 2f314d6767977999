"""The command that measures a requirement again measures it as it was measured."""

from __future__ import annotations

import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_ddpscale.launch.launcher import Cluster
from pytest_ddpscale.plugin.items import asked_again
from pytest_ddpscale.session.open import THIS_MACHINE, Machine, Site, Subject
from pytest_ddpscale.settings import settings_from


def command(cluster: Cluster = THIS_MACHINE, devices: int | None = None, paths: Any = (), **options: Any) -> str:
    """Of a session on these nodes, that was started with these options."""
    settings = settings_from(options, {}, {})
    asked = asked_again(SimpleNamespace(option=SimpleNamespace(**options)))  # type: ignore[arg-type]
    site = Site(settings, Path("/site"), Path("/site"), asked=asked, paths=paths)
    thresholds: Any = None  # it needs none
    return shlex.join(Subject(site, thresholds, "b200").command_again(Machine(cluster, devices)))


def test_on_one_machine_nothing_is_added() -> None:
    assert command(devices=8) == "pytest --gpu-sku=b200"


def test_launcher_nodes_and_options_are_carried_along() -> None:
    options = {
        "ddp_nodes": "2", "ddp_gpus_per_node": "8", "ddp_slurm_args": "--partition=gpu --exclusive",
        "ddp_block": "3s", "ddp_nvtx": False, "ddp_allow_incomplete": True, "ddp_run_dir": "mine",
    }  # fmt: skip
    assert command(Cluster(2, launcher="slurm", is_elsewhere=True), 16, **options) == (
        "pytest --gpu-sku=b200 --ddp-launcher=slurm --ddp-nodes=2 --ddp-gpus-per-node=8 "
        "'--ddp-slurm-args=--partition=gpu --exclusive' --ddp-block=3s --ddp-allow-incomplete"
    )


def test_the_nodes_of_an_allocation_are_named_for_who_types_it_outside_of_it() -> None:
    found = command(Cluster(2, ("n1", "n2"), launcher="slurm"), 16)
    assert found == "pytest --gpu-sku=b200 --ddp-launcher=slurm --ddp-nodes=2 --ddp-gpus-per-node=8"


def test_paths_that_were_named_are_named_again() -> None:
    assert command(paths=("acceptance", "ours")) == "pytest --gpu-sku=b200 acceptance ours"


def test_of_a_run_that_was_judged_only_only_what_was_asked_is_known() -> None:
    assert command(ddp_judge="run", ddp_confidence="0.9") == "pytest --gpu-sku=b200 --ddp-confidence=0.9"


@pytest.mark.parametrize("secret", ["--comment=password=hunter2"])
def test_secrets_are_masked(secret: str) -> None:
    assert "hunter2" not in command(Cluster(2, launcher="slurm"), 16, ddp_slurm_args=secret)
