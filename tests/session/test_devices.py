"""How many ranks fit a node, here and on nodes that are elsewhere."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpscale.errors import OptionError, SkuError
from pytest_ddpscale.launch.launcher import Cluster
from pytest_ddpscale.session.devices import devices_per_node, gpus_here
from pytest_ddpscale.session.open import THIS_MACHINE
from pytest_ddpscale.settings import settings_from
from tests.nvml_stand_in.fixtures import machine, nvml_library_directory
from tests.nvml_stand_in.machine import A100, HANG, PlayedMachine
from tests.rows import rows

__all__ = ["machine", "nvml_library_directory"]
ELSEWHERE = Cluster(2, launcher="slurm", is_elsewhere=True)
ALLOCATED = Cluster(2, ("n1", "n2"), launcher="slurm")


def found(
    kind: Any, gpus: int, cluster: Cluster = THIS_MACHINE, *, collect_only: bool = False, **options: str
) -> int | None:
    settings = settings_from({f"ddp_{name}": value for name, value in options.items()}, {}, {})
    return devices_per_node(settings, kind, gpus, collect_only=collect_only, cluster=cluster)


@pytest.fixture(autouse=True)
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})


@rows("cluster", [THIS_MACHINE, ALLOCATED])
def test_what_is_here_is_used_and_the_other_nodes_of_a_job_are_like_it(cluster: Cluster) -> None:
    assert found("cuda", 8, cluster) == 8
    assert found("cuda", 8, cluster, gpus_per_node="4") == 4
    assert found("cpu", 0, cluster) == 4
    assert found("cpu", 0, cluster, gpus_per_node="6") == 6


@rows("kind", ["cuda", "cpu"])
def test_of_nodes_elsewhere_the_user_says_how_many_they_have(kind: str) -> None:
    assert found(kind, 0, ELSEWHERE, gpus_per_node="8") == 8
    assert found(kind, 2, ELSEWHERE, gpus_per_node="8") == 8, "the GPUs of a login node do not count"
    with pytest.raises(OptionError, match=r"^--ddp-gpus-per-node: not given, and GPUs of other machines cannot"):
        found(kind, 8, ELSEWHERE)


def test_planning_may_not_know_how_many_there_are() -> None:
    assert found("cuda", 0, ELSEWHERE, collect_only=True) is None
    assert found("cuda", 0, collect_only=True) is None
    assert found("cuda", 0, collect_only=True, gpus_per_node="8") == 8
    assert found("cuda", 2, collect_only=True) == 2


def test_more_gpus_than_there_are_is_refused() -> None:
    with pytest.raises(OptionError, match=r"found 8, but 4 GPUs are visible; expected at most 4\."):
        found("cuda", 4, ALLOCATED, gpus_per_node="8")


@rows("cluster", [ALLOCATED, ELSEWHERE])
def test_world_sizes_may_be_as_large_as_all_nodes_together(cluster: Cluster) -> None:
    assert found("cuda", 8, cluster, gpus_per_node="8", world_sizes="1,8,16") == 8
    message = r"^--ddp-world-sizes: found 32, but 2 nodes have room for 8 ranks each; expected at most 16\.$"
    with pytest.raises(OptionError, match=message):
        found("cuda", 8, cluster, gpus_per_node="8", world_sizes="1,17,32")


def test_on_one_machine_a_world_size_that_does_not_fit_is_refused_with_a_hint_for_cpus() -> None:
    with pytest.raises(OptionError, match=r"found 16, but 8 GPUs are visible; expected at most 8\.$"):
        found("cuda", 8, world_sizes="1,16")
    with pytest.raises(OptionError, match=r"found 16, but 4 CPU cores can be used; .* --ddp-gpus-per-node=16 lets"):
        found("cpu", 0, world_sizes="1,16")


class TestDriver:
    """Played, and asked by a process of its own."""

    @pytest.fixture
    def driver(self, machine: PlayedMachine, monkeypatch: pytest.MonkeyPatch) -> PlayedMachine:
        for name, value in machine.environment().items():
            monkeypatch.setenv(name, value)
        return machine

    def test_one_that_hangs_is_given_up_and_its_node_and_gpu_are_named(self, driver: PlayedMachine) -> None:
        driver.play([A100], {"nvmlDeviceGetHandleByIndex_v2": HANG})
        with pytest.raises(
            SkuError, match=r"^NVML on \S+: the survey was not done within 3 s; .* driver for GPU 0; .* reboot it"
        ):
            gpus_here(limit_s=3.0)

    def test_one_that_answers_is_described(self, driver: PlayedMachine) -> None:
        driver.play([A100])
        [found] = gpus_here().gpus
        assert (found.index, found.name) == (0, A100.name)

    def test_one_that_brings_the_process_down_is_named(
        self, driver: PlayedMachine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        (tmp_path / "pynvml.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
        with pytest.raises(SkuError, match=r"^NVML on \S+: the survey ended with code -11"):
            gpus_here()
