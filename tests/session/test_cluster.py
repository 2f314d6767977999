"""Which nodes are meant, and what starts ranks there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.launch.launcher import Cluster, Container, Launch, TorchrunLauncher, launcher_for
from pytest_ddpscale.launch.slurm import SlurmLauncher
from pytest_ddpscale.session.evidence import launch_on
from pytest_ddpscale.session.open import THIS_MACHINE
from pytest_ddpscale.settings import Settings, settings_from
from tests.rows import rows

HERE = {"SLURM_JOB_ID": "17", "SLURMD_NODENAME": "n4"}
ONE_NODE = HERE | {"SLURM_JOB_NODELIST": "n4"}
THREE_NODES = HERE | {"SLURM_JOB_NODELIST": "n[4-5,9]"}
# A shell that salloc started where it was typed.
ON_LOGIN = {"SLURM_JOB_ID": "17", "SLURM_JOB_NODELIST": "n4"}
THREE = ("n4", "n5", "n9")
HETEROGENEOUS = {"SLURM_JOB_NODELIST_HET_GROUP_0": "n4", "SLURM_JOB_NODELIST_HET_GROUP_1": "c[1-2]"}
MEMORY = {"SLURM_MEM_PER_NODE": "4096", "SLURM_MEM_PER_CPU": "8"}


def settings(**options: str) -> Settings:
    """As options give them, without their prefix."""
    return settings_from({f"ddp_{name}": value for name, value in options.items()}, {}, {})


def find_cluster(options: dict[str, str], environ: dict[str, str], *, plans_only: bool = False) -> Cluster:
    return launcher_for(settings(**options), environ).cluster(plans_only=plans_only)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on PATH, with srun."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "srun").write_text("#!/bin/sh\n", encoding="utf-8")
    (folder / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    return folder


@rows(
    ("options", "environ", "expected"),
    [
        ({}, {}, THIS_MACHINE),
        ({"nodes": "1"}, {}, THIS_MACHINE),
        ({}, ONE_NODE, THIS_MACHINE),
        ({}, THREE_NODES, Cluster(3, THREE, launcher="slurm")),
        ({"nodes": "2"}, THREE_NODES, Cluster(2, THREE[:2], launcher="slurm")),
        ({"nodes": "1"}, THREE_NODES, THIS_MACHINE),
        ({"nodes": "1", "launcher": "slurm"}, THREE_NODES, Cluster(1, THREE[:1], launcher="slurm")),
        ({"launcher": "slurm"}, ONE_NODE, Cluster(1, ("n4",), launcher="slurm")),
        ({"slurm_args": "--mem=0"}, ONE_NODE, Cluster(1, ("n4",), launcher="slurm")),
        ({"slurm_args": "--mem=0"}, THREE_NODES | MEMORY, Cluster(3, THREE, launcher="slurm")),
        ({}, THREE_NODES | {"SLURM_MEM_PER_CPU": "8"}, Cluster(3, THREE, launcher="slurm")),
        ({"profile": "5"}, THREE_NODES, Cluster(3, THREE, launcher="slurm")),
        ({"launcher": "torchrun"}, THREE_NODES, THIS_MACHINE),
        ({"nodes": "2"}, {}, Cluster(2, launcher="slurm", is_elsewhere=True)),
        ({"launcher": "slurm"}, {}, Cluster(1, launcher="slurm", is_elsewhere=True)),
        ({"slurm_args": "--partition=gpu"}, {}, Cluster(1, launcher="slurm", is_elsewhere=True)),
        ({}, ON_LOGIN, Cluster(1, ("n4",), launcher="slurm", is_elsewhere=True)),
        ({}, ON_LOGIN | {"SLURMD_NODENAME": "n4.cluster"}, THIS_MACHINE),
    ],
)
def test_the_nodes_follow_from_options_and_allocation(
    programs: Path, options: dict[str, str], environ: dict[str, str], expected: Cluster
) -> None:
    assert find_cluster(options, environ) == expected


@rows(
    ("options", "environ", "message"),
    [
        ({"nodes": "4"}, THREE_NODES, r"^--ddp-nodes: found 4, but Slurm job 17 has 3; expected at most 3\."),
        ({"nodes": "2"}, ONE_NODE, r"^--ddp-nodes: found 2, but Slurm job 17 has 1; expected at most 1\."),
        ({}, ONE_NODE | HETEROGENEOUS, r"^Slurm job 17: .* n4 and c\[1-2\];.* Submit one component as a job\.$"),
        ({}, THREE_NODES | MEMORY, r"^SLURM_MEM_PER_CPU and SLURM_MEM_PER_NODE: are set.* Unset all but one\.$"),
        ({"nodes": "2", "profile": "5"}, {}, r"^--ddp-profile: each study would be its own Slurm job"),
    ],
)
def test_what_does_not_fit_is_refused(
    programs: Path, options: dict[str, str], environ: dict[str, str], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        find_cluster(options, environ)


@pytest.mark.parametrize(
    ("options", "environ"),
    [({"nodes": "2"}, {}), ({}, THREE_NODES), ({"launcher": "slurm"}, ONE_NODE), ({"launcher": "slurm"}, {})],
)
def test_without_srun_it_is_refused(programs: Path, options: dict[str, str], environ: dict[str, str]) -> None:
    (programs / "srun").unlink()
    with pytest.raises(OptionError, match=r"^--ddp-launcher: srun is not on PATH; expected Slurm's commands\."):
        find_cluster(options, environ)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, Cluster()),
        ({"nodes": "1"}, Cluster()),
        ({"nodes": "64"}, Cluster(64, launcher="slurm", is_elsewhere=True)),
        ({"launcher": "slurm", "nodes": "4"}, Cluster(4, launcher="slurm", is_elsewhere=True)),
        ({"launcher": "slurm", "nodes": "4", "profile": "5"}, Cluster(4, launcher="slurm", is_elsewhere=True)),
    ],
)
def test_planning_needs_no_slurm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, str], expected: Cluster
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_cluster(options, {}, plans_only=True) == expected


def test_planning_inside_an_allocation_is_for_its_nodes(programs: Path) -> None:
    assert find_cluster({}, THREE_NODES, plans_only=True).nodes == 3
    assert find_cluster({}, ONE_NODE | HETEROGENEOUS, plans_only=True).nodes == 1


def launch(cluster: Cluster, device_type: Any, **options: str) -> Launch:
    return launch_on(cluster, settings(**options), device_type, {"PATH": "/bin", "MY_SITE": "1", "RANK": "3"})


def test_on_this_machine_torchrun_starts_ranks() -> None:
    found = launch(THIS_MACHINE, "cuda", pass_env="MY_SITE")
    assert isinstance(found.launcher, TorchrunLauncher)
    assert (found.hosts, found.nodes, found.device_type) == ((), 1, "cuda")
    assert found.environment["MY_SITE"] == "1"
    assert "RANK" not in found.environment


ELSEWHERE = Cluster(2, launcher="slurm", is_elsewhere=True)


def test_in_an_allocation_srun_starts_them_on_its_nodes() -> None:
    found = launch(Cluster(2, ("n4", "n5"), "slurm"), "cuda", slurm_args="--mem=0")
    assert isinstance(found.launcher, SlurmLauncher)
    assert (found.hosts, found.nodes, found.launcher.settings.slurm_args) == (("n4", "n5"), 2, ("--mem=0",))


def test_images_are_started_by_what_starts_ranks() -> None:
    assert launch(ELSEWHERE, "cpu", container="i").container == Container(("--container-image=i",), (), "python3")
    with pytest.raises(OptionError, match="i is an image for Pyxis"):
        launch(THIS_MACHINE, "cpu", container="i")


class TestWithout:
    FOUR = Cluster(4, ("n1", "n2", "n3", "n4"), launcher="slurm")

    def test_the_other_nodes_stay_in_their_order(self) -> None:
        assert self.FOUR.without(["n3", "n1"]) == Cluster(2, ("n2", "n4"), launcher="slurm")
        elsewhere = Cluster(2, ("n1", "n2"), launcher="slurm", is_elsewhere=True)
        assert elsewhere.without(["n1"]) == Cluster(1, ("n2",), launcher="slurm", is_elsewhere=True)

    def test_nothing_is_left_of_all(self) -> None:
        assert self.FOUR.without(self.FOUR.hosts) is None

    def test_a_name_that_is_none_of_them_leaves_out_nobody(self) -> None:
        assert self.FOUR.without(["n3.cluster"]) is None

    @rows("cluster", [THIS_MACHINE, ELSEWHERE])
    def test_nodes_that_slurm_chooses_cannot_be_left_out(self, cluster: Cluster) -> None:
        assert cluster.without(["n1"]) is None
