"""Which nodes are meant, and what starts ranks there."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.launch.container import Container
from pytest_ddpscale.launch.gang_setup import GangSetup
from pytest_ddpscale.launch.slurm import SlurmLauncher
from pytest_ddpscale.launch.torchrun import TorchrunLauncher
from pytest_ddpscale.session.cluster import THIS_MACHINE, Cluster, find_cluster, place_of, refuse_wrong_arguments
from pytest_ddpscale.settings import Settings, settings_from
from tests.launch.sample import gang

HERE = {"SLURM_JOB_ID": "17", "SLURMD_NODENAME": "n4"}
ONE_NODE = HERE | {"SLURM_JOB_NODELIST": "n4"}
THREE_NODES = HERE | {"SLURM_JOB_NODELIST": "n[4-5,9]"}
# A shell that salloc started where it was typed.
ON_LOGIN = {"SLURM_JOB_ID": "17", "SLURM_JOB_NODELIST": "n4"}
THREE = ("n4", "n5", "n9")
# As `scontrol show hostnames` does for the list above.
SCONTROL = '#!/bin/sh\n[ "$*" = "show hostnames n[4-5,9]" ] && printf "n4\\nn5\\nn9\\n"\n'


def settings(**options: str) -> Settings:
    """As options give them, without their prefix."""
    return settings_from({f"ddp_{name}": value for name, value in options.items()}, {}, {})


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on PATH, with Slurm's commands."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in (("srun", "#!/bin/sh\n"), ("scontrol", SCONTROL)):
        (folder / name).write_text(text, encoding="utf-8")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    return folder


@pytest.mark.parametrize(
    ("options", "environ", "expected"),
    [
        ({}, {}, THIS_MACHINE),
        ({"nodes": "1"}, {}, THIS_MACHINE),
        ({}, ONE_NODE, THIS_MACHINE),
        ({}, THREE_NODES, Cluster(3, THREE, uses_slurm=True)),
        ({"nodes": "2"}, THREE_NODES, Cluster(2, THREE[:2], uses_slurm=True)),
        ({"nodes": "1"}, THREE_NODES, THIS_MACHINE),
        ({"nodes": "1", "launcher": "slurm"}, THREE_NODES, Cluster(1, THREE[:1], uses_slurm=True)),
        ({"launcher": "slurm"}, ONE_NODE, Cluster(1, ("n4",), uses_slurm=True)),
        ({"slurm_args": "--mem=0"}, ONE_NODE, Cluster(1, ("n4",), uses_slurm=True)),
        ({"isolate": "1"}, THREE_NODES, Cluster(3, THREE, uses_slurm=True)),
        ({"launcher": "torchrun"}, THREE_NODES, THIS_MACHINE),
        ({"nodes": "2"}, {}, Cluster(2, uses_slurm=True, is_elsewhere=True)),
        ({"launcher": "slurm"}, {}, Cluster(1, uses_slurm=True, is_elsewhere=True)),
        ({"slurm_args": "--partition=gpu"}, {}, Cluster(1, uses_slurm=True, is_elsewhere=True)),
        ({}, ON_LOGIN, Cluster(1, ("n4",), uses_slurm=True, is_elsewhere=True)),
        ({}, ON_LOGIN | {"SLURMD_NODENAME": "n4.cluster"}, THIS_MACHINE),
    ],
)
def test_the_nodes_follow_from_options_and_allocation(
    programs: Path, options: dict[str, str], environ: dict[str, str], expected: Cluster
) -> None:
    assert find_cluster(settings(**options), environ) == expected


@pytest.mark.parametrize(
    ("options", "environ", "message"),
    [
        ({"launcher": "torchrun", "nodes": "2"}, {}, r"^--ddp-launcher: torchrun is asked for, beside --ddp-nodes=2;"),
        ({"launcher": "torchrun", "slurm_args": "-pgpu"}, {}, r"torchrun is asked for, beside --ddp-slurm-args;"),
        ({"nodes": "4"}, THREE_NODES, r"^--ddp-nodes: found 4, but Slurm job 17 has 3; expected at most 3\."),
        ({"nodes": "2"}, ONE_NODE, r"^--ddp-nodes: found 2, but Slurm job 17 has 1; expected at most 1\."),
        ({"nodes": "2", "isolate": "1"}, {}, r"^--ddp-isolate: each study would be a Slurm job of its own"),
    ],
)
def test_what_does_not_fit_is_refused(
    programs: Path, options: dict[str, str], environ: dict[str, str], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        find_cluster(settings(**options), environ)


@pytest.mark.parametrize(
    ("options", "environ"),
    [({"nodes": "2"}, {}), ({}, THREE_NODES), ({"launcher": "slurm"}, ONE_NODE), ({"launcher": "slurm"}, {})],
)
def test_without_srun_it_is_refused(programs: Path, options: dict[str, str], environ: dict[str, str]) -> None:
    (programs / "srun").unlink()
    with pytest.raises(OptionError, match=r"^--ddp-launcher: srun is not on PATH; expected Slurm's commands\."):
        find_cluster(settings(**options), environ)


@pytest.mark.parametrize("scontrol", [None, "#!/bin/sh\necho no controller >&2; exit 1\n"])
def test_an_allocation_whose_nodes_slurm_does_not_name_is_refused(programs: Path, scontrol: str | None) -> None:
    (programs / "scontrol").unlink() if scontrol is None else (programs / "scontrol").write_text(scontrol)
    with pytest.raises(OptionError, match=r"^Slurm job 17: `scontrol show hostnames n\[4-5,9\]` does not answer"):
        find_cluster(settings(), THREE_NODES)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, Cluster()),
        ({"nodes": "1"}, Cluster()),
        ({"nodes": "64"}, Cluster(64, is_elsewhere=True)),
        ({"launcher": "slurm", "nodes": "4"}, Cluster(4, is_elsewhere=True)),
        ({"launcher": "slurm", "nodes": "4", "isolate": "1"}, Cluster(4, is_elsewhere=True)),
    ],
)
def test_planning_needs_no_slurm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, str], expected: Cluster
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_cluster(settings(**options), {}, plans_only=True) == expected


def test_planning_inside_an_allocation_is_for_its_nodes(programs: Path) -> None:
    assert find_cluster(settings(), THREE_NODES, plans_only=True).nodes == 3
    unknown = THREE_NODES | {"SLURM_JOB_NODELIST": "x[1-2]"}
    assert find_cluster(settings(), unknown, plans_only=True).nodes == 1


@pytest.mark.parametrize(
    ("argument", "is_added"),
    [("--gres=gpu:8", False), ("--gpus=8", False), ("-G8", False), ("--gres-flags=x", True), ("--mem=0", True)],
)
def test_gpus_are_asked_for_unless_the_user_does(programs: Path, tmp_path: Path, argument: str, is_added: bool) -> None:
    login = Cluster(2, uses_slurm=True, is_elsewhere=True)
    launcher = place(login, "cuda", tmp_path, gpus_per_node="8", slurm_args=argument).launcher
    assert ("--gpus-per-node=8" in launcher.arguments) == is_added


def place(cluster: Cluster, device_type: Any, run: Path, **options: str) -> Any:
    return place_of(cluster, settings(**options), device_type, run, {"PATH": "/bin", "MY_SITE": "1", "RANK": "3"})


def test_on_this_machine_torchrun_starts_ranks(tmp_path: Path) -> None:
    found = place(THIS_MACHINE, "cuda", tmp_path, pass_env="MY_SITE")
    assert (found.launcher, found.hosts) == (TorchrunLauncher(), ())
    assert found.environment["MY_SITE"] == "1"
    assert "RANK" not in found.environment


def test_in_an_allocation_srun_starts_them_on_its_nodes(tmp_path: Path) -> None:
    cluster = Cluster(2, ("n4", "n5"), uses_slurm=True)
    found = place(cluster, "cuda", tmp_path, slurm_args="--mem=0 --comment='a b'", gpus_per_node="8")
    assert (found.launcher, found.hosts) == (SlurmLauncher(("--mem=0", "--comment=a b")), ("n4", "n5"))


ELSEWHERE = Cluster(2, uses_slurm=True, is_elsewhere=True)


@pytest.mark.parametrize(
    ("device_type", "slurm_args", "arguments"),
    [
        ("cuda", "--partition=gpu", ("--gpus-per-node=8", "--partition=gpu")),
        ("cuda", "--gpu-bind=none", ("--gpus-per-node=8", "--gpu-bind=none")),
        ("cpu", "--partition=gpu", ("--partition=gpu",)),
        ("cuda", "--gpus=16", ("--gpus=16",)),
        ("cuda", "-G 16", ("-G", "16")),
        ("cuda", "--gres=gpu:8", ("--gres=gpu:8",)),
        ("cuda", "--tres-per-task=gres/gpu:8", ("--tres-per-task=gres/gpu:8",)),
    ],
)
def test_from_a_login_node_gpus_are_asked_for_unless_the_user_does(
    tmp_path: Path, device_type: str, slurm_args: str, arguments: tuple[str, ...]
) -> None:
    found = place(ELSEWHERE, device_type, tmp_path, gpus_per_node="8", slurm_args=slurm_args)
    assert (found.launcher, found.hosts) == (SlurmLauncher(arguments), ())


def test_the_whole_command_from_a_login_node(tmp_path: Path) -> None:
    launcher = place(ELSEWHERE, "cuda", tmp_path, gpus_per_node="8", slurm_args="--partition=gpu").launcher
    command = launcher.command(gang(nodes=2, worker_arguments=("--x",)))
    assert command == [
        "srun", "--job-name=ddpscale-g1", "--ntasks-per-node=1", "--export=ALL", "--cpu-bind=none",
        "--kill-on-bad-exit=0", "--wait=0", "--no-kill", "--nodes=2", "--ntasks=2", "--gpus-per-node=8",
        "--partition=gpu",
        sys.executable, "-m", "pytest_ddpscale.node", "--gang=g1", "--ranks-per-node=8",
        "--log-dir=run dir/logs/gang-0", "--beat-s=2", "--slurm", "--", "--x",
    ]  # fmt: skip


def test_arguments_that_srun_refuses_are_the_users_mistake(programs: Path, tmp_path: Path) -> None:
    asked = GangSetup(SlurmLauncher(("--partition=gpu", "--bogus")), (), dict(os.environ))
    refuse_wrong_arguments(asked, 2)  # srun here takes all
    (programs / "srun").write_text("#!/bin/sh\necho \"srun: unrecognized option '--bogus'\" >&2; exit 255\n")
    with pytest.raises(OptionError) as refused:
        refuse_wrong_arguments(asked, 2)
    assert str(refused.value) == (
        "--ddp-slurm-args: srun refuses: unrecognized option '--bogus'; expected arguments that srun takes here. "
        "Try `srun --partition=gpu --bogus --test-only true`."
    )
    refuse_wrong_arguments(place(THIS_MACHINE, "cpu", tmp_path), 1)  # nothing of it concerns torchrun


def test_a_container_has_the_run_directory_and_starts_by_srun_where_that_starts_ranks(tmp_path: Path) -> None:
    expected = Container(("--container-image=i", f"--container-mounts={tmp_path}:{tmp_path}"), (), "python3")
    assert place(ELSEWHERE, "cpu", tmp_path, container="i").launcher == SlurmLauncher((), expected)
    with pytest.raises(OptionError, match="i is an image for Pyxis"):
        place(THIS_MACHINE, "cpu", tmp_path, container="i")


class TestWithout:
    FOUR = Cluster(4, ("n1", "n2", "n3", "n4"), uses_slurm=True)

    def test_the_other_nodes_stay_in_their_order(self) -> None:
        assert self.FOUR.without(["n3", "n1"]) == Cluster(2, ("n2", "n4"), uses_slurm=True)
        elsewhere = Cluster(2, ("n1", "n2"), uses_slurm=True, is_elsewhere=True)
        assert elsewhere.without(["n1"]) == Cluster(1, ("n2",), uses_slurm=True, is_elsewhere=True)

    def test_nothing_is_left_of_all(self) -> None:
        assert self.FOUR.without(self.FOUR.hosts) is None

    def test_a_name_that_is_none_of_them_leaves_out_nobody(self) -> None:
        assert self.FOUR.without(["n3.cluster"]) is None

    @pytest.mark.parametrize("cluster", [THIS_MACHINE, ELSEWHERE])
    def test_nodes_that_slurm_chooses_cannot_be_left_out(self, cluster: Cluster) -> None:
        assert cluster.without(["n1"]) is None
